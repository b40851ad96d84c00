"""Jobs with a known bottleneck, and their traces: data-parallel training is simulated on the replay engine and recorded
as a profiler would."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from emulator.jobs.replay.engine import Replayed, replay
from emulator.jobs.workload.builder import GraphBuilder
from emulator.jobs.workload.costs import Costs
from emulator.jobs.workload.graph import NO_TRANSFER, Collective, Graph, Kind
from emulator.traces.events import NONE, Lane, LaneKind, RankTrace, What, Wire, WireWhat
from emulator.traces.joined import GAP, Joined
from tests.support.ddp_traces import Recorder

WHAT_OF_KIND = {
    Kind.COMPUTE: What.COMPUTE, Kind.COLLECTIVE: What.COLLECTIVE, Kind.SEND: What.SEND, Kind.RECV: What.RECV,
    Kind.LOAD: What.LOAD, Kind.CODEC: What.CODEC, Kind.COPY: What.COPY, Kind.CHECKPOINT: What.CHECKPOINT,
}  # fmt: skip
WHAT_OF_NAME = {"cudaLaunchKernel": What.LAUNCH, "cudaMalloc": What.LAUNCH, "cudaStreamSynchronize": What.SYNC}
LANES = (("thread 1", LaneKind.HOST), ("stream 7", LaneKind.DEVICE), ("comm", LaneKind.TRANSPORT))


def normal(rank: int, name: str, iteration: int) -> float:
    return 1.0


@dataclass(frozen=True)
class Job:
    """A data-parallel job. Layer i's gradient is final when `backward i` ends, the last layer's first."""

    ranks: int = 4
    layers: int = 8
    forward_s: float = 0.002
    backward_s: float = 0.004
    optimizer_s: float = 0.001
    load_s: float = 0.0
    gradient_bytes: float = 2e6
    """Of each layer."""
    buckets: Sequence[int] = (2, 2, 2, 2)
    """How many layers' gradients are reduced together, in the order in which they become final."""
    latency_s: float = 50e-6
    bytes_per_s: float = 2e9
    """What a bucket takes is latency plus bytes over this."""
    serialized: bool = False
    """All-reduces wait for the end of the backward pass."""
    gap_s: float = 0.0
    """The host loses before each layer."""
    launch_s: float = 0.0
    """Before each kernel, where kernels run on a device."""
    allocate_s: float = 0.0
    """The host allocates memory before it launches anything."""
    waits: bool = False
    """The host waits for its device before and after the backward pass."""
    codec_s: float = 0.0
    """Of each bucket, before it is reduced."""
    ratio: float = 1.0
    """How many times fewer bytes are sent than the gradients have."""
    slowness: Callable[[int, str, int], float] = normal
    """(rank, op's name, iteration) → how many times longer it takes."""
    hosts: Sequence[str] = ()
    about: dict[str, str] = field(default_factory=dict)
    metrics: int = 0
    """So many all-reduces of 1 kB after the optimizer."""
    metric_s: float = 0.001
    pipeline_bytes: float = 0.0
    """Each rank sends so much to the next after its forward pass."""
    links: Callable[[int, int], float] = lambda source, to: 1e9
    """Bytes per second of these sends."""


