"""Transfers between ranks: collectives of a group, or messages from one rank to another. Transfers of a channel are
sequential, on a separate stream. Their start may depend on other running ranks; it is resolved lazily, when something
waits for their end, so that no rank blocks where a GPU's host would continue.
"""

from __future__ import annotations

from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from emulator.peers.script.clock import Clock, Collective
from emulator.peers.script.rendezvous import Answer, Arrival, Broadcast, Done, InputDigest, Key, Published, WaitRequest
from switchml.errors import EmulationError


class Finished(BaseException):
    """Enough iterations have been run; not an Exception, so that the script's handlers do not catch it."""


class Ranks:
    """Connection to the other running ranks, through a pipe to the parent process. With `pipe` None there are none."""

    def __init__(self, rank: int, pipe: Connection | None = None):
        self.rank, self._pipe = rank, pipe

    def arrive(self, key: Key, members: tuple[int, ...], ready_s: float, call: str, **more: Any) -> None:
        """Report this rank's arrival at a transfer; `more`: fields of an Arrival."""
        if self._pipe is not None:
            self._pipe.send(Arrival(self.rank, key, members, ready_s, call, **more))
        elif more.get("needed"):
            raise EmulationError(f"{call}: no other rank runs here")

    def report_inputs(self, key: Key, call: str, digest: bytes, is_exact: bool) -> None:
        """Report this rank's input values of a collective."""
        if self._pipe is not None:
            self._pipe.send(InputDigest(self.rank, key, call, digest, is_exact))

    def publish(self, key: Broadcast, payload: bytes | None) -> None:
        """Publish this rank's values for the others in a broadcast."""
        if self._pipe is not None:
            self._pipe.send(Published(key, payload))

    def wait(self, key: Key, ready_s: float) -> Answer:
        """Wait until all members have arrived. Raises Finished, and EmulationError for a deadlock."""
        if self._pipe is None:
            return Answer(ready_s)
        self._pipe.send(WaitRequest(self.rank, key))
        answer: Answer = self._pipe.recv()
        if answer.is_over:
            raise Finished
        if answer.error:
            raise EmulationError(answer.error)
        return answer

    def finish(self) -> None:
        """Report that this rank has run enough iterations; raises Finished when all have."""
        if self._pipe is not None:
            self._pipe.send(Done(self.rank))
            if not self._pipe.recv().is_over:
                return
        raise Finished


@dataclass(eq=False)
class Transfer:
    """A transfer on its channel. `key`: of the rendezvous; other fields as in `clock.Collective`."""

    channel: Channel
    key: Key
    operation: str
    size_bytes: float
    ready_s: float
    duration_s: float
    called_s: float
    launched_s: float
    answer: Answer | None = None
    ended_s: float = 0.0

    def end(self) -> float:
        """Return the end of the transfer; waits for the other participating ranks."""
        while self.answer is None:
            self.channel.begin_next()
        return self.ended_s


class Channel:
    """A sequence of transfers. `name`: of the communicator, the same on all `members`. `ends`: sender and receiver, of
    a message channel."""

    def __init__(
        self, clock: Clock, ranks: Ranks, name: str, members: tuple[int, ...], ends: tuple[int, int] | None = None
    ):
        self._clock, self._ranks, self._name, self._members, self._ends = clock, ranks, name, members, ends
        self._stream = clock.new_stream()
        self._number = 0
        self._pending: list[Transfer] = []

    @property
    def ends_s(self) -> float:
        """Time at which all of the channel's transfers have ended."""
        while self._pending:
            self.begin_next()
        return self._clock.end_of(self._stream)

    def put(
        self, operation: str, size_bytes: float, host_s: float, duration_s: float, payload: bytes | None = None
    ) -> Transfer:
        """Enqueue a transfer after the current stream's work. The call occupies the host for `host_s`."""
        called_s, ready_s, launched_s = self._clock.hand_over(self._stream, host_s)
        key = (self._name, self._ends, self._number)
        self._number += 1
        what = operation.replace("_", "-") if self._ends is None else f"a message of {size_bytes:,.0f} bytes"
        if self._ends is not None:
            what += f" from rank {self._ends[0]} to rank {self._ends[1]}"
        needed = self._ends or ()
        self._ranks.arrive(key, self._ends or self._members, ready_s, what, needed=needed, payload=payload)
        made = Transfer(self, key, operation, size_bytes, ready_s, duration_s, called_s, launched_s)
        self._pending.append(made)
        self._clock.unfinished[made] = None
        return made

    def begin_next(self) -> None:
        """Begin the first pending transfer."""
        one = self._pending[0]
        answer = self._ranks.wait(one.key, one.ready_s)
        self._pending.pop(0)
        del self._clock.unfinished[one]
        start_s = self._clock.begin_on(self._stream, max(one.ready_s, answer.start_s), one.duration_s)
        one.answer, one.ended_s = answer, start_s + one.duration_s
        times = start_s, one.duration_s, one.called_s, one.launched_s
        group = (self._name, self._members)
        self._clock.spans.append(
            Collective(-1, self._stream, *times, "", one.operation, one.size_bytes, group, one.ready_s, self._ends)
        )
