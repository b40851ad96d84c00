"""Benchmark of the what-if search: settings tried per minute with Optuna, the slowest search method; changes and replay
alone; and both on the job without coarsening, for comparison.
"""

import time
from dataclasses import asdict, dataclass

import numpy as np

from emulator.jobs.replay.engine import replay
from emulator.jobs.workload.builder import GraphBuilder
from emulator.jobs.workload.costs import Costs
from emulator.jobs.workload.graph import Collective, Kind
from emulator.traces.joined import Joined
from emulator.traces.network import TransferCost
from emulator.traces.optimizer.machine import Machine
from emulator.traces.optimizer.objective import Objective
from emulator.traces.optimizer.passes import TRACED, Setting
from emulator.traces.optimizer.search import Allowed, Search, SearchResult
from emulator.traces.whatif.buckets import DDP_CAPS, rebucket
from emulator.traces.whatif.gradients import gradients

ALONE = 200
"""Settings that are timed without a search."""
OPS_A_GRADIENT = 12
"""Ops per gradient on each rank: forward, backward and the optimizer's."""


@dataclass(frozen=True)
class Measured:
    """Results on one core."""

    ops: int
    ranks: int
    gradients: int
    coarse_ops: int
    trials: int
    settings_per_minute: float
    replays_per_minute: float
    whole_per_minute: float

    def to_json(self) -> dict[str, float]:
        """The fields as a dict."""
        return asdict(self)

    def lines(self) -> list[str]:
        """The results as lines of text."""
        return [
            f"{self.ops:,} ops of {self.ranks} ranks, {self.gradients} gradients; coarsened {self.coarse_ops:,} ops",
            f"{'settings tried a minute':<32}{self.settings_per_minute:>14,.0f}  ({self.trials} by Optuna)",
            f"{'changes and replay alone':<32}{self.replays_per_minute:>14,.0f}",
            f"{'the same on the whole job':<32}{self.whole_per_minute:>14,.0f}",
        ]


def measure(joined: Joined, trials: int) -> Measured:
    """Measure on a prepared job; kernels are compiled before timing."""
    machine = Machine.of(joined)
    sizes = gradients(joined).bytes
    rng = np.random.default_rng(0)
    drawn = [tuple(int(cap) for cap in rng.integers(1, sizes.sum(), 4)) for _ in range(ALONE + 1)]
    objective = Objective(joined, machine)
    objective(TRACED), objective.whole(Setting(buckets=drawn[0]))

    began_s = time.perf_counter()
    for caps in drawn[1:]:
        objective(Setting(buckets=caps))
    alone_s = (time.perf_counter() - began_s) / ALONE
    few = drawn[1 : 1 + ALONE // 10]
    began_s = time.perf_counter()
    for caps in few:
        job = objective.whole(Setting(buckets=caps))
        replay(job.graph, job.costs)
    whole_s = (time.perf_counter() - began_s) / len(few)

    objective = Objective(joined, machine)
    allowed = Allowed(passes=("buckets", "allreduce", "accumulate", "priority", "fuse"))
    traced = objective(TRACED)
    running = Search(
        objective, allowed, SearchResult(traced, traced, traced), trials, np.inf, lambda evaluated, best_s: None
    )
    began_s = time.perf_counter()
    running.until_spent(lambda: running.by_optuna(allowed.values(machine), True, trials, 0))
    elapsed_s = time.perf_counter() - began_s
    return Measured(
        ops=len(joined.graph.ops),
        ranks=len(joined.graph.ranks),
        gradients=len(sizes),
        coarse_ops=len(objective.coarse(TRACED).graph.ops),
        trials=objective.evaluated,
        settings_per_minute=objective.evaluated / elapsed_s * 60,
        replays_per_minute=60 / alone_s,
        whole_per_minute=60 / whole_s,
    )


def synthetic_job(count: int, ranks: int, seed: int = 0) -> Joined:
    """A data-parallel iteration of `count` gradients on ranks with slightly different durations: DDP's default buckets,
    100 MB in all, over a slow network."""
    rng = np.random.default_rng(seed)
    sizes = rng.lognormal(0, 1.5, count)
    sizes *= 100e6 / sizes.sum()
    builder = GraphBuilder()
    for _ in range(ranks):
        builder.add_rank()
    group = builder.add_group(range(ranks))
    reduce = builder.add_op_type("all-reduce", Kind.COLLECTIVE, collective=Collective.ALL_REDUCE, bytes=sizes.sum())
    collective = builder.add_transfers(reduce, group)
    each = OPS_A_GRADIENT // 3
    listed: list[tuple[int, int, float]] = []
    for rank in range(ranks):
        compute, comm = builder.add_stream(rank, "compute"), builder.add_stream(rank, "comm")

        def run(name: str, times: int, stream: int = compute) -> int:
            return [
                builder.add_op(stream, builder.add_op_type(name, seconds=float(rng.uniform(1e-5, 1e-3))))
                for _ in range(times)
            ][-1]

        run("forward", each * count)
        backward_ops = [run("backward", each) for _ in range(count)]
        listed += [(op, collective, float(size)) for op, size in zip(backward_ops, sizes, strict=True)]
        done = builder.add_op(comm, reduce, after=[backward_ops[-1]], transfer=collective)
        builder.add_op(compute, builder.add_op_type("optimizer", seconds=1e-4), after=[done])
        run("optimizer", each * count - 1)
    graph = builder.build()
    count_s = np.array([0.002 + sizes.sum() / 1e8])
    costs = Costs.of(graph, graph.op_types.seconds, count_s)
    played = replay(graph, costs)
    joined = Joined(
        graph=graph,
        costs=costs,
        traces=[],
        event=np.arange(len(graph.ops)),
        start_s=played.start_s,
        end_s=played.end_s,
        offset_s=np.zeros(ranks),
        iteration=0,
        iteration_s=played.makespan_s,
        gradients=listed,
    )
    return rebucket(joined, DDP_CAPS, TransferCost(0.002, 1e8))
