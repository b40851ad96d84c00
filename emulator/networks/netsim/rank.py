"""A rank: the worker's rules (switchml/protocol/worker.py) in virtual time. `turn` is the equivalent of the agent's
compiled loop between two sleeps (host_agent/loop.py); `Rank` is a host that runs a turn on every packet and timer.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from emulator.networks.netsim.link import Environment, at
from emulator.networks.netsim.packets import Packet, Train, coupled
from switchml.protocol import results, sending, timers
from switchml.protocol.chunks import packet_at
from switchml.protocol.handover import send_all
from switchml.protocol.packet import HEADER_BYTES
from switchml.protocol.worker import Worker
from switchml.protocol.worker_state import State
from switchml.runtime.jit import Address, int64, kernel
from switchml.runtime.memory import u8_at

NEVER = int(np.iinfo(np.int64).max)


class SteppedWorker:
    """The rules of one worker, turn by turn. `job` and `rank` identify its packets."""

    def __init__(self, worker: Worker, job: int, rank: int):
        self.worker, self.job, self.rank = worker, job, rank
        state = worker.state
        self._out = np.zeros(2 * len(state.slots) + 64, np.int32)
        self._packets = self._packet_rows()
        self._words, self._lengths, self._rounds = (state.slots[name] for name in ("words", "length", "round"))
        # Views of single numbers: reading a record's field takes ten times as long.
        scalars = state.scalars
        self._earliest, self._code = scalars["timers"]["earliest"], scalars["failure"]["code"]
        self._completed = scalars["counters"]["completed"]

    @property
    def deadline(self) -> int:
        """Time at which the next turn is due if nothing arrives (ns), NEVER if nothing is pending."""
        return int(self._earliest.item())

    @property
    def error(self) -> int:
        return int(self._code.item())

    @property
    def completed(self) -> int:
        """Number of completed tasks."""
        return int(self._completed.item())

    def turn(self, packets: Sequence[Packet], now: int) -> list[Packet]:
        """Receive `packets` at `now` (ns); returns the packets to send. Stops early when `error` is set, as the agent
        does."""
        state, out, sent = self.worker.state, self._out, []
        n = 0
        if self.worker.window["moved"]:  # the job moved to another aggregator, with other rows
            self._packets = self._packet_rows()
            sent += self._take(send_all(state, out))
        for place, packet in enumerate(packets):
            last = place == len(packets) - 1
            n, is_over = _receive(state, packet.address, packet.length, now, out, n, last)
            if is_over:
                return sent + self._take(n)
            if n + 1 >= len(state.slots):
                sent += self._take(n)
                n = 0
            if self.error:
                return sent
        return sent + self._take(_go_on(state, now, out, n))

    def _packet_rows(self) -> np.ndarray:
        rows: np.ndarray = self.worker.state.packets
        return rows[:, -(HEADER_BYTES + int(self.worker.identity["payload"])) :]

    def _take(self, n: int) -> list[Packet]:
        return [Packet(self._bytes(index), self.job, self.rank) for index in self._out[:n].tolist()]

    def _bytes(self, index: int) -> np.ndarray:
        """The packet of a slot: a dense one in the packet rows, or a sparse or addressed one, which
        has its own length."""
        if not self._words[index]:
            packet: np.ndarray = self._packets[index + (self._rounds[index] & 1) * len(self._words)]
            return packet
        return u8_at(packet_at(self.worker.state, index), int(self._lengths[index]))


@kernel
def _receive(
    state: State, address: Address, length: int, now: int, out: np.ndarray, n: int, is_last: bool
) -> tuple[int, bool]:
    """Receive a packet; after the last one, finish the turn. One call does both, as the tuple of arrays makes a call
    from Python expensive. Returns the number of packets in `out`, and whether the turn is over."""
    n = results.receive(state, address, length, now, out, n)
    if n + 1 >= len(state.slots):
        sending.build_streams(state, out, n)
        return n, False
    if state.scalars[0].failure.code:
        return int64(0), True
    return (_go_on(state, now, out, n), True) if is_last else (n, False)


@kernel
def _go_on(state: State, now: int, out: np.ndarray, n: int) -> int:
    """The part of a turn after all packets are received. Returns the number of packets in `out`."""
    n = sending.fill(state, now, out, n)
    if state.scalars[0].failure.code:
        return int64(0)
    if n:
        sending.build_streams(state, out, n)
    return timers.timeouts(state, now, out, n)


class Alarm:
    """Calls `ring` at the time it was last set to. Postponing is free: an event that fires too early reschedules
    itself."""

    def __init__(self, env: Environment, ring: Callable[[], None]):
        self._env, self._ring = env, ring
        self._due = self._set_for = NEVER

    @property
    def is_set(self) -> bool:
        return self._due != NEVER

    def set(self, time_ns: int | None) -> None:
        """Ring at `time_ns` instead of the previous time; None or NEVER: not at all."""
        self._due = NEVER if time_ns is None else time_ns
        if self._due < self._set_for:
            self._set_for = max(self._due, self._env.now)
            at(self._env, self._set_for, self._look, self._set_for)

    def _look(self, set_for: int) -> None:
        if set_for != self._set_for:
            return  # superseded by an earlier alarm
        self._set_for = NEVER
        if self._due <= self._env.now:
            self._due = NEVER
            self._ring()
        elif self._due != NEVER:
            self.set(self._due)


class Rank:
    """One rank of one job on a host whose network card is `send(packet or train)`. `on_done(rank)` is called when all
    started tasks are done. `train_packets`: maximum number of packets in one train."""

    def __init__(
        self,
        env: Environment,
        worker: Worker,
        job: int,
        rank: int,
        send: Callable[[Packet | Train], bool],
        on_done: Callable[[int], None],
        train_packets: int,
        framing_bytes: int,
    ):
        self.env, self.worker, self.rank = env, worker, rank
        self._train_packets, self._framing_bytes = train_packets, framing_bytes
        self._turns, self._send, self._on_done = SteppedWorker(worker, job, rank), send, on_done
        self._alarm = Alarm(env, self._turn)
        self._started = 0

    @property
    def is_done(self) -> bool:
        return self._turns.completed == self._started

    def start(self, *tasks: tuple[Any, ...]) -> None:
        """Start concurrent collectives, each with arguments of `Worker.start`."""
        for task in tasks:
            self.worker.start(*task)
        self._started += len(tasks)
        self._turn()

    def receive(self, packet: Packet | Train) -> None:
        self._turn(packet.packets if isinstance(packet, Train) else (packet,))

    def _turn(self, packets: Sequence[Packet] = ()) -> None:
        was_done = self.is_done
        packets = self._turns.turn(packets, self.env.now)
        for item in coupled(packets, self._train_packets, self._framing_bytes):
            self._send(item)
        self._alarm.set(self._turns.deadline)
        if not was_done and self.is_done:
            self._on_done(self.rank)
