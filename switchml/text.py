"""Sanitizing of untrusted text: names of jobs, kernels, models, ranks. This module imports quickly; `switchml.terminal`
prints tables of such text."""

import re

_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except tabs and line feeds, characters that change the writing direction, and surrogates."""


def plain(text: str) -> str:
    r"""`text` with each control character replaced by its picture (␛ for escape), and "\ufffd" in place of other
    characters that a terminal or a page would interpret rather than show. The number of characters is unchanged."""
    return _UNPRINTABLE.sub(_picture, text)


def last_line(output: str, otherwise: str = "it said nothing") -> str:
    """Last line printed by a process, for a message about its end; "switchml: error:" of this project's commands is
    removed."""
    lines = output.strip().splitlines()
    return lines[-1].removeprefix("switchml: error: ") if lines else otherwise


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else "\ufffd"
