"""Rendezvous of ranks that do different things, such as a pipeline's stages, each running in a process with its own
clock. A transfer between them begins when all of its running ranks are ready. This module tracks arrivals and waiting
ranks as plain data, without processes (`processes.py`). Ranks that another one sends to or receives from run as well;
all others are assumed to do the same as one of those.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Broadcast(NamedTuple):
    """The values of a broadcast from `root`, number `number` of its communicator."""

    communicator: str
    root: int
    number: int


Key = tuple[Any, ...]
"""Key of a transfer: its communicator and its number there; or a Broadcast."""


@dataclass(frozen=True)
class Arrival:
    """A rank's arrival at a transfer, ready at `ready_s`. `call`: its operation, which must be the same on all ranks;
    `payload`: values that it sends. `needed`: ranks that must take part, whether they run already or not."""

    rank: int
    key: Key
    members: tuple[int, ...]
    ready_s: float
    call: str
    needed: tuple[int, ...] = ()
    payload: bytes | None = None


@dataclass(frozen=True)
class InputDigest:
    """Digest of a rank's known input values of a collective, which continues with copies of its own. They must be equal
    on all ranks if `is_exact`: integers, on which scripts base decisions, unlike on times and gathered objects."""

    rank: int
    key: Key
    call: str
    digest: bytes
    is_exact: bool


@dataclass(frozen=True)
class Published:
    """Values of `key.root` for the others in a broadcast; None: unknown."""

    key: Broadcast
    payload: bytes | None


@dataclass(frozen=True)
class WaitRequest:
    """A rank is blocked on a transfer."""

    rank: int
    key: Key


class Done(NamedTuple):
    """A rank has run enough iterations; it continues as long as others need it to."""

    rank: int


@dataclass(frozen=True)
class Answer:
    """Reply to a waiting rank. `start_s`: time at which all were ready. `payloads`: by rank. `error`: reason for which
    it can't continue; `is_over`: all ranks have run enough."""

    start_s: float = 0.0
    payloads: dict[int, bytes] = field(default_factory=dict)
    error: str = ""
    is_over: bool = False


class Rendezvous:
    """State of the rendezvous. `running`: the running ranks."""

    def __init__(self, running: set[int]):
        self.running = set(running)
        self._arrivals: dict[Key, dict[int, Arrival]] = {}
        self._waiting: dict[int, Key] = {}
        self._digests: dict[Key, InputDigest] = {}
        self._published: dict[Key, bytes | None] = {}
        self._mismatch = ""
        self.differing: set[Key] = set()
        """Collectives of values that differ between ranks, although no decisions are based on them."""
        self._done: set[int] = set()
        self._ended: set[int] = set()

    @property
    def is_over(self) -> bool:
        return self.running <= self._done | self._ended

    def add(self, arrival: Arrival) -> set[int]:
        """Add an arrival; return ranks that must run from now on."""
        self._arrivals.setdefault(arrival.key, {})[arrival.rank] = arrival
        new = set(arrival.needed) - self.running
        self.running |= new
        return new

    def add_digest(self, inputs: InputDigest) -> None:
        """Add input values; the run ends if exact ones differ from another rank's."""
        first = self._digests.setdefault(inputs.key, inputs)
        if first.digest == inputs.digest:
            return
        if not (first.is_exact or inputs.is_exact):
            self.differing.add(inputs.key)
        elif not self._mismatch:
            self._mismatch = (
                f"{inputs.call}: ranks {first.rank} and {inputs.rank} have different input values; ranks of "
                "different stages can't exchange values in collectives: expected equal ones, or send and recv"
            )

    def publish(self, published: Published) -> None:
        """Add broadcast values, for ranks that wait for their key."""
        self._published[published.key] = published.payload

    def wait(self, request: WaitRequest) -> None:
        """Add a waiting rank, which receives one of `answers`."""
        self._waiting[request.rank] = request.key

    def done(self, rank: int) -> None:
        """Record that a rank has run enough iterations."""
        self._done.add(rank)

    def ended(self, rank: int) -> None:
        """Record that a rank's process has ended."""
        self._ended.add(rank)
        self._waiting.pop(rank, None)

    def answers(self) -> Iterator[tuple[int, Answer]]:
        """Yield replies to all ranks that no longer need to wait."""
        for rank, key in list(self._waiting.items()):
            answer = self._answer(key)
            if answer is not None:
                del self._waiting[rank]
                yield rank, answer
        if self._waiting and self.running <= self._waiting.keys() | self._ended:
            deadlock = "; ".join(f"rank {rank} waits for {self._missing(key)}" for rank, key in self._sorted())
            for rank in list(self._waiting):
                del self._waiting[rank]
                yield rank, Answer(error=f"deadlock: {deadlock}", is_over=self.is_over)

    def _sorted(self) -> list[tuple[int, Key]]:
        return sorted(self._waiting.items())

    def _answer(self, key: Key) -> Answer | None:
        """Return the reply for a key; None: ranks are missing."""
        if self.is_over:
            return Answer(is_over=True)
        if self._mismatch:
            return Answer(error=self._mismatch)
        if isinstance(key, Broadcast):
            payload = self._published.get(key)
            is_here = key in self._published or key.root not in self.running
            return Answer(payloads={} if payload is None else {key.root: payload}) if is_here else None
        here = self._arrivals[key]
        first = next(iter(here.values()))
        other = next((one for one in here.values() if one.call != first.call), None)
        if other is not None:
            calls = f"rank {first.rank}: {first.call}, rank {other.rank}: {other.call}"
            return Answer(error=f"ranks of one communicator do different things: {calls}")
        if not here.keys() >= self.running & set(first.members):
            return None
        payloads = {rank: one.payload for rank, one in here.items() if one.payload is not None}
        return Answer(max(one.ready_s for one in here.values()), payloads)

    def _missing(self, key: Key) -> str:
        if isinstance(key, Broadcast):
            return f"a broadcast from rank {key.root}"
        here = self._arrivals[key]
        first = next(iter(here.values()))
        missing = sorted(self.running & set(first.members) - here.keys())
        ranks = ", ".join(f"rank {rank}{' (which has ended)' if rank in self._ended else ''}" for rank in missing)
        return f"{ranks} to take part in {first.call}"
