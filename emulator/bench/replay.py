"""What `switchml bench replay` measures: ops a second of the compiled engines and of the plain simpy writing, on one
kind of job. The job is a transformer's iteration with tensor, pipeline (1F1B, full recomputation) and data
parallelism: a chain of kernels and tensor-parallel all-reduces for each micro-batch, sends between stages, one
gradient all-reduce at the end. `competing` makes its ops compete for streams, links and memory.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import replace as changed

import numpy as np

from emulator.replay.conditions import Conditions
from emulator.replay.engine import replay
from emulator.replay.reference import Reference
from emulator.workload.builder import GraphBuilder
from emulator.workload.costs import NO_ROUTE, Costs, Links
from emulator.workload.graph import Collective, Graph, Kind, Order

FORWARD = ("norm", "attention", "all-reduce", "norm", "mlp", "all-reduce")
"""A layer's ops; its backward pass is twice as many: recomputation, then the same backwards."""

COMPUTE, TENSOR, FROM_BELOW, TO_ABOVE, FROM_ABOVE, TO_BELOW, GRADIENTS = range(7)
"""A rank's streams."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How the bench's job is laid out; the default is GPT-3 175B on 1024 accelerators."""

    tensor: int = 8
    stages: int = 8
    replicas: int = 16
    layers: int = 96
    micro_batches: int = 96

    @classmethod
    def of_about(cls, ops: int) -> Shape:
        """A job of about that many ops: a part of the default one."""
        for tensor, stages, replicas in ((8, 8, 16), (8, 8, 2), (2, 4, 2), (1, 2, 1)):
            shape = cls(tensor=tensor, stages=stages, replicas=replicas, layers=12 * stages, micro_batches=1)
            of_each = shape.ranks * 12 * (3 * len(FORWARD))
            micro_batches = round(ops / of_each)
            if micro_batches >= stages:
                break
        return cls(
            tensor=tensor, stages=stages, replicas=replicas, layers=12 * stages, micro_batches=max(1, micro_batches)
        )

    @property
    def ranks(self) -> int:
        """How many accelerators."""
        return self.tensor * self.stages * self.replicas


SECONDS = {
    "norm": 1e-4,
    "attention": 8e-4,
    "mlp": 1.6e-3,
    "all-reduce": 3e-4,
    "send": 1e-4,
    "gradients": 0.2,
    "adam": 0.02,
}


def job(shape: Shape, *, folded: bool = False) -> tuple[Graph, Costs]:
    """The job and its prices. `folded`: one rank for each stage stands for all that do the same."""
    builder = GraphBuilder("bench")
    tensor, replicas = (1, 1) if folded else (shape.tensor, shape.replicas)
    works = {}
    for name in FORWARD:
        for phase in ("", " backward"):
            is_compute = name != "all-reduce"
            kind, collective = (Kind.COMPUTE, 0) if is_compute else (Kind.COLLECTIVE, Collective.ALL_REDUCE)
            works[name + phase] = builder.add_work(name + phase, kind, collective=collective, seconds=SECONDS[name])
    send = builder.add_work("send", Kind.SEND, collective=Collective.P2P, seconds=SECONDS["send"])
    receive = builder.add_work("receive", Kind.RECV, collective=Collective.P2P, seconds=SECONDS["send"])
    gradients = builder.add_work(
        "gradients", Kind.COLLECTIVE, collective=Collective.ALL_REDUCE, seconds=SECONDS["gradients"]
    )
    adam = builder.add_work("adam", seconds=SECONDS["adam"])

    def rank_of(replica: int, stage: int, peer: int) -> int:
        return (replica * shape.stages + stage) * tensor + peer

    for _replica in range(replicas):
        for stage in range(shape.stages):
            for _peer in range(tensor):
                rank = builder.add_rank(stage=stage, weight=shape.ranks / (replicas * shape.stages * tensor))
                for name in ("compute", "tensor", "from below", "to above", "from above", "to below", "gradients"):
                    builder.add_stream(rank, name)
    blocks = [_Block(shape, stage, works, send, receive, gradients, adam) for stage in range(shape.stages)]
    reduce_work = blocks[0].work[blocks[0].stream == TENSOR]
    bases = np.full((replicas, shape.stages, tensor, 7), -1, np.int64)
    for replica in range(replicas):
        for stage in range(shape.stages):
            ranks = [rank_of(replica, stage, peer) for peer in range(tensor)]
            group = builder.add_group(ranks, name=f"tensor {replica}.{stage}", size=shape.tensor)
            bases[replica, stage, :, TENSOR] = builder.add_transfers(reduce_work, group)
            for peer in range(tensor):
                if stage + 1 < shape.stages:
                    pair = [rank_of(replica, stage, peer), rank_of(replica, stage + 1, peer)]
                    group = builder.add_group(pair, name=f"boundary {stage}-{stage + 1} of {replica}.{peer}")
                    up = builder.add_transfers(send, group, shape.micro_batches)
                    down = builder.add_transfers(send, group, shape.micro_batches)
                    bases[replica, stage, peer, TO_ABOVE] = bases[replica, stage + 1, peer, FROM_BELOW] = up
                    bases[replica, stage, peer, FROM_ABOVE] = bases[replica, stage + 1, peer, TO_BELOW] = down
    for stage in range(shape.stages):
        for peer in range(tensor):
            ranks = [rank_of(replica, stage, peer) for replica in range(replicas)]
            group = builder.add_group(ranks, name=f"data {stage}.{peer}", size=shape.replicas)
            bases[:, stage, peer, GRADIENTS] = builder.add_transfers(gradients, group)
    for replica in range(replicas):
        for stage in range(shape.stages):
            for peer in range(tensor):
                blocks[stage].add(builder, rank_of(replica, stage, peer), bases[replica, stage, peer])
    graph = builder.build()
    return graph, Costs.of(graph, graph.works.seconds)


