"""The device's time. The host puts operators on streams and goes on; each begins when its launch has come and what is
before it on its stream has ended. Waiting makes a stream, or the host, go on no earlier than a moment.
"""

from __future__ import annotations

from dataclasses import dataclass, field


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
    """One collective. `group`: its name and its ranks."""

    operation: str
    size_bytes: float
    group: tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class Wait:
    """At `at_s` the host had a stream wait until `until_s`, which is the end of what is awaited; or, with `stream` -1,
    it waited itself."""

    at_s: float
    stream: int
    until_s: float


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

    @property
    def now_s(self) -> float:
        """When all that was asked for is done."""
        return max(self.host_s, *self.ends_s)

    def new_stream(self) -> int:
        self.ends_s.append(0.0)
        return len(self.ends_s) - 1

    def launch(self, operator: int, host_s: float, duration_s: float, module: str) -> None:
        """An operator that keeps the host for `host_s` and then the device for `duration_s`; 0: it has no kernel."""
        called_s = self.host_s
        self.host_s += host_s
        if duration_s > 0:
            start_s = self._begin(self.stream, duration_s)
            self.spans.append(Span(operator, self.stream, start_s, duration_s, called_s, self.host_s, module))

    def collective(
        self,
        stream: int,
        operation: str,
        size_bytes: float,
        group: tuple[str, tuple[int, ...]],
        host_s: float,
        duration_s: float,
    ) -> float:
        """A collective on a stream of its own, after what is on the present one. Returns when it ends."""
        called_s = self.host_s
        self.wait(stream, self.ends_s[self.stream])
        self.host_s += host_s
        start_s = self._begin(stream, duration_s)
        times = start_s, duration_s, called_s, self.host_s
        self.spans.append(Collective(-1, stream, *times, "", operation, size_bytes, group))
        return self.ends_s[stream]

    def _begin(self, stream: int, duration_s: float) -> float:
        start_s = max(self.host_s, self.ends_s[stream])
        self.ends_s[stream] = start_s + duration_s
        return start_s

    def end_of(self, stream: int) -> float:
        """When what is on `stream` has ended."""
        return max(self.ends_s[stream], self.host_s)

    def wait(self, stream: int, until_s: float) -> None:
        """What comes on `stream` begins no earlier."""
        self.waits.append(Wait(self.host_s, stream, until_s))
        self.ends_s[stream] = max(self.ends_s[stream], until_s)

    def wait_host(self, until_s: float) -> None:
        """The host goes on no earlier."""
        if until_s > self.host_s:
            self.waits.append(Wait(self.host_s, -1, until_s))
            self.host_s = until_s

    def synchronize(self, stream: int | None = None) -> None:
        """The host waits for a stream, or all."""
        self.wait_host(max(self.ends_s) if stream is None else self.ends_s[stream])
