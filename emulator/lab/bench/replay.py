"""Measurement of `switchml bench replay`: ops/s of the compiled engines and of a plain simpy implementation, on an
iteration of GPT-3 with tensor, pipeline (1F1B, full recomputation) and data parallelism, as in `switchml emulate`.
`competing` makes its ops compete for streams, links and memory.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import partial

import numpy as np

from emulator.cluster import cluster as clusters
from emulator.jobs.costing import plan
from emulator.jobs.iteration import build
from emulator.jobs.replay.conditions import Conditions
from emulator.jobs.replay.engine import replay
from emulator.jobs.replay.reference import Reference
from emulator.jobs.workload import models
from emulator.jobs.workload.costs import NO_ROUTE, Costs, Links
from emulator.jobs.workload.graph import Graph, Order
from emulator.jobs.workload.job import Job
from emulator.jobs.workload.models import Transformer

OPS_A_LAYER = 12
"""Ops per layer and micro-batch on each rank: forward, recomputation and backward, each attention and MLP with their
all-reduces."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Parallelism and size of the benchmark's job; the default is GPT-3 175B on 1024 accelerators."""

    tensor: int = 8
    stages: int = 8
    replicas: int = 16
    layers: int = 96
    micro_batches: int = 96

    @classmethod
    def of_about(cls, ops: int) -> Shape:
        """A job of about `ops` ops: a scaled-down default."""
        for tensor, stages, replicas in ((8, 8, 16), (8, 8, 2), (2, 4, 2), (2, 2, 1)):
            shape = cls(tensor=tensor, stages=stages, replicas=replicas, layers=12 * stages, micro_batches=1)
            micro_batches = round(ops / (shape.ranks * 12 * OPS_A_LAYER))
            if micro_batches >= stages:
                break
        return changed(shape, micro_batches=max(1, micro_batches))

    @property
    def ranks(self) -> int:
        """Number of accelerators."""
        return self.tensor * self.stages * self.replicas


def job(shape: Shape, *, folded: bool = False) -> tuple[Graph, Costs]:
    """Graph and costs of an iteration. `folded`: one rank for each stage represents all identical ranks."""
    gpt = models.load("gpt3-175b")
    assert isinstance(gpt, Transformer)
    layout = Job(
        gpus=shape.ranks,
        tp=shape.tensor,
        pp=shape.stages,
        batch=shape.replicas * shape.micro_batches,
        recompute="full",
        overlap=False,
    )
    model = changed(gpt, layers=shape.layers, tied_embedding=False)
    return build(plan(model, layout, clusters.load("a100-dgx")), "all" if folded else "none")


UPLINK_BYTES_PER_S = 25e9
OVERLAP_SLOWDOWN = 0.15


def competing(graph: Graph, costs: Costs) -> tuple[Graph, Costs, Conditions]:
    """Add to the job everything that needs the event engine: point-to-point and gradient streams run ready ops first,
    eight ranks share an uplink and a downlink, and communication slows compute."""
    order = np.where(np.array(graph.streams.name) == "compute", Order.PROGRAM, Order.READY).astype(np.int8)
    crosses = np.array(graph.op_types.name)[graph.transfers.op_type] != "tensor-parallel all-reduce"
    first = graph.groups.ranks[graph.groups.start[graph.transfers.group]]
    last = graph.groups.ranks[graph.groups.start[graph.transfers.group + 1] - 1]
    nodes = -(-len(graph.ranks) // 8)
    ups, downs = np.divmod(np.arange(nodes * nodes, dtype=np.int32), nodes)
    links = Links(
        link_name=[f"{direction} of node {node}" for direction in ("uplink", "downlink") for node in range(nodes)],
        link_bytes_per_s=np.full(2 * nodes, UPLINK_BYTES_PER_S),
        start=2 * np.arange(nodes * nodes + 1),
        link=np.stack([ups, nodes + downs], axis=1).ravel(),
        share=np.ones(2 * nodes * nodes),
    )
    shared = changed(
        costs, transfer_route=np.where(crosses, first // 8 * nodes + last // 8, NO_ROUTE).astype(np.int32), links=links
    )
    taking_ready = changed(graph, streams=changed(graph.streams, order=order))
    return taking_ready, shared, Conditions(overlap_slowdown=OVERLAP_SLOWDOWN)


@dataclass(frozen=True)
class Measured:
    """Results of one run; `to_json` names them."""

    ops: int
    ranks: int
    ops_per_s: float
    calendar_ops_per_s: float
    competing_ops_per_s: float
    reference_ops: int
    reference_ops_per_s: float
    build_s: float

    def to_json(self) -> dict[str, float]:
        """JSON object for `--json`."""
        return {**self.__dict__, "speedup": self.ops_per_s / self.reference_ops_per_s}

    def lines(self) -> list[str]:
        """The results as lines of text."""
        rates = {
            "nothing competes (sweep)": self.ops_per_s,
            "the same by events (calendar)": self.calendar_ops_per_s,
            "with ops that compete": self.competing_ops_per_s,
            f"plain simpy, {self.reference_ops:,} ops": self.reference_ops_per_s,
        }
        title = f"{self.ops:,} ops of {self.ranks} ranks, one transformer iteration; built in {self.build_s:.2f} s"
        return [title, *(f"{name:<32}{rate:>14,.0f} ops/s" for name, rate in rates.items())]


def _cpu_s(work: Callable[[], object]) -> float:
    """CPU seconds of this thread that `work` takes: independent of other load on the machine."""
    began_s = time.thread_time()
    work()
    return time.thread_time() - began_s


def measure(ops: int, *, reference_ops: int = 100_000, repeats: int = 3) -> Measured:
    """Replay a job of about `ops` ops on the engine that `replay` selects for it, on the event calendar, and there with
    competing ops, and a smaller one in simpy; the best of `repeats` each, compiled beforehand. Raises AssertionError if
    simpy's makespan differs."""
    began_s = time.thread_time()
    graph, costs = job(Shape.of_about(ops))
    build_s = time.thread_time() - began_s
    small = job(Shape.of_about(min(ops, 2_000)))
    nothing = Conditions()
    cases = {
        "auto": ((graph, costs, nothing), (*small, nothing), "auto"),
        "calendar": ((graph, costs, nothing), (*small, nothing), "calendar"),
        "competing": (competing(graph, costs), competing(*small), "calendar"),
    }
    rates = {}
    for name, (whole, part, engine) in cases.items():
        _check(Reference(*part), replay(*part, engine=engine).makespan_s)
        least_s = min(_cpu_s(partial(replay, *whole, engine=engine)) for _ in range(repeats))
        rates[name] = len(graph.ops) / least_s
    plain = job(Shape.of_about(min(ops, reference_ops)))
    reference = Reference(*plain)
    reference_s = _cpu_s(lambda: _check(reference, replay(*plain).makespan_s))
    return Measured(
        ops=len(graph.ops),
        ranks=len(graph.ranks),
        ops_per_s=rates["auto"],
        calendar_ops_per_s=rates["calendar"],
        competing_ops_per_s=rates["competing"],
        reference_ops=len(plain[0].ops),
        reference_ops_per_s=len(plain[0].ops) / reference_s,
        build_s=build_s,
    )


def _check(reference: Reference, makespan_s: float) -> None:
    if not math.isclose(reference.run(), makespan_s, rel_tol=1e-9):
        raise AssertionError("the engines disagree: this is a bug; please report it")
