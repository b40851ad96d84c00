"""A job over several aggregators, or several threads of one: an agent at each, and every all-reduce split between them.

    with HostAgent.join("10.0.0.1:50099,10.0.0.2:50099", job="demo", rank=0, world_size=2) as agent:
        total = agent.allreduce(x)

All ranks list the same aggregators in the same order. At the i-th of n the job is called "demo.i-of-n", so that ranks
with different lists never join the same job. A large tensor is split at packet boundaries, so its bits are those that
one aggregator would give; small ones are sent whole, to the aggregators in turn.

Parts of a job at one aggregator (docs/protocol.md, section 7) are such agents, too, which share a name and a session.
There, small tensors are sent by the first part.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from host_agent import joining
from host_agent.base import Agent
from host_agent.calls import FailureState, Handle, OnDone, Request, overflow
from host_agent.core import format_of
from host_agent.tensors import ITEM_BYTES
from switchml.errors import AggregatorLost, ConfigError, JobError, SumOverflow, UnsupportedTensor
from switchml.protocol.fixedpoint import FORMATS
from switchml.protocol.worker import elements_per_chunk

MIN_SHARD = 32
"""Minimum number of packets for each of several aggregators that makes splitting a call worthwhile."""
MIN_PART = 2048
"""The minimum for each thread of one aggregator: below 4 MiB two parts were not always faster than one, as measured on
two cores."""
_GAUGES = ("rtt_s", "rto_s", "busy_s")
"""Statistics whose maximum counts, not the sum."""


def split_addresses(addresses: str) -> list[str]:
    """Split a comma-separated list of aggregators. Raises ConfigError if one is empty."""
    listed = [address.strip() for address in addresses.split(",")]
    if not all(listed):
        raise ConfigError(f"aggregators {addresses!r}: expected host:port,host:port,…")
    return listed


def parts_of(numel: int, per_chunk: int, shards: int, least: int = MIN_SHARD) -> list[tuple[int, int]]:
    """(first element, count) of each shard's part, split at multiples of `per_chunk`; empty unless each has `least`
    chunks."""
    chunks = -(-numel // per_chunk)
    if chunks < least * shards:
        return []
    cuts = [min(chunks * k // shards * per_chunk, numel) for k in range(shards + 1)]
    return [(first, last - first) for first, last in zip(cuts, cuts[1:], strict=False)]


class ShardedAgent(Agent):
    """One rank of one job at several aggregators: `agents`, one at each, and `addresses` for messages; or at several
    threads of one, without addresses. Created by `HostAgent.join`."""

    def __init__(self, agents: list[Agent], addresses: list[str], *, job: str, payload_bytes: int):
        super().__init__(FailureState())
        self.job, self.rank, self.world_size, self.wire = job, agents[0].rank, agents[0].world_size, agents[0].wire
        self.transport = "+".join(sorted({agent.transport for agent in agents}))
        self.takes_sparse = all(agent.takes_sparse for agent in agents)
        self.takes_collectives = all(agent.takes_collectives for agent in agents)
        self.only_sums = any(agent.only_sums for agent in agents)
        self.sums_halves = all(agent.sums_halves for agent in agents)
        self._agents, self._addresses, self._payload_bytes = agents, addresses, payload_bytes
        self._order = threading.Lock()  # all agents receive their parts of calls in the same order
        self._calls = self._turn = 0
        for agent in agents:  # the first failure ends the job at every aggregator
            self.on_failure(agent.abort)
        for shard, agent in enumerate(agents):
            agent.on_failure(self._failure_at(shard))

    @classmethod
    def join_all(
        cls, addresses: list[str], options: joining.Options, join: Callable[[str, joining.Options], Agent]
    ) -> ShardedAgent:
        """Join at one aggregator after the other with `join`, in the same order on every rank. Raises what `join`
        raises."""
        deadline = time.monotonic() + options.timeout_s
        agents: list[Agent] = []
        try:
            for number, address in enumerate(addresses, 1):
                name = f"{options.job}.{number}-of-{len(addresses)}"
                agents.append(join(address, options.until(deadline, job=name)))
            return cls(agents, addresses, job=options.job, payload_bytes=options.payload_bytes)
        except BaseException:
            for agent in agents:
                agent.leave()
            raise

    @property
    def global_ranks(self) -> tuple[int, ...]:
        return self._agents[0].global_ranks

    @global_ranks.setter
    def global_ranks(self, ranks: tuple[int, ...]) -> None:
        for agent in self._agents:
            agent.global_ranks = ranks

    def leave(self) -> None:
        if self.is_forked:
            return
        self.abort(JobError(f"rank {self.rank} left job '{self.job}'"))
        for agent in self._agents:
            agent.leave()

    def submit(self, request: Request) -> None:
        """Split a request between the agents. Its `on_done` is called from the thread of whichever agent is last, with
        the first error that ends the job, else that of the lowest part."""
        numel, dtype = request.numel, request.dtype
        parts = []
        if request.collective is None:  # others are sent whole to one aggregator
            if dtype not in ITEM_BYTES:  # before it is counted: the ranks must agree on the next aggregator
                raise UnsupportedTensor(f"dtype {dtype}: expected one of {', '.join(ITEM_BYTES)}")
            fmt = FORMATS[format_of(dtype, request.wire or self.wire)]
            per_chunk = elements_per_chunk(fmt, self._payload_bytes, self.world_size)
            parts = parts_of(numel, per_chunk, len(self._agents), MIN_SHARD if self._addresses else MIN_PART)
        with self._order:
            self._calls += numel > 0
            shards = list(range(len(parts)))
            if not parts:
                shards, parts = [self._turn % len(self._agents)], [(0, numel)]
                self._turn += numel > 0 and len(self._addresses) > 0
            call = _Parts(self, len(parts), numel, dtype, request.on_done)
            try:
                for index, (shard, (first, count)) in enumerate(zip(shards, parts, strict=True)):
                    offset = first * ITEM_BYTES.get(dtype, 1)
                    part = replace(
                        request,
                        source=request.source + offset,
                        target=request.target + offset,
                        numel=count,
                        on_done=call.report(index, shard),
                        called=request.signature,
                        is_part=len(parts) > 1,
                    )
                    self._agents[shard].submit(part)
            except BaseException as error:  # the other ranks have queued parts that this one has not
                self.abort(
                    JobError(
                        f"job '{self.job}': rank {self.rank} could not queue its part of the {request.name}: {error}"
                    )
                )
                raise
        call.all_queued()  # outside the lock, since the last report may call anything

    def _carry_out(self, submit: Callable[[], None], handle: Handle, async_op: bool) -> Any:
        if self._addresses:
            return super()._carry_out(submit, handle, async_op)
        return self._agents[0]._carry_out(submit, handle, async_op)  # it has every call, or the first part of it

    def report_counts(self, calls: dict[str, int], loading: dict[str, float]) -> None:
        self._agents[0].report_counts(calls, loading)

    def missing_ranks(self) -> tuple[int, ...]:
        return tuple(sorted({rank for agent in self._agents for rank in agent.missing_ranks()}))

    def stats(self) -> dict[str, Any]:
        """Combined counters of all agents; round-trip time, timeout and busy time of the slowest."""
        each = [agent.stats() for agent in self._agents]
        joined = {
            name: (max if name in _GAUGES else sum)(stats[name] for stats in each)
            for name in each[0]
            if name not in ("transport", "goodput_bps")
        }
        busy_s = joined["busy_s"]
        return joined | {
            "transport": self.transport,
            "calls": self._calls,
            "goodput_bps": 8 * joined["bytes"] / busy_s if busy_s else 0.0,
        }

    def _failure_at(self, shard: int) -> Callable[[BaseException], None]:
        return lambda error: self.abort(self._located(error, shard))

    def _located(self, error: BaseException, shard: int) -> BaseException:
        """An agent's error with the name of its aggregator, if there are several."""
        if self._addresses and isinstance(error, AggregatorLost) and error is not self._failure_state.error:
            return AggregatorLost(f"aggregator {self._addresses[shard]}, one of {len(self._agents)}: {error}")
        return error


