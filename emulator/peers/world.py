"""The emulated world in one process: its clock, the progress of each rank, the communicators on which collectives are
serialized, and the accounting of the script's time.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

import numpy as np

from emulator.cluster.collectives import cost
from emulator.cluster.innetwork import Streaming
from emulator.cluster.topology import GroupLayout
from emulator.peers.clock import Clock
from emulator.peers.program import NOT_RECORDED, Program
from emulator.peers.settings import PeerSettings
from emulator.peers.timing import OWN, CollectiveTimes, CommunicatorTimes, Progress, blocked


class Costs:
    """Costs of collectives by `emulator.cluster`, cached. Rank r is accelerator r of the cluster, whose nodes are
    filled in order."""

    def __init__(self, settings: PeerSettings):
        cluster = settings.machine()
        network = settings.network, settings.hierarchy, Streaming(loss=settings.loss, jobs=settings.jobs)

        @cache
        def seconds(operation: str, size_bytes: float, ranks: tuple[int, ...]) -> float:
            nodes = Counter(rank // cluster.accelerators_per_node for rank in ranks)
            where = GroupLayout(len(ranks), len(nodes), max(nodes.values()), max(nodes) - min(nodes) + 1)
            return cost(cluster, operation, size_bytes, where, *network).seconds

        self.seconds = seconds
        """Return the duration of a collective. `operation` is one of `emulator.cluster.collectives.OPERATIONS`, its
        size counted as there."""


class Handle(Protocol):
    """The script's handle of a collective, as used by the world (`work.PeersWork`)."""

    call: CollectiveRecord | None

    def block(self) -> None:
        """Wait until the collective is done on this machine."""

    def part_done(self, error: BaseException | None) -> None:
        """Mark the collective as done, or failed."""


@dataclass
class Iteration:
    """An iteration of this rank, from the end of one optimizer step to the end of the next. Seconds of its clock."""

    start_s: float
    end_s: float = 0.0
    compute_s: float = 0.0
    communication_s: float = 0.0
    """Exposed communication: the script waited for transfers."""
    waiting_s: float = 0.0
    """Time that the script waited for late ranks."""
    late_s: float = 0.0
    """In wall-clock time: delay of this machine relative to the cluster."""

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


@dataclass
class Used:
    """Number of calls of a collective, its bytes, and seconds of its transfers."""

    calls: int = 0
    bytes: float = 0.0
    seconds: float = 0.0


@dataclass
class CollectiveRecord:
    """A collective of this rank. `at_s` (1 + absent,): arrival of each rank; `act` exchanges its values."""

    name: str
    seconds: float
    act: Callable[[], None]
    work: Handle
    at_s: np.ndarray
    step: int = NOT_RECORDED
    times: CollectiveTimes | None = None


