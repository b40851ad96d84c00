"""Synthetic traces of ranks that train with DDP, in the form of `read`, with clocks that a test chooses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from emulator.jobs.workload.graph import Collective
from emulator.traces.events import NONE, Events, Group, Lane, LaneKind, RankTrace, What, Wire

NODE = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
COPY_BACK = "torch.distributed.ddp.reducer::copy_bucket_to_grad"


@dataclass
class Recorder:
    """Collects one rank's events; lanes 0 (main thread), 1 and 2 (transports)."""

    rank: int
    world_size: int
    host: str = "vm"
    epoch_s: float = 1e9
    lanes: list[Lane] = field(
        default_factory=lambda: [
            Lane("main", LaneKind.HOST),
            Lane("transport 0", LaneKind.TRANSPORT),
            Lane("transport 1", LaneKind.TRANSPORT),
        ]
    )
    rows: list[dict] = field(default_factory=list)
    causes: list[tuple[int, int]] = field(default_factory=list)
    steps: list[tuple[float, float]] = field(default_factory=list)
    sequence: int = 0
    place: dict[int, int] = field(default_factory=dict)
    """Of each row, which event it is in the last `trace`."""

    def add(self, name: str, what: What, start_s: float, end_s: float, lane: int = 0, **more) -> int:
        self.rows.append({"name": name, "what": what, "start_s": start_s, "end_s": end_s, "lane": lane, **more})
        return len(self.rows) - 1

    def all_reduce(self, launch: int, start_s: float, end_s: float, size: float, lane: int = 1) -> int:
        row = self.add(
            "gloo:all_reduce", What.COLLECTIVE, start_s, end_s, lane,
            collective=Collective.ALL_REDUCE, group=0, sequence=self.sequence, bytes=size,
        )  # fmt: skip
        self.sequence += 1
        self.causes.append((launch, row))
        return row

    def trace(self, wire: Wire | None = None) -> RankTrace:
        rows = self.rows
        order = sorted(range(len(rows)), key=lambda i: (rows[i]["lane"], rows[i]["start_s"], -rows[i]["end_s"], i))
        self.place = place = {old: new for new, old in enumerate(order)}
        rows = [rows[i] for i in order]
        names = sorted({row["name"] for row in rows})
        parent, stack = [], []
        for number, row in enumerate(rows):
            while stack and (rows[stack[-1]]["lane"] != row["lane"] or rows[stack[-1]]["end_s"] <= row["start_s"]):
                stack.pop()
            parent.append(stack[-1] if stack else NONE)
            stack.append(number)

        def column(name: str, default, dtype) -> np.ndarray:
            return np.array([row.get(name, default) for row in rows], dtype)

        events = Events(
            name=np.array([names.index(row["name"]) for row in rows], np.int32), what=column("what", 0, np.int8),
            lane=column("lane", 0, np.int32), start_s=column("start_s", 0.0, np.float64),
            duration_s=column("end_s", 0.0, np.float64) - column("start_s", 0.0, np.float64),
            parent=np.array(parent, np.int32), collective=column("collective", 0, np.int8),
            group=column("group", NONE, np.int32), sequence=column("sequence", NONE, np.int64),
            peer=column("peer", NONE, np.int32), bytes=column("bytes", 0.0, np.float64),
            gradient=column("gradient", False, np.bool_),
        )  # fmt: skip
        return RankTrace(
            rank=self.rank, world_size=self.world_size, host=self.host, source=Path(f"rank-{self.rank}.json"),
            format="kineto", epoch_s=self.epoch_s, names=names, lanes=self.lanes,
            groups=[Group("0", tuple(range(self.world_size)))], events=events,
            causes=np.array([(place[a], place[b]) for a, b in self.causes], np.int32).reshape(-1, 2),
            steps=np.array(self.steps, np.float64).reshape(-1, 2), backend="gloo", wire=wire,
        )  # fmt: skip


@dataclass(frozen=True)
class Job:
    """Milliseconds. `backward`: of each layer, one gradient each, the first to become final first."""

    forward: float = 10.0
    backward: tuple[float, ...] = (8.0, 8.0, 8.0, 8.0)
    sizes: tuple[float, ...] = (1e6, 1e6, 1e6, 1e6)
    buckets: tuple[int, ...] = (0, 0, 1, 1)
    reduce: tuple[float, ...] = (12.0, 20.0)
    optimizer: float = 3.0
    gap: float = 0.1
    """Before each operator."""
    launch: float = 0.05
    copy: float = 0.2
    disturbed: float = 0.0
    """By so many times what they take operators are longer on average while their rank's latest all-reduce runs."""


