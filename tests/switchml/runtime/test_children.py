"""Programs that end with the thread that started them."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

from switchml.runtime.children import dying_with_us
from tests.support.launch import until
from tests.support.ranks import environment


def test_a_program_receives_the_signal_when_the_thread_ends():
    started = []

    def start():
        process = subprocess.Popen(dying_with_us(["sleep", "1000"], signal.SIGTERM))
        started.append(process)
        until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n")

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert started[0].wait() == -signal.SIGTERM


def test_no_python_runs_between_fork_and_exec():
    """There it could wait for a lock of a thread that the child does not have."""
    program = (
        "import os, signal, subprocess\nfrom switchml.runtime.children import dying_with_us\n"
        "os.register_at_fork(after_in_child=signal.pause)\n"
        "print(subprocess.run(dying_with_us(['echo', 'here']), capture_output=True, text=True).stdout)"
    )
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("here", "")


def test_a_program_gets_arguments_and_signals_as_they_were():
    plain = ["sh", "-c", 'grep SigIgn /proc/self/status; echo "$@"', "sh", "-c", "two words", ""]
    expected = subprocess.run(plain, capture_output=True, text=True).stdout
    assert "-c two words" in expected
    assert subprocess.run(dying_with_us(plain), capture_output=True, text=True).stdout == expected


def test_a_program_that_is_not_there():
    done = subprocess.run(dying_with_us(["no-such-program"]), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "no-such-program: No such file or directory\n")
