"""One rank of a job with two-level collectives.

    with HostAgent.join("10.0.0.1:50099", job="demo", rank=0, world_size=8, hierarchy="node") as agent:
        total = agent.allreduce(x)

The ranks of a host sum in shared memory (memory.py), in rank order. Their leader is an ordinary agent in a job of the
hosts, and all-reduces these sums: a host sends and receives each tensor once, however many ranks it has. Other
collectives work alike (collectives.py).

Every rank has a thread that advances blocks:

1. Copy the next blocks of submitted tensors to this rank's inputs, while slots are free.
2. Sum this rank's share of blocks that all ranks of the host have copied.
3. The leader all-reduces summed blocks over the hosts.
4. Copy results to their targets, divide if the op is a mean, and report completed tensors.

Integer sums are exact: if the sum of a host does not fit its type, an element after the block signals this to all
hosts, which then all-reduce the block again in two 64-bit halves.
"""

import collections
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from host_agent import core, density, joining, loop
from host_agent.base import Agent
from host_agent.calls import CallQueue, Request, overflow, words
from host_agent.collectives import KINDS
from host_agent.hierarchy import memory as memories
from host_agent.hierarchy.blocks import Block, NodeCall
from host_agent.hierarchy.collectives import FIRST_KIND, NodeCollectiveCall, RankLayout
from host_agent.hierarchy.hosts import Membership
from host_agent.hierarchy.memory import ARRIVED, DEPTH, DIGEST, DONE, MISFITS, OVERFLOWED, SUMMED, TAKEN
from host_agent.watch import StallWarning, late, lost
from switchml.errors import CollectiveTimeout, ConfigError, PeerLost, RanksDisagree, SumOverflow
from switchml.protocol.sizes import EXACT
from switchml.runtime.memory import i32_at, i64_at
from switchml.runtime.slices import shorten_slices

log = logging.getLogger("host_agent")

_TICK_S = 0.25
"""Interval in seconds between checks of the progress of calls."""

Join = Callable[[str, joining.Options], Agent]


