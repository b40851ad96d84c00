"""How many examples of a property are tried: fewer, and the same ones in every run, in the first tier of tests."""

from __future__ import annotations

from typing import Any

import hypothesis

WHOLE = 100
"""A property's examples with --all, where it names no number; hypothesis's own default."""


def load(is_all: bool) -> None:
    """Before any test is imported. No deadline for one example: the first may compile a kernel."""
    hypothesis.settings.register_profile("first", deadline=None, max_examples=20, derandomize=True)
    hypothesis.settings.register_profile("all", deadline=None, max_examples=WHOLE)
    hypothesis.settings.load_profile("all" if is_all else "first")


def examples(count: int, **options: Any) -> hypothesis.settings:
    """`settings(max_examples=count)` with --all, and the same share of it as of others without."""
    return hypothesis.settings(max_examples=max(count * hypothesis.settings().max_examples // WHOLE, 1), **options)
