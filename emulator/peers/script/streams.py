"""Streams and events of the emulated GPU."""

from __future__ import annotations

from typing import Any

import torch

from emulator.peers.script.clock import Clock

clocks: list[Clock] = []
"""That of this process."""


class Stream:
    """A stream of the device, identified by its number on the clock."""

    def __init__(self, device: Any = None, priority: int = 0, number: int | None = None, **_: Any):
        self.number = clocks[0].new_stream() if number is None else number
        self.device, self.priority, self.stream_id = torch.device("cuda", 0), priority, self.number
        self.cuda_stream = self.number

    def synchronize(self) -> None:
        clocks[0].synchronize(self.number)

    def query(self) -> bool:
        return True

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, -5

    def is_capturing(self) -> bool:
        return False

    def wait_stream(self, stream: Stream) -> None:
        clocks[0].wait(self.number, clocks[0].end_of(stream.number))

    def wait_event(self, event: Event) -> None:
        clocks[0].wait(self.number, event.at_s)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def __enter__(self) -> Stream:
        self._before = clocks[0].stream
        clocks[0].stream = self.number
        return self

    def __exit__(self, *_: Any) -> None:
        clocks[0].stream = self._before

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.number == self.number

    def __hash__(self) -> int:
        return hash(self.number)


class Event:
    """An event: a time on the device."""

    def __init__(self, *_: Any, **__: Any):
        self.at_s = 0.0

    def record(self, stream: Stream | None = None) -> None:
        clock = clocks[0]
        self.at_s = clock.end_of(clock.stream if stream is None else stream.number)

    def wait(self, stream: Stream | None = None) -> None:
        clock = clocks[0]
        clock.wait(clock.stream if stream is None else stream.number, self.at_s)

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        clocks[0].wait_host(self.at_s)

    def elapsed_time(self, end: Event) -> float:
        """Return the milliseconds between two events."""
        return (end.at_s - self.at_s) * 1e3