class HierarchicalAgent(Agent):
    """One rank of a job in which the ranks of a host sum first. Created by `HostAgent.join`."""

    by_hosts = True  # overflows of sums are exact at this level

    def __init__(
        self,
        membership: Membership,
        memory: memories.HostMemory,
        network: Agent | None,
        options: joining.Options,
        sparse: density.Choice,
    ):
        """`network`: the leader's agent in the job of the hosts, or None on other ranks."""
        self._queue: CallQueue[NodeCall] = CallQueue(memory.ring_own)
        super().__init__(self._queue)
        self.job, self.rank, self.world_size = options.job, options.rank, options.world_size
        facts = memory.facts()
        self.transport, self.wire, self.takes_sparse = facts["transport"], facts["wire"], facts["takes_sparse"]
        self.takes_collectives, self.only_sums = facts["takes_collectives"], facts["only_sums"]
        self._layout = RankLayout(self.rank, membership.hosts)
        self.sparse = sparse
        self._membership, self._memory, self._network = membership, memory, network
        self._global_ranks = tuple(range(self.world_size))
        self._running: collections.deque[NodeCall] = collections.deque()
        self._to_copy: Iterator[Block] = iter(())
        self._slots: dict[int, Block] = {}
        self._arrived = self._summed = self._submitted = self._taken = 0
        self._progress_at = 0.0
        self._is_over = False
        """Whether a call was made after a rank had left, so that it failed, as all later ones will."""
        self._warn = StallWarning(self.job, self.rank)
        if network is not None:
            self.on_failure(network.abort)
            network.on_failure(self._on_network_failure)
        membership.on_failure(self.abort)
        self._thread = threading.Thread(target=self._run, name=f"switchml-host-{self.rank}", daemon=True)
        self._thread.start()

    @classmethod
    def join_hosts(cls, address: str, options: joining.Options, host: str, join: Join) -> Agent:
        """Join the job of all ranks at the first aggregator of `address`; leaders also join that of the hosts, with
        `join`. If no two ranks share a host, just returns the agent of `join`. Raises JoinError, ConfigError."""
        sparse = density.choice(os.environ.get("SWITCHML_SPARSE") if options.sparse is None else options.sparse)
        if (options.wire or os.environ.get("SWITCHML_WIRE")) == EXACT:
            raise ConfigError(
                "hierarchy node: the ranks of a host add floats in memory, which is not exact, as their sum has more "
                "bits than a float; expected another wire than exact, or no hierarchy"
            )
        if not 0 <= options.rank < options.world_size:
            raise ConfigError(f"rank {options.rank} of {options.world_size}: expected 0 <= rank < world_size")
        loop.warm_up()
        memories.warm_up()
        deadline = time.monotonic() + options.timeout_s
        membership = Membership.join(address.split(",")[0], options, host)
        try:
            if len(membership.hosts) == options.world_size:
                membership.leave()
                return join(address, options.until(deadline))
            memory = membership.share_memory(deadline)
            network = None
            if membership.index == 0:
                try:
                    hosts = options.until(deadline, rank=membership.host, world_size=len(membership.hosts), queues=1)
                    network = join(address, hosts)
                except BaseException as error:
                    memory.announce_failure(error)
                    raise
                facts = ("transport", "wire", "takes_sparse", "takes_collectives", "only_sums")
                memory.announce(memories.READY, **{name: getattr(network, name) for name in facts})
            else:
                membership.await_leader(memory, deadline)
            return cls(membership, memory, network, options, sparse)
        except BaseException:
            membership.leave()
            raise

    @property
    def hosts(self) -> tuple[tuple[int, ...], ...]:
        """Ranks of each host."""
        return self._membership.hosts

    @property
    def global_ranks(self) -> tuple[int, ...]:
        return self._global_ranks

    @global_ranks.setter
    def global_ranks(self, ranks: tuple[int, ...]) -> None:
        self._global_ranks = ranks
        if self._network is not None:
            self._network.global_ranks = tuple(ranks[each[0]] for each in self.hosts)

    def leave(self) -> None:
        if not self._ends(self._thread):
            return
        self._part()

    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks that the oldest block waits for: ranks of this host that have not copied it in, or else ranks of the
        hosts that the leader's agent waits for."""
        local = [rank for i, rank in enumerate(self._membership.ranks) if self._memory.count(i, ARRIVED) <= self._taken]
        if local:
            return tuple(local)
        return tuple(itertools.chain(*(self.hosts[h] for h in np.flatnonzero(self._memory.waits_for))))

    def submit(self, request: Request) -> None:
        divisor, deadline = request.divisor(self.world_size), request.deadline(time.monotonic())
        request = replace(request, called=request.signature)  # before it is widened
        if request.collective is None:
            request, sparse = core.accepted(request, wire=self.wire, sparse=self.sparse, takes_sparse=self.takes_sparse)
            call = NodeCall(core.widened(request), sparse, divisor, deadline)
        else:
            call = NodeCollectiveCall(request, density.OFF, divisor, deadline, layout=self._layout)
        self._queue.add(call, self._membership.departure)
        self._is_over = bool(self._membership.departed)

    def stats(self) -> dict[str, Any]:
        """Counters as of every agent; packet counters are those of the leader's agent, and zero on other ranks."""
        packets: dict[str, Any] = dict.fromkeys((*core.COUNTERS, "window", "rtt_s", "rto_s"), 0)
        if self._network is not None:
            packets = self._network.stats()
        return packets | self._queue.totals() | {"transport": self.transport}

    # -- the rank's thread --

    def _run(self) -> None:
        shorten_slices()
        check_at = 0.0
        try:
            while self._queue.error is None:
                heard = self._memory.rings()
                is_busy = self._copy_in() | self._sum() | self._submit() | self._collect() | self._copy_out()
                now = time.monotonic()
                if is_busy:
                    self._progress_at = now
                if now >= check_at:
                    check_at = now + _TICK_S
                    self._check_progress(now)
                if not is_busy:
                    self._memory.wait(heard, _TICK_S)
        except Exception as error:
            self._died(error)
            self._part()
        self._wind_up()

    def _copy_in(self) -> bool:
        """Step 1: copy blocks of submitted tensors in. Returns whether it did any."""
        free = self._memory.least(TAKEN) + DEPTH
        before = self._arrived
        while self._arrived < free and (block := self._next_block()) is not None:
            slot, call = self._arrived % DEPTH, block.call
            self._slots[slot] = block
            block.copy_in(self._memory, slot)
            self._memory.records[self._memory.index, slot, DIGEST : OVERFLOWED + 1] = (
                call.digest,
                call.request.numel,
                block.kind,
                0,
            )
            self._arrived += 1
            self._memory.publish(ARRIVED, self._arrived)
        return self._arrived > before

    def _next_block(self) -> Block | None:
        block = next(self._to_copy, None)
        if block is None:
            call = self._queue.take()
            if call is None:
                return None
            self._running.append(call)
            self._queue.note_busy(time.monotonic(), True)
            self._to_copy = iter(call.blocks())
            block = next(self._to_copy)
        return block

    def _sum(self) -> bool:
        """Step 2: sum this rank's share. Returns whether there was anything to sum."""
        ready, before = self._memory.least(ARRIVED), self._summed
        while self._summed < ready:
            slot = self._summed % DEPTH
            block = self._slots[slot]
            if (self._memory.records[:, slot, DIGEST] != block.call.digest).any():
                self.abort(self._disagreement(slot, block.call))
                return True
            self._memory.records[self._memory.index, slot, OVERFLOWED] = block.add_up(self._memory, slot)
            self._summed += 1
            self._memory.publish(SUMMED, self._summed)
        return self._summed > before

    def _submit(self) -> bool:
        """Step 3, first half: submit the leader's all-reduces over the hosts. Integers are sent one block at a time,
        because the operations after a block must be the same on all hosts."""
        if self._network is None:
            return False
        ready, before = self._memory.least(SUMMED), self._submitted
        done = self._memory.count(0, DONE)
        while self._submitted < ready:
            slot = self._submitted % DEPTH
            block = self._slots[slot]
            previous = self._slots.get((self._submitted - 1) % DEPTH)
            if self._submitted > done and previous is not None and previous.is_integer:
                break
            result, count = self._memory.result(slot), block.count
            if block.is_integer:
                overflowed = bool(self._memory.records[:, slot, OVERFLOWED].any())
                (i32_at if block.kind == memories.INT32 else i64_at)(result, count + 1)[count] = overflowed
            self._submitted += 1
            self._request(block, result)
        return self._submitted > before

    def _request(self, block: Block, address: int) -> None:
        """Submit the block's collectives over the hosts; their outcomes are appended to the block's `results`."""
        assert self._network is not None

        def done(error: BaseException | None) -> None:
            block.results.append(error)
            self._memory.ring_own()

        requests = block.requests(address, done, self._memory)
        block.awaited = len(requests)
        for request in requests:
            self._network.submit(request)

    def _collect(self) -> bool:
        """Step 3, second half: collect results of blocks that the hosts have summed, in order."""
        done = before = self._memory.count(0, DONE)
        while self._network is not None and done < self._submitted:
            slot = done % DEPTH
            block = self._slots[slot]
            if len(block.results) < block.awaited:
                break
            error = next((error for error in block.results if error is not None), None)
            if error is not None and not isinstance(error, SumOverflow):
                self._on_network_failure(error)
                return True
            misfits = error.misfits if isinstance(error, SumOverflow) else 0
            if block.is_integer and block.overflowed(self._memory.result(slot)):
                wide = self._reduce_wide(slot, block)
                if wide is None:
                    return True
                misfits = self._memory.narrow(slot, block.kind, wide)
            self._memory.records[0, slot, MISFITS] = misfits
            done += 1
            self._memory.publish(DONE, done)
        return done > before

    def _reduce_wide(self, slot: int, block: Block) -> np.ndarray | None:
        """Reduce a block of integers over all hosts in the format of HostMemory.wide_sum; None if the job has ended.
        Blocks on the network, on which the leader has no other calls in flight."""
        wide = self._memory.wide_sum(slot, block.kind, block.count)
        finished = threading.Event()
        outcome: list[BaseException | None] = []

        def done(error: BaseException | None) -> None:
            outcome.append(error)
            finished.set()

        assert self._network is not None
        self._network.allreduce_address(
            wide.ctypes.data, wide.ctypes.data, wide.size, "int64", "sum", done, sparse=False, keep=wide
        )
        finished.wait()  # also set if the agent fails
        if outcome[0] is not None:
            self._on_network_failure(outcome[0])
            return None
        return wide

    def _copy_out(self) -> bool:
        """Step 4: copy results out and complete calls. Returns whether there were any."""
        done, before = self._memory.count(0, DONE), self._taken
        while self._taken < done and self._queue.error is None:
            slot = self._taken % DEPTH
            block = self._slots[slot]
            call = block.call
            block.copy_out(self._memory, slot)
            call.misfits += int(self._memory.records[0, slot, MISFITS])
            del self._slots[slot]
            self._taken += 1
            self._memory.publish(TAKEN, self._taken)
            if block.is_last:
                self._complete(call)
        return self._taken > before

    def _complete(self, call: NodeCall) -> None:
        self._running.popleft()
        self._queue.bytes += call.request.numel * call.item_bytes
        self._queue.note_busy(time.monotonic(), bool(self._running))
        call.end(overflow(call.misfits, call.request.numel, call.request.dtype))

    # -- failures --

    def _check_progress(self, now: float) -> None:
        memory = self._memory
        if self._network is not None:
            memory.waits_for[:] = 0
            memory.waits_for[list(self._network.missing_ranks())] = 1
        elif memory.state == memories.FAILED:
            self.abort(memory.failure())
            return
        if not self._running:
            if self._is_over and not self._queue.queued() and (departure := self._membership.departure()):
                self.abort(departure)
            return
        gone = tuple(rank for rank in self._membership.departed if self._is_needed(rank))
        if gone:
            self.abort(self._membership.lost(gone))
            return
        missing = self.missing_ranks()
        if error := late(self.job, now, (*self._running, *self._queue.queued()), missing):
            self.abort(error)
            return
        culprits = f"rank {', '.join(map(str, missing))}" if missing else "the network"
        self._warn(now, now - self._progress_at, self._running[0], culprits)

    def _is_needed(self, rank: int) -> bool:
        """Whether the oldest block waits for a rank of this host: for its input, and, once all inputs are there, for
        its share of the sum, or the leader's all-reduce. A rank that timed out while it waited for another's input, for
        which a call with a longer timeout still waits, is not needed yet."""
        if rank not in self._membership.ranks:
            return False
        index = self._membership.ranks.index(rank)
        step = DONE if index == 0 else SUMMED
        if self._memory.least(ARRIVED) <= self._taken:
            step = ARRIVED
        return self._memory.count(index, step) <= self._taken

    def _on_network_failure(self, error: BaseException) -> None:
        """Handle the failure of the leader's agent: all ranks of the host fail."""
        if self._queue.error is not None:  # the agent was aborted because of that error
            return
        if isinstance(error, PeerLost):
            hosts = [self.hosts[host] for host in error.ranks]
            ranks = tuple(rank for host in hosts for rank in host if rank in self._membership.departed)
            if ranks:
                error = self._membership.lost(ranks)
            else:  # the peer's own event follows shortly
                error = lost(self.job, (host[0] for host in hosts), f"the leader of its host is gone ({error})")
        if self._queue.fail(error):
            self._memory.announce_failure(error)

    def _disagreement(self, slot: int, call: NodeCall) -> RanksDisagree:
        names = {kind: name for name, kind in memories.KINDS.items()}
        names |= {FIRST_KIND + at: words(kind) for at, kind in enumerate(KINDS)}
        records = self._memory.records[:, slot]
        calls = "; ".join(
            f"rank {rank} {names.get(int(record[memories.KIND]), '?')}[{record[memories.NUMEL]}]"
            for rank, record in zip(self._membership.ranks, records, strict=True)
        )
        return RanksDisagree(
            f"job '{self.job}': {call.name}: the ranks of this host differ in tensors or options ({calls}); "
            "every rank must make the same calls in the same order"
        )

    def _wind_up(self) -> None:
        """Fail every remaining call. If the error is this rank's own, it leaves, so that the others do not have to time
        out."""
        self._queue.end_calls(self._running)
        self._running.clear()
        error = self._queue.error
        if isinstance(error, (RanksDisagree, CollectiveTimeout)) or self._is_over:
            self._part()
        elif isinstance(error, PeerLost) and self._network is not None:
            self._network.leave()

    def _part(self) -> None:
        if self._network is not None:
            self._network.leave()
        self._membership.leave()