class World:
    """The world. `rank`: of this process; `real`: all real ranks."""

    def __init__(self, settings: PeerSettings, rank: int, real: tuple[int, ...], origin_s: float | None = None):
        self.settings, self.rank, self.real = settings, rank, real
        self.costs = Costs(settings)
        scale = settings.scale_of(rank)
        self.clock = Clock(
            is_virtual=settings.clock == "virtual", scale=scale, measure=settings.measure, origin_s=origin_s
        )
        absent = np.array([other for other in range(settings.world) if other not in set(real)], np.int64)
        pace = np.array([settings.scale_of(other) / scale for other in (rank, *absent.tolist())])
        self.progress = Progress(rank, absent, pace)
        self.iterations: list[Iteration] = []
        self.used: dict[str, Used] = {}
        self.program = Program()
        self.last_program = self.program
        self._current = Iteration(self.clock.now_s())
        self._lock = threading.RLock()
        self._waiting = 0
        # Works with a requested future that have not been waited for, as far as is known.
        self._unawaited: list[Handle] = []
        self._is_queued = False
        self._draw()

    # The script's calls

    @contextmanager
    def called(self) -> Iterator[None]:
        """Enter a call of the script: its time until here counts as compute; in virtual time, the call itself takes
        none."""
        with self._lock:
            self._lap()
            try:
                yield
            finally:
                if self.clock.is_virtual:
                    self.clock.skip()

    def submit(
        self, line: Communicator, name: str, operation: str, size_bytes: float, work: Handle, act: Callable[[], None]
    ) -> None:
        """Submit a collective of `line`'s ranks: `operation` and `size_bytes` as in `Costs.seconds`."""
        with self.called():
            seconds = self.costs.seconds(operation, size_bytes, line.ranks)
            call = CollectiveRecord(name, seconds, act, work, self.progress.at_s.copy())
            call.step = self.program.call(line.number, line.ranks, operation, size_bytes, seconds)
            work.call = call
            used = self.used.setdefault(operation, Used())
            used.calls, used.bytes, used.seconds = used.calls + 1, used.bytes + size_bytes, used.seconds + seconds
            line.submit(call)

    def wait(self, works: list[Handle], block: Callable[[], None]) -> None:
        """Wait for `works`; `block` returns when all of them are done on this machine."""
        with self._lock:
            self._lap()
            from_s = float(self.progress.at_s[OWN])
            self._waiting += 1
        try:
            block()
        finally:
            with self._lock:
                self._waiting -= 1
                self._resume(from_s, works)

    def _resume(self, from_s: float, works: list[Handle]) -> None:
        calls = [work.call for work in works if work.call is not None]
        done = [(call.step, call.times) for call in calls if call.times is not None]
        self._unawaited = [work for work in self._unawaited if work not in works]
        times = [each for _, each in done]
        if not times:
            self.clock.skip()
            return
        end_s = np.max([each.end_s for each in times], axis=0)
        transfer_s, peers_s = blocked(from_s, times)
        self._current.communication_s += transfer_s
        self._current.waiting_s += peers_s
        self.program.wait([step for step, _ in done])
        self.progress.wait(end_s)
        self.clock.reach(float(end_s[OWN]))
        self.progress.at_s[OWN] = self.clock.at_s
        self._current.late_s += self.clock.at_s - max(from_s, float(end_s[OWN]))

    def step(self) -> None:
        """End an iteration."""
        self._await_all()
        with self.called():
            now_s = float(self.progress.at_s[OWN])
            self._current.end_s = now_s
            self.iterations.append(self._current)
            self._current = Iteration(now_s)
            self.last_program, self.program = self.program, Program()
            self._is_queued = False  # a failed backward pass does not run its callback
            self._draw()

    def future_requested(self, work: Handle) -> None:
        """Record that `work` will be waited for invisibly. In a backward pass that is DDP, at its end: wait just
        before."""
        import torch

        with self._lock:
            self._unawaited.append(work)
            if self._is_queued:
                return
            try:
                torch.autograd.Variable._execution_engine.queue_callback(self._backward_ended)
                self._is_queued = True
            except RuntimeError:  # no backward pass is running
                pass

    def _backward_ended(self) -> None:
        self._is_queued = False
        self._await_all()

    def _await_all(self) -> None:
        works = list(self._unawaited)

        def block() -> None:
            for work in works:
                work.block()

        if works:
            self.wait(works, block)

    def _lap(self) -> None:
        if self._waiting:  # called from a callback while the script itself is blocked
            self.clock.skip()
        else:
            computed_s = self.clock.lap()
            self._current.compute_s += computed_s
            self.program.compute(computed_s)
            self.progress.compute(computed_s)
        self.progress.at_s[OWN] = self.clock.at_s

    def _draw(self) -> None:
        """Draw the absent ranks' jitter of the next iteration, equal in all processes."""
        if not self.settings.jitter:
            return
        sigma = np.sqrt(np.log1p(self.settings.jitter**2))
        luck = np.random.default_rng((self.settings.seed, len(self.iterations))).lognormal(
            -0.5 * sigma**2, sigma, self.settings.world
        )
        self.progress.draw[1:] = luck[self.progress.ranks[1:]]


@dataclass
class Communicator:
    """Serializes collectives of one group (or transfers from one rank to another). `agree`: maps the last arrival in
    this process to the last one over all real ranks; None where no other rank is real."""

    world: World
    ranks: tuple[int, ...]
    agree: Callable[[float], float] | None = None
    number: int = 0
    _line: CommunicatorTimes = field(init=False)
    _calls: queue.SimpleQueue[CollectiveRecord | None] | None = None

    def __post_init__(self) -> None:
        progress, real = self.world.progress, [rank for rank in self.ranks if rank in self.world.real]
        # Each real member determines the arrivals of its share of the absent ones.
        share = np.arange(len(progress.ranks) - 1) % len(real) == real.index(self.world.rank)
        speaks_for = np.concatenate([[True], share])
        self._line = CommunicatorTimes(progress, np.isin(progress.ranks, self.ranks), speaks_for)

    def submit(self, call: CollectiveRecord) -> None:
        """Run a collective: at once if no other rank must be waited for, else on a separate thread."""
        if self.agree is None and self.world.clock.is_virtual:
            self._carry_out(call)
            return
        if self._calls is None:
            self._calls = queue.SimpleQueue()
            threading.Thread(target=self._run, args=(self._calls,), name="switchml-emulated", daemon=True).start()
        self._calls.put(call)

    def close(self) -> None:
        """End the thread after all submitted collectives."""
        if self._calls is not None:
            self._calls.put(None)

    def _run(self, calls: queue.SimpleQueue[CollectiveRecord | None]) -> None:
        while (call := calls.get()) is not None:
            self._carry_out(call)
            del call

    def _carry_out(self, call: CollectiveRecord) -> None:
        try:
            ready_s, last_s = self._line.arrive(call.at_s)
            if self.agree is not None:
                last_s = self.agree(last_s)
            call.times = self._line.complete(ready_s, last_s, call.seconds)
            call.act()
            self.world.clock.sleep_until(float(call.times.end_s[OWN]))
        except Exception as error:
            call.work.part_done(error)
        else:
            call.work.part_done(None)
