"""Text that may come from a stranger's file: names of jobs, kernels, models, ranks. No import takes time here;
`switchml.terminal` prints tables of such text."""

import re

_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but tabs and line feeds, what turns the direction of writing, and halves of surrogate pairs."""


def plain(text: str) -> str:
    """`text` with a picture in place of each control character (␛ for escape) and "\ufffd" in place of others that a
    terminal or a page would obey rather than show. As many characters as before."""
    return _UNPRINTABLE.sub(_picture, text)


def last_line(output: str, otherwise: str = "it said nothing") -> str:
    """What a process printed last, for a message about its end: our own commands' without "switchml: error:"."""
    lines = output.strip().splitlines()
    return lines[-1].removeprefix("switchml: error: ") if lines else otherwise


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else "\ufffd"
