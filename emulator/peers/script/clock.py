"""The device's time. The host enqueues operators on streams and continues; each begins when its launch has arrived and
the preceding work on its stream has ended. A wait delays a stream, or the host, until a given time.
"""

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Span:
    """An operator or collective on the device. All times in seconds."""

    operator: int
    """Operator number; -1: a collective."""
    stream: int
    start_s: float
    duration_s: float
    called_s: float
    launched_s: float
    """Start and end of the host's launch call."""
    module: str
    """The operator's module (`modules.py`)."""


@dataclass(frozen=True)
class Collective(Span):
    """A collective, or a message. `group`: its name and its ranks. `ready_s`: time since which it waited for other
    ranks. `ends`: sender and receiver of a message."""

    operation: str
    size_bytes: float
    group: tuple[str, tuple[int, ...]]
    ready_s: float
    ends: tuple[int, int] | None = None


class Unfinished(Protocol):
    """Work whose end depends on other ranks (`channels.Transfer`)."""

    def end(self) -> float: ...


@dataclass(frozen=True)
class Wait:
    """At `at_s` the host made a stream wait until `until_s`, the end of the awaited work; or, with `stream` -1, it
    waited itself. `idle_s`: time since which the stream was otherwise idle."""

    at_s: float
    stream: int
    until_s: float
    idle_s: float


@dataclass
class Clock:
    """Clock of host and streams. Times are seconds since the script began to use the device."""

    host_s: float = 0.0
    stream: int = 0
    """The current stream."""
    ends_s: list[float] = field(default_factory=lambda: [0.0])
    """End of the enqueued work of each stream."""
    spans: list[Span] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    unfinished: dict[Unfinished, None] = field(default_factory=dict)
    """Enqueued work whose end is not known yet, in order."""

    @property
    def now_s(self) -> float:
        """Time at which all enqueued work has ended."""
        self._finish()
        return max(self.host_s, *self.ends_s)

    def _finish(self) -> None:
        for one in list(self.unfinished):
            one.end()

    def new_stream(self) -> int:
        self.ends_s.append(0.0)
        return len(self.ends_s) - 1

    def launch(self, operator: int, host_s: float, duration_s: float, module: str) -> None:
        """Launch an operator that occupies the host for `host_s` and then the device for `duration_s`; 0: it has no
        kernel."""
        called_s = self.host_s
        self.host_s += host_s
        if duration_s > 0:
            start_s = self.begin_on(self.stream, self.host_s, duration_s)
            self.spans.append(Span(operator, self.stream, start_s, duration_s, called_s, self.host_s, module))

    def hand_over(self, stream: int, host_s: float) -> tuple[float, float, float]:
        """Make subsequent work on another stream wait for that of the current one; the host is occupied for `host_s`.
        Return the time of the call, the earliest start on `stream`, and the time at which the host continues."""
        called_s = self.host_s
        self.waits.append(Wait(called_s, stream, self.ends_s[self.stream], called_s))
        self.host_s += host_s
        return called_s, max(self.host_s, self.ends_s[self.stream]), self.host_s

    def begin_on(self, stream: int, ready_s: float, duration_s: float) -> float:
        """Run work that is ready at `ready_s` on `stream` as soon as it is free; return the start."""
        start_s = max(ready_s, self.ends_s[stream])
        self.ends_s[stream] = start_s + duration_s
        return start_s

    def end_of(self, stream: int) -> float:
        """Return the end of the enqueued work of `stream`."""
        return max(self.ends_s[stream], self.host_s)

    def wait(self, stream: int, until_s: float) -> None:
        """Delay subsequent work on `stream` until `until_s`."""
        self.waits.append(Wait(self.host_s, stream, until_s, max(self.host_s, self.ends_s[stream])))
        self.ends_s[stream] = max(self.ends_s[stream], until_s)

    def wait_host(self, until_s: float) -> None:
        """Delay the host until `until_s`."""
        if until_s > self.host_s:
            self.waits.append(Wait(self.host_s, -1, until_s, self.host_s))
            self.host_s = until_s

    def synchronize(self, stream: int | None = None) -> None:
        """Make the host wait for a stream, or for all."""
        if stream is None:
            self._finish()
        self.wait_host(max(self.ends_s) if stream is None else self.ends_s[stream])
