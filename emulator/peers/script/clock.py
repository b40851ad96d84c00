"""The device's time. The host puts operators on streams and goes on; each begins when its launch has come and what is
before it on its stream has ended. Waiting makes a stream, or the host, go on no earlier than a moment.
"""

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Span:
    """One operator or collective on the device. All times in seconds."""

    operator: int
    """Its number; -1: a collective."""
    stream: int
    start_s: float
    duration_s: float
    called_s: float
    launched_s: float
    """When the host began and ended to put it on the stream."""
    module: str
    """To which it belongs (`modules.py`)."""


@dataclass(frozen=True)
class Collective(Span):
    """One collective, or a message. `group`: its name and its ranks. `ready_s`: from when on it waited for other ranks.
    `ends`: sender and receiver of a message."""

    operation: str
    size_bytes: float
    group: tuple[str, tuple[int, ...]]
    ready_s: float
    ends: tuple[int, int] | None = None


class Unfinished(Protocol):
    """What ends when other ranks have come (`channels.Transfer`)."""

    def end(self) -> float: ...


@dataclass(frozen=True)
class Wait:
    """At `at_s` the host had a stream wait until `until_s`, which is the end of what is awaited; or, with `stream` -1,
    it waited itself. `idle_s`: from when on the stream had nothing else to do."""

    at_s: float
    stream: int
    until_s: float
    idle_s: float


@dataclass
class Clock:
    """Times are seconds since the script began to use the device."""

    host_s: float = 0.0
    stream: int = 0
    """What operators are put on."""
    ends_s: list[float] = field(default_factory=lambda: [0.0])
    """When each stream has done what it has."""
    spans: list[Span] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    unfinished: dict[Unfinished, None] = field(default_factory=dict)
    """What is on streams and of which it is not known yet when it ends, in order."""

    @property
    def now_s(self) -> float:
        """When all that was asked for is done."""
        self._finish()
        return max(self.host_s, *self.ends_s)

    def _finish(self) -> None:
        for one in list(self.unfinished):
            one.end()

    def new_stream(self) -> int:
        self.ends_s.append(0.0)
        return len(self.ends_s) - 1

    def launch(self, operator: int, host_s: float, duration_s: float, module: str) -> None:
        """An operator that keeps the host for `host_s` and then the device for `duration_s`; 0: it has no kernel."""
        called_s = self.host_s
        self.host_s += host_s
        if duration_s > 0:
            start_s = self.begin_on(self.stream, self.host_s, duration_s)
            self.spans.append(Span(operator, self.stream, start_s, duration_s, called_s, self.host_s, module))

    def hand_over(self, stream: int, host_s: float) -> tuple[float, float, float]:
        """What comes on another stream waits for what is on the present one; the host is kept for `host_s`. Returns
        when that was called, when `stream` can begin, and when the host goes on."""
        called_s = self.host_s
        self.waits.append(Wait(called_s, stream, self.ends_s[self.stream], called_s))
        self.host_s += host_s
        return called_s, max(self.host_s, self.ends_s[self.stream]), self.host_s

    def begin_on(self, stream: int, ready_s: float, duration_s: float) -> float:
        """What is ready at `ready_s` begins when `stream` is free; returns when."""
        start_s = max(ready_s, self.ends_s[stream])
        self.ends_s[stream] = start_s + duration_s
        return start_s

    def end_of(self, stream: int) -> float:
        """When what is on `stream` has ended."""
        return max(self.ends_s[stream], self.host_s)

    def wait(self, stream: int, until_s: float) -> None:
        """What comes on `stream` begins no earlier."""
        self.waits.append(Wait(self.host_s, stream, until_s, max(self.host_s, self.ends_s[stream])))
        self.ends_s[stream] = max(self.ends_s[stream], until_s)

    def wait_host(self, until_s: float) -> None:
        """The host goes on no earlier."""
        if until_s > self.host_s:
            self.waits.append(Wait(self.host_s, -1, until_s, self.host_s))
            self.host_s = until_s

    def synchronize(self, stream: int | None = None) -> None:
        """The host waits for a stream, or all."""
        if stream is None:
            self._finish()
        self.wait_host(max(self.ends_s) if stream is None else self.ends_s[stream])