def build(job: Job, iteration: int = 0) -> tuple[Graph, Costs, list[tuple[int, int, float]]]:
    """One iteration: its graph, its costs, and the gradients as `Joined` has them."""
    builder = GraphBuilder()
    for _ in range(job.ranks):
        builder.add_rank()
    world = builder.add_group(range(job.ranks), name="world")
    works, transfers, sizes = [], [], []
    for number, layers in enumerate(job.buckets):
        sizes.append(layers * job.gradient_bytes / job.ratio)
        seconds = job.latency_s + sizes[-1] / job.bytes_per_s
        work = builder.add_op_type(
            f"all-reduce {number}", Kind.COLLECTIVE, collective=Collective.ALL_REDUCE, bytes=sizes[-1], seconds=seconds
        )
        works.append(work)
        transfers.append(builder.add_transfers(work, world))
    metric = builder.add_op_type(
        "metric", Kind.COLLECTIVE, collective=Collective.ALL_REDUCE, bytes=1000.0, seconds=job.metric_s
    )
    metrics = [builder.add_transfers(metric, world) for _ in range(job.metrics)]
    sends = {}
    if job.pipeline_bytes:
        for rank in range(job.ranks - 1):
            pair = builder.add_group([rank, rank + 1], name=f"{rank} to {rank + 1}")
            about = {"bytes": job.pipeline_bytes, "seconds": job.pipeline_bytes / job.links(rank, rank + 1)}
            work = builder.add_op_type(f"send {rank}", Kind.SEND, collective=Collective.P2P, **about)
            receive = builder.add_op_type(f"receive {rank}", Kind.RECV, collective=Collective.P2P, **about)
            sends[rank] = work, receive, builder.add_transfers(work, pair)
    gradients = []
    for rank in range(job.ranks):
        host, device, comm = (builder.add_stream(rank, name) for name, _ in LANES)

        def work(name: str, seconds: float, kind: Kind = Kind.COMPUTE, rank: int = rank) -> int:
            return builder.add_op_type(name, kind, seconds=seconds * job.slowness(rank, name, iteration))

        def layer(name: str, seconds: float, host: int = host, device: int = device, work=work) -> int:
            if job.gap_s:
                builder.add_op(host, work(f"gap before {name}", job.gap_s, Kind.DELAY))
            if not job.launch_s:
                return builder.add_op(host, work(name, seconds))
            launch = builder.add_op(host, work("cudaLaunchKernel", job.launch_s))
            return builder.add_op(device, work(name, seconds), after=[launch])

        if job.load_s:
            builder.add_op(host, work("DataLoader.__next__", job.load_s, Kind.LOAD))
        if job.allocate_s:
            builder.add_op(host, work("cudaMalloc", job.allocate_s))
        last = NONE
        for number in range(job.layers):
            last = layer(f"forward {number}", job.forward_s)
        if rank in sends:
            builder.add_op(comm, sends[rank][0], transfer=sends[rank][2], after=[last])
        if rank - 1 in sends:
            builder.add_op(comm, sends[rank - 1][1], transfer=sends[rank - 1][2], after=[last])
        if job.waits:
            builder.add_op(host, work("cudaStreamSynchronize", 0.0), after=[last])
        finals = [layer(f"backward {number}", job.backward_s) for number in reversed(range(job.layers))]
        reduced, at = [], 0
        for number, layers in enumerate(job.buckets):
            ready = finals[-1] if job.serialized else finals[at + layers - 1]
            gradients += [(final, transfers[number], job.gradient_bytes) for final in finals[at : at + layers]]
            at += layers
            if job.codec_s:
                ready = builder.add_op(comm, work(f"quantize {number}", job.codec_s, Kind.CODEC), after=[ready])
            reduced.append(builder.add_op(comm, works[number], transfer=transfers[number], after=[ready]))
        stream = device if job.launch_s else host
        last = builder.add_op(stream, work("optimizer", job.optimizer_s), after=reduced)
        if job.waits:
            builder.add_op(host, work("cudaStreamSynchronize", 0.0), after=[last])
        for transfer in metrics:
            builder.add_op(comm, metric, transfer=transfer, after=[last])
    graph = builder.build()
    return graph, Costs.of(graph, graph.op_types.seconds), gradients


def traced(job: Job, iterations: int = 1, shown: int = 0, wire: dict[int, Wire] | None = None) -> Joined:
    """`iterations` of `job`, of which the join took number `shown`."""
    played = []
    for number in range(iterations):
        graph, costs, gradients = build(job, number)
        played.append((replay(graph, costs), gradients))
    traces, index = [], np.full(len(played[shown][0].graph.ops), GAP, np.int64)
    for rank in range(job.ranks):
        trace, place = _trace(job, rank, [each for each, _ in played], shown)
        traces.append(replace(trace, wire=(wire or {}).get(rank)))
        for op, event in place.items():
            index[op] = event
    chosen, gradients = played[shown]
    return Joined(
        graph=chosen.graph, costs=chosen.costs, traces=traces, event=index, start_s=chosen.start_s, end_s=chosen.end_s,
        offset_s=np.zeros(job.ranks), iteration=shown, iteration_s=chosen.makespan_s, gradients=gradients,
    )  # fmt: skip