def ddp(
    job: Job = Job(), *, ranks: int = 2, iterations: int = 1, slowness: Sequence[float] = (),
    late_end: Sequence[float] = (), clocks: Sequence[float] = (), drifts: Sequence[float] = (), jitter: float = 0.0,
    seed: int = 0, hosts: bool = False,
) -> list[RankTrace]:  # fmt: skip
    """What profilers would see: `slowness` of each rank; `late_end`: milliseconds by which each rank's record of an
    all-reduce ends later; `clocks`: what each rank's clock is ahead, in seconds; `drifts`: seconds gained a second;
    `jitter`: of all-reduces' recorded ends, standard deviation in milliseconds."""
    rng = np.random.default_rng(seed)
    slowness = list(slowness) or [1.0] * ranks
    late_end = list(late_end) or [0.0] * ranks
    recorders = [
        Recorder(
            rank, ranks, host=f"host{rank}" if hosts else "vm", epoch_s=1e9 + (list(clocks) or [0.0] * ranks)[rank]
        )
        for rank in range(ranks)
    ]
    now = [0.0] * ranks
    for _ in range(iterations):
        now = _iteration(job, recorders, now, slowness, late_end, jitter, rng)
    if drifts:
        for recorder, drift in zip(recorders, drifts, strict=True):
            for row in recorder.rows:
                row["start_s"], row["end_s"] = row["start_s"] * (1 + drift), row["end_s"] * (1 + drift)
            recorder.steps = [(a * (1 + drift), b * (1 + drift)) for a, b in recorder.steps]
    return [recorder.trace() for recorder in recorders]


def _iteration(job, recorders, now, slowness, late_end, jitter, rng) -> list[float]:
    ms = 1e-3
    began = list(now)
    ready: list[list[float]] = []  # by bucket, by rank
    launches: list[list[int]] = []
    counts = np.bincount(job.buckets)
    for rank, recorder in enumerate(recorders):
        slow, at = slowness[rank] * ms, now[rank]

        def work(name: str, length: float, recorder=recorder, slow=slow, rank=rank, **more) -> None:
            nonlocal at
            at += job.gap * slow
            bucket = sum(len(ranks) > rank for ranks in ready) - 1
            if job.disturbed and bucket >= 0 and at < ready[bucket][rank] + job.reduce[bucket] * ms:
                length *= 1 + job.disturbed * max(0.0, rng.uniform(-0.5, 2.5))
            recorder.add(name, What.COMPUTE, at, at + length * slow, **more)
            at += length * slow

        work("aten::linear", job.forward)
        gradients = 0
        for layer, length in enumerate(job.backward):
            work("aten::mm", length)
            node = at + job.gap * slow
            at = node
            bucket = job.buckets[layer]
            recorder.add("torch::autograd::AccumulateGrad", What.COMPUTE, at, at + 0.01 * slow,
                         gradient=True, bytes=job.sizes[layer])  # fmt: skip
            at += 0.01 * slow
            gradients += 1
            if gradients == counts[bucket]:
                gradients = 0
                launch = recorder.add("c10d::allreduce_", What.LAUNCH, at, at + job.launch * slow)
                if len(ready) <= bucket:
                    ready.append([])
                    launches.append([])
                ready[bucket].append(at)
                launches[bucket].append(launch)
                at += job.launch * slow
            recorder.add(NODE, What.SCOPE, node, at)
        now[rank] = at
    done = [0.0] * len(recorders)
    sizes = np.bincount(job.buckets, weights=job.sizes)
    ends = []
    for bucket, length in enumerate(job.reduce):
        start = [max(at + 0.02 * ms, done[rank]) for rank, at in enumerate(ready[bucket])]
        end = max(start) + length * ms
        for rank, recorder in enumerate(recorders):
            noise = abs(rng.normal(0.0, jitter)) * ms if jitter else 0.0
            recorded = end + late_end[rank] * ms + noise
            recorder.all_reduce(launches[bucket][rank], start[rank], recorded, float(sizes[bucket]))
            done[rank] = recorded
        ends.append([done[rank] for rank in range(len(recorders))])
    for rank, recorder in enumerate(recorders):
        slow, at = slowness[rank] * ms, now[rank]
        for bucket, count in enumerate(counts):
            at = max(at, ends[bucket][rank])
            for _ in range(count):
                at += 0.02 * slow
                recorder.add(COPY_BACK, What.COMPUTE, at, at + job.copy * slow)
                at += job.copy * slow
        at += job.gap * slow
        recorder.add("Optimizer.step#SGD.step", What.SCOPE, at, at + job.optimizer * slow)
        recorder.add("aten::add_", What.COMPUTE, at, at + job.optimizer * slow)
        at += job.optimizer * slow + 0.05 * slow
        recorder.steps.append((began[rank], at))
        now[rank] = at
    return now
