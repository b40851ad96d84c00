"""What tests start, and what ends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator


def started(start: Callable, end: Callable) -> Iterator[Callable]:
    """For a fixture: `yield from` it gives `start`; whatever it returned, `end` is called with after the test."""
    running = []

    def begin(*arguments, **options):
        running.append(start(*arguments, **options))
        return running[-1]

    yield begin
    for one in running:
        end(one)