def _trace(job: Job, rank: int, played: list[Replayed], shown: int) -> tuple[RankTrace, dict[int, int]]:
    """The trace of `rank`, and the event of each op of iteration `shown`."""
    host = job.hosts[rank] if job.hosts else f"node {rank}"
    recorder = Recorder(rank, job.ranks, host=host, epoch_s=0.0, lanes=[Lane(*lane) for lane in LANES])
    rows: dict[tuple[int, int], int] = {}
    at_s = 0.0
    for number, run in enumerate(played):
        graph = run.graph
        recorder.sequence = number * (len(job.buckets) + job.metrics)
        for op in np.flatnonzero(graph.op_rank() == rank).tolist():
            op_type = graph.ops.op_type[op]
            kind, name = Kind(graph.op_types.kind[op_type]), graph.op_types.name[op_type]
            if kind == Kind.DELAY:
                continue
            more = {"bytes": graph.op_types.bytes[op_type], "gradient": name.startswith("backward")}
            more |= {"collective": graph.op_types.collective[op_type]}
            if graph.ops.transfer[op] != NO_TRANSFER:
                more["group"] = 0
            if kind == Kind.COLLECTIVE:
                more["sequence"], recorder.sequence = recorder.sequence, recorder.sequence + 1
            lane = [lane for lane, _ in LANES].index(graph.streams.name[graph.ops.stream[op]])
            what = WHAT_OF_NAME.get(name, WHAT_OF_KIND[kind])
            rows[number, op] = recorder.add(name, what, at_s + run.start_s[op], at_s + run.end_s[op], lane, **more)
        recorder.steps.append((at_s, at_s + run.makespan_s))
        at_s += run.makespan_s
    for (number, op), row in rows.items():
        before = played[number].graph.ops.before(op).tolist()
        recorder.causes += [(rows[number, cause], row) for cause in before if (number, cause) in rows]
    trace = replace(recorder.trace(), format="switchml", backend="", about=dict(job.about))
    unnested = replace(trace.events, parent=np.full(len(trace.events), NONE, np.int32))
    return replace(trace, events=unnested), {op: recorder.place[row] for (n, op), row in rows.items() if n == shown}


def wire_of(joined: Joined, rank: int, loss: float = 0.0, timeout_s: float = 0.004, chunks: int = 1000) -> Wire:
    """Packets of each all-reduce of `rank` in the joined iteration, evenly spread; a share `loss` is retransmitted
    after `timeout_s`."""
    events = joined.traces[rank].events
    records = []
    for op in np.flatnonzero((joined.graph.op_kind() == Kind.COLLECTIVE) & (joined.graph.op_rank() == rank)):
        start_s, end_s = joined.start_s[op], joined.end_s[op]
        tensor = int(events.sequence[joined.event[op]])
        lost = np.zeros(chunks, bool)
        lost[:: max(int(1 / loss), 1) if loss else chunks + 1] = loss > 0
        stalls_s = timeout_s * lost.sum()
        step_s = (end_s - start_s - stalls_s) / chunks
        assert step_s > 0, "more stalls than the all-reduce has time"
        at_s = start_s
        for chunk in range(chunks):
            records.append((at_s, WireWhat.SENT, tensor, chunk))
            if lost[chunk]:
                at_s += timeout_s
                records.append((at_s, WireWhat.RESENT, tensor, chunk))
            at_s += step_s
            records.append((at_s, WireWhat.RECEIVED, tensor, chunk))
    records.sort(key=lambda record: record[0])
    at_s, what, tensor, chunk = (np.array(column) for column in zip(*records, strict=True))
    zeros = np.zeros(len(at_s), np.int32)
    return Wire(
        at_s=at_s, what=what.astype(np.int8), job=zeros, tensor=tensor, chunk=chunk, version=zeros.astype(np.int8),
        bytes=zeros + 1064,
    )  # fmt: skip