class _Block:
    """The ops of one stage's ranks, which differ in nothing but the transfers they are in."""

    def __init__(self, shape: Shape, stage: int, works, send: int, receive: int, gradients: int, adam: int) -> None:
        layers = shape.layers // shape.stages
        is_first, is_last = stage == 0, stage == shape.stages - 1
        forward = [(TENSOR if name == "all-reduce" else COMPUTE, works[name]) for name in FORWARD]
        backward = [
            (TENSOR if name == "all-reduce" else COMPUTE, works[name + " backward"]) for name in reversed(FORWARD)
        ]
        passes = {
            "forward": [(FROM_BELOW, receive)] * (not is_first) + forward * layers + [(TO_ABOVE, send)] * (not is_last),
            "backward": [(FROM_ABOVE, receive)] * (not is_last)
            + (forward + backward[1:] + backward[:1]) * layers
            + [(TO_BELOW, send)] * (not is_first),
        }
        columns = {name: np.array(ops, np.int32).T for name, ops in passes.items()}
        order = one_f_one_b(shape.stages, stage, shape.micro_batches)
        whole = np.concatenate([columns[name] for name, _ in order], axis=1)
        lengths = [columns[name].shape[1] for name, _ in order]
        end = np.array([[GRADIENTS, COMPUTE], [gradients, adam]], np.int32)
        self.stream, self.work = np.concatenate([whole, end], axis=1)
        micro_batch = np.repeat(np.array([number for _, number in order], np.int32), lengths)
        self.micro_batch = np.concatenate([micro_batch, np.full(2, -1, np.int32)])
        # Each op waits for the one before it, but a micro-batch's first only for its stream.
        count = len(self.work)
        waits = np.ones(count, np.int64)
        waits[np.cumsum([0, *lengths[:-1]])] = 0
        self.dep_start = np.concatenate([[0], np.cumsum(waits)])
        self.deps = (np.flatnonzero(waits) - 1).astype(np.int32)
        # Number of its transfer within those of its communicator.
        self.transfer = np.where(self.stream == TENSOR, np.cumsum(self.stream == TENSOR) - 1, self.micro_batch)
        self.transfer[-2] = 0

    def add(self, builder: GraphBuilder, rank: int, bases: np.ndarray) -> None:
        """Add these ops for `rank`, whose transfers on stream i begin with the number `bases[i]`."""
        transfer = np.where(self.stream == COMPUTE, -1, self.transfer + bases[self.stream]).astype(np.int32)
        stream = self.stream + np.int32(7 * rank)
        builder.add_ops(stream, self.work, transfer, self.micro_batch, self.dep_start, self.deps)


