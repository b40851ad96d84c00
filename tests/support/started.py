"""What tests start, and what ends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest


def started(start: Callable, end: Callable) -> Iterator[Callable]:
    """For a fixture: `yield from` it gives `start`; whatever it returned, `end` is called with after the test."""
    running = []

    def begin(*arguments, **options):
        running.append(start(*arguments, **options))
        return running[-1]

    yield begin
    for one in running:
        end(one)


def lasting(start: Callable, *arguments: Any, scope: str = "module", end: str = "stop", **options: Any) -> Any:
    """A fixture: what `start` returns; then its method `end` is called."""

    @pytest.fixture(scope=scope)
    def fixture():
        running = start(*arguments, **options)
        yield running
        getattr(running, end)()

    return fixture