class _Parts:
    """A call in progress: combines the parts' reports into one."""

    def __init__(self, owner: ShardedAgent, parts: int, numel: int, dtype: str, on_done: OnDone):
        self._owner, self._numel, self._dtype, self._on_done = owner, numel, dtype, on_done
        self._errors: list[BaseException | None] = [None] * parts
        self._fatal: BaseException | None = None
        self._open = parts + 1  # plus one until all are queued
        self._lock = threading.Lock()

    def report(self, index: int, shard: int) -> OnDone:
        """The `on_done` callback of a part."""

        def done(error: BaseException | None) -> None:
            if error is not None:
                error = self._owner._located(error, shard)
            self._count(index, error)

        return done

    def all_queued(self) -> None:
        self._count(0, None)

    def _count(self, index: int, error: BaseException | None) -> None:
        with self._lock:
            self._open -= 1
            if error is not None:
                self._errors[index] = error
                if isinstance(error, JobError) and self._fatal is None:
                    self._fatal = error
            if self._open:
                return
        self._on_done(self._fatal or self._joined())

    def _joined(self) -> BaseException | None:
        errors = [error for error in self._errors if error is not None]
        overflows = [error for error in errors if isinstance(error, SumOverflow)]
        if len(overflows) == len(errors):
            return overflow(sum(error.misfits for error in overflows), self._numel, self._dtype)
        return errors[0]