UPLINK_BYTES_PER_S = 25e9
OVERLAP_SLOWDOWN = 0.15


def competing(graph: Graph, costs: Costs) -> tuple[Graph, Costs, Conditions]:
    """The job with everything that needs the event engine: streams take what is ready, sends and gradients share one
    uplink and one downlink for eight ranks, and communication slows compute."""
    order = np.full(len(graph.streams), Order.READY, np.int8)
    crosses = np.isin(np.array(graph.works.name)[graph.transfers.work], ("send", "gradients"))
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
        costs,
        transfer_fixed_s=np.where(crosses, 0.0, costs.transfer_fixed_s),
        transfer_bytes=np.where(crosses, costs.transfer_fixed_s * UPLINK_BYTES_PER_S / 8, 0.0),
        transfer_route=np.where(crosses, first // 8 * nodes + last // 8, NO_ROUTE).astype(np.int32),
        links=links,
    )
    taking_ready = changed(graph, streams=changed(graph.streams, order=order))
    return taking_ready, shared, Conditions(overlap_slowdown=OVERLAP_SLOWDOWN)


def one_f_one_b(stages: int, stage: int, micro_batches: int) -> list[tuple[str, int]]:
    """The order in which a stage takes passes: forward passes to fill the pipeline, then one of each kind in turn."""
    warm_up = min(stages - 1 - stage, micro_batches)
    order = [("forward", number) for number in range(warm_up)]
    for number in range(warm_up, micro_batches):
        order += [("forward", number), ("backward", number - warm_up)]
    return order + [("backward", number) for number in range(micro_batches - warm_up, micro_batches)]


@dataclass(frozen=True)
class Measured:
    """Figures of one run; `to_json` names them."""

    ops: int
    ranks: int
    ops_per_s: float
    calendar_ops_per_s: float
    competing_ops_per_s: float
    reference_ops: int
    reference_ops_per_s: float
    build_s: float

    def to_json(self) -> dict[str, float]:
        """For `--json`."""
        return {**self.__dict__, "speedup": self.ops_per_s / self.reference_ops_per_s}

    def lines(self) -> list[str]:
        """For people."""
        rates = {
            "nothing competes (sweep)": self.ops_per_s,
            "the same by events (calendar)": self.calendar_ops_per_s,
            "with ops that compete": self.competing_ops_per_s,
            f"plain simpy, {self.reference_ops:,} ops": self.reference_ops_per_s,
        }
        title = f"{self.ops:,} ops of {self.ranks} ranks, one transformer iteration; built in {self.build_s:.2f} s"
        return [title, *(f"{name:<32}{rate:>14,.0f} ops/s" for name, rate in rates.items())]


def _cpu_s(work: Callable[[], object]) -> float:
    """Seconds of this thread's CPU that `work` takes: the figures are for one core, whatever else the machine does."""
    began_s = time.thread_time()
    work()
    return time.thread_time() - began_s


def measure(ops: int, *, reference_ops: int = 100_000, repeats: int = 3) -> Measured:
    """Play a job of about `ops` ops on the engine that `replay` picks for it, on the event calendar, and there with
    ops that compete, and a smaller one in simpy; the best of `repeats` each, compiled beforehand. Raises
    AssertionError where simpy comes to another makespan."""
    began_s = time.thread_time()
    graph, costs = job(Shape.of_about(ops))
    build_s = time.thread_time() - began_s
    small = job(Shape.of_about(min(ops, 2_000)))
    cases = {
        "auto": ((graph, costs), small, "auto"),
        "calendar": ((graph, costs), small, "calendar"),
        "competing": (competing(graph, costs), competing(*small), "calendar"),
    }
    rates = {}
    for name, (whole, part, engine) in cases.items():
        _check(Reference(*part), replay(*part, engine=engine).makespan_s)
        least_s = min(_cpu_s(lambda job=whole, engine=engine: replay(*job, engine=engine)) for _ in range(repeats))
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
        raise AssertionError("the engines disagree: this is a bug, please report it")
