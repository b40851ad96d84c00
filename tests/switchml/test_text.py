"""Text of other processes in our messages."""

from switchml.text import last_line


def test_the_last_line_of_a_process_of_ours_says_error_once():
    assert last_line("starting\nswitchml: error: no such file x\n") == "no such file x"
    assert last_line("Segmentation fault") == "Segmentation fault"
    assert last_line("\n", "no output") == "no output"
