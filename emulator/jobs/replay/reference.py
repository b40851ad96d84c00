"""A reference engine in simpy and plain Python: processes, events and timeouts, written for readability. `calendar.py`
states the rules. It is some hundred times slower and gives the same times; tests compare the compiled engines with it
on random graphs.
"""

from collections import defaultdict

import numpy as np
import simpy

from emulator.jobs.replay.conditions import Conditions, noise
from emulator.jobs.replay.engine import _transfer_times
from emulator.jobs.workload.costs import NO_ROUTE, Costs
from emulator.jobs.workload.graph import NO_TRANSFER, Graph, Kind, Order

LATE = 2
"""A simpy priority below everything that ends at the same time: streams choose and rates change afterwards."""


class Reference:
    """A replay. After `run()`: `start_s`, `end_s` (ops,) and `transfer_start_s` (transfers,), NaN for what did not
    happen."""

    def __init__(self, graph: Graph, costs: Costs, conditions: Conditions | None = None) -> None:
        self.graph, self.costs, self.conditions = graph, costs, conditions or Conditions()
        self.flat = self.conditions.for_kernels(graph)
        self.fixed_s, self.bytes, self.route = _transfer_times(graph, costs, self.conditions, self.flat)
        self.env = simpy.Environment()
        self.start_s = np.full(len(graph.ops), np.nan)
        self.end_s = np.full(len(graph.ops), np.nan)
        self.transfer_start_s = np.full(len(graph.transfers), np.nan)

        ops, chooses = graph.ops, graph.streams.order == Order.READY
        self.op_type, self.stream, self.transfer = ops.op_type.tolist(), ops.stream.tolist(), ops.transfer.tolist()
        self.rank, self.chooses = graph.op_rank().tolist(), chooses.tolist()
        self.members = defaultdict(list)
        self.after = defaultdict(list)
        self.waits = [0] * len(graph.ops)
        last: dict[int, int] = {}
        for op, (stream, transfer) in enumerate(zip(self.stream, self.transfer, strict=True)):
            before = ops.before(op).tolist()
            if not self.chooses[stream]:
                before += [last[stream]] if stream in last else []
                last[stream] = op
            for other in before:
                self.after[other].append(op)
            self.waits[op] = len(before)
            if transfer != NO_TRANSFER:
                self.members[transfer].append(op)
        self.missing = {transfer: len(members) for transfer, members in self.members.items()}
        self.is_busy = [False] * len(graph.streams)
        self.in_line: list[tuple] = []  # (−priority, ready, op number, streams, start function)
        self.is_late_due = False
        self.slowing: defaultdict[int, int] = defaultdict(int)  # rank → transfers in progress that slow it
        self.is_paused = [False] * len(graph.ranks)
        self.alone: dict[int, Job] = {}  # op → its remaining work
        self.moving: dict[int, Job] = {}  # transfer → its remaining bytes

    def run(self) -> float:
        """Run to the end and return the makespan in seconds."""
        first = [op for op, waits in enumerate(self.waits) if waits == 0]
        for rank in range(len(self.graph.ranks)):
            self.env.process(self._rank(rank, [op for op in first if self.rank[op] == rank]))
        self.env.run()
        return float(np.nanmax(self.end_s, initial=0.0))

    def _rank(self, rank: int, first: list[int]):
        yield self.env.timeout(self.flat.start_s[rank])
        for op in first:
            self._ready(op)
        for i in range(self.flat.pause_start[rank], self.flat.pause_start[rank + 1]):
            for at_s, is_paused in ((self.flat.pause_from_s[i], True), (self.flat.pause_until_s[i], False)):
                yield self.env.timeout(max(0.0, at_s - self.env.now))
                self.is_paused[rank] = is_paused
                self._later()

    # Starting

    def _ready(self, op: int) -> None:
        stream, transfer = self.stream[op], self.transfer[op]
        self.start_s[op] = self.env.now
        self.is_busy[stream] |= not self.chooses[stream]
        if transfer == NO_TRANSFER:
            self._start_in_turn(op, self.op_type[op], [stream], lambda: self._start(op))
            return
        self.missing[transfer] -= 1
        if self.missing[transfer] == 0:
            streams = [self.stream[member] for member in self.members[transfer]]
            op_type = int(self.graph.transfers.op_type[transfer])
            self._start_in_turn(self.members[transfer][0], op_type, streams, lambda: self._meet(transfer))

    def _start_in_turn(self, op: int, op_type: int, streams: list[int], start) -> None:
        """Start at once, unless some of the streams are in ready order."""
        chosen = [stream for stream in streams if self.chooses[stream]]
        if not chosen:
            start()
            return
        self.in_line.append((-int(self.graph.op_types.priority[op_type]), self.env.now, op, chosen, start))
        self._later()

    def _start(self, op: int) -> None:
        seconds = self.costs.op_type_s[self.op_type[op]] * self.flat.slowness[self.rank[op]]
        if self.flat.sigma > 0:
            seconds *= noise(self.flat.seed, op, self.flat.sigma)
        self.start_s[op] = self.env.now
        self.is_busy[self.stream[op]] = True
        self.alone[op] = Job(self, seconds, self._speed(op), lambda: self._end(op))

    def _meet(self, transfer: int) -> None:
        self.transfer_start_s[transfer] = self.env.now
        for op in self.members[transfer]:
            if self.chooses[self.stream[op]]:
                self.start_s[op] = self.env.now
            self.is_busy[self.stream[op]] = True
            self.slowing[self.rank[op]] += self._slows(transfer)
        self._later()
        self.env.process(self._transfer(transfer))

    def _slows(self, transfer: int) -> bool:
        kind = self.graph.op_types.kind[self.graph.transfers.op_type[transfer]]
        return kind in (Kind.COLLECTIVE, Kind.SEND, Kind.RECV)

    def _transfer(self, transfer: int):
        yield self.env.timeout(self.fixed_s[transfer])
        if self.route[transfer] != NO_ROUTE:
            over = self.env.event()
            self.moving[transfer] = Job(self, self.bytes[transfer], 0.0, over.succeed)
            self._later()
            yield over
            del self.moving[transfer]
            self._later()
        for op in self.members[transfer]:
            self.slowing[self.rank[op]] -= self._slows(transfer)
        for op in self.members[transfer]:
            self._end(op)

    def _end(self, op: int) -> None:
        self.alone.pop(op, None)
        self.end_s[op] = self.env.now
        self.is_busy[self.stream[op]] = False
        for after in self.after[op]:
            self.waits[after] -= 1
            if self.waits[after] == 0:
                self._ready(after)
        self._later()

    # After all other events of a point in time

    def _later(self) -> None:
        if not self.is_late_due:
            self.is_late_due = True
            late = self.env.event()
            late._ok, late._value = True, None
            late.callbacks.append(self._late)
            self.env.schedule(late, priority=simpy.events.EventPriority(LATE))

    def _late(self, _) -> None:
        self.is_late_due = False
        for entry in sorted(self.in_line, key=lambda entry: entry[:3]):
            if not any(self.is_busy[stream] for stream in entry[3]):
                self.in_line.remove(entry)
                entry[4]()
        if self.flat.slowdown.any() or self.conditions.pauses:
            for op, job in self.alone.items():
                job.set_speed(self._speed(op))
        for transfer, rate in self._fair_rates().items():
            self.moving[transfer].set_speed(rate)

    def _speed(self, op: int) -> float:
        rank = self.rank[op]
        if self.is_paused[rank]:
            return 0.0
        kind = self.graph.op_types.kind[self.op_type[op]]
        if self.slowing[rank] and kind in (Kind.COMPUTE, Kind.CODEC):
            return 1.0 / (1.0 + self.flat.slowdown[rank])
        return 1.0

    def _fair_rates(self) -> dict[int, float]:
        """Return transfer → bytes/s by progressive filling."""
        if not self.moving:
            return {}
        links = self.costs.links
        residual = dict(enumerate(links.link_bytes_per_s))
        hops = {}
        for transfer in self.moving:
            first, last = links.start[self.route[transfer]], links.start[self.route[transfer] + 1]
            hops[transfer] = [(int(links.link[i]), float(links.share[i])) for i in range(first, last)]
        rates, growing = {}, set(self.moving)
        while growing:
            load: defaultdict[int, float] = defaultdict(float)
            for transfer in growing:
                for link, share in hops[transfer]:
                    load[link] += share
            fair = {link: max(residual[link], 0.0) / load[link] for link in load if load[link] > 0}
            level = min([*fair.values(), *(self.costs.transfer_bytes_per_s[transfer] for transfer in growing)])
            full = {link for link in fair if fair[link] <= level * (1 + 1e-12)}
            stopped = {
                transfer
                for transfer in growing
                if self.costs.transfer_bytes_per_s[transfer] <= level
                or any(link in full and share > 0 for link, share in hops[transfer])
            }
            for transfer in stopped:
                rates[transfer] = level
                for link, share in hops[transfer]:
                    residual[link] -= level * share
            growing -= stopped
        return rates


class Job:
    """An amount of work that decreases at a variable speed; calls `done` at 0."""

    def __init__(self, reference: Reference, amount: float, speed: float, done) -> None:
        self.env, self.done = reference.env, done
        self.amount, self.speed, self.since_s = amount, speed, self.env.now
        self.version = 0
        self._plan()

    def _plan(self) -> None:
        if self.amount == 0 or self.speed > 0:
            self.env.process(self._wait(self.version, self.amount and self.amount / self.speed))

    def _wait(self, version: int, seconds: float):
        yield self.env.timeout(seconds)
        if version == self.version:
            self.version = -1
            self.done()

    def set_speed(self, speed: float) -> None:
        """Continue at `speed` from now on."""
        if speed == self.speed or self.version < 0:
            return
        passed = (self.env.now - self.since_s) * self.speed
        self.amount = max(0.0, self.amount - passed)
        self.since_s, self.speed = self.env.now, speed
        self.version += 1
        self._plan()
