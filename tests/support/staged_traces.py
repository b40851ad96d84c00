"""Kineto traces of DDP over Gloo with tensors of an accelerator, played here by a few lines of their own: a bucket is
copied down on a stream from a pool, summed by one of two threads of Gloo's, copied up by that thread, and backward's
thread waits for one bucket after the other and lets its stream wait for the copies. Every other iteration looks once
more whether memory is free, before a wait and after it.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path

import numpy as np

from host_agent.packet_log import PACKET
from host_agent.recording import CALL
from tests.support.kineto_data import span, write

POOL = 5
"""Streams that copies take in turn."""
LAUNCH, APART, LATENCY = 5.0, 3.0, 2.0
"""µs: what a call takes, what lies between two, and from a call's end to the start of what it launched."""


@dataclasses.dataclass(frozen=True)
class Staged:
    """Times in µs."""

    buckets: int = 4
    iterations: int = 4
    kernel: float = 400.0
    copy: float = 150.0
    all_reduce: float = 3000.0
    optimizer: float = 500.0
    copies_back: bool = True
    """Gradients are no views of buckets."""
    named: bool = True
    """Threads of Gloo's have their names."""
    agents: bool = False
    """Not Gloo sums but agents of ours, one bucket after the other."""
    captured: bool = False
    """By `switchml trace capture`, which says where backward waits for its buckets."""


class _Player:
    def __init__(self, job: Staged) -> None:
        self.job, self.events, self.correlation = job, [], 0
        self.calls: list[tuple[float, float]] = []  # of an agent: from its submission to its end
        self.at = {"main": 0.0, "backward": 0.0}  # host threads: until when they are busy
        self.free: dict[int, float] = {}  # streams
        self.gloo = [0.0, 0.0]
        self.taken = 0

    def call(self, thread: str, name: str, lasts: float = LAUNCH, **more) -> float:
        """A host span; returns its end."""
        tid = {"main": 1, "backward": 2}[thread]
        begin = self.at[thread] + APART
        self.events.append(span(name, begin, lasts, tid=tid, **more))
        self.at[thread] = begin + lasts
        return self.at[thread]

    def launch(self, thread: str, kind: str, name: str, lasts: float, stream: int, after: float = 0.0) -> float:
        """A call and what it launches, behind `after`; returns when that is over."""
        self.correlation += 1
        call = "cudaLaunchKernel" if kind == "kernel" else "cudaMemcpyAsync"
        called = self.call(thread, call, cat="cuda_runtime", correlation=self.correlation)
        return self.device(kind, name, lasts, stream, max(called + LATENCY, after), self.correlation)

    def device(self, kind: str, name: str, lasts: float, stream: int, ready: float, correlation: int) -> float:
        begin = max(ready, self.free.get(stream, 0.0))
        self.free[stream] = begin + lasts
        args = {"device": 0, "stream": stream, "correlation": correlation, "bytes": 1 << 20}
        self.events.append(span(name, begin, lasts, tid=stream, cat=kind, pid=0, args=args))
        return self.free[stream]

    def iteration(self, number: int) -> None:
        job, begin = self.job, self.at["main"] + APART
        self.launch("main", "kernel", "forward", job.kernel, 7)
        self.at["backward"] = self.at["main"] + APART
        works = [self.bucket(bucket) for bucket in range(job.buckets)]
        waits = self.at["backward"] + 1.0
        for bucket, (summed, copied) in enumerate(works):
            is_odd = bucket == 1 and number % 2
            if is_odd:
                self.call("backward", "cudaEventQuery", 1.0, cat="cuda_runtime")
            self.at["backward"] = max(self.at["backward"], summed)
            if is_odd:
                self.call("backward", "cudaStreamIsCapturing", 1.0, cat="cuda_runtime")
            self.call("backward", "cudaStreamWaitEvent", 1.0, cat="cuda_runtime")
            self.free[7] = max(self.free[7], copied)
            if job.copies_back:
                first = self.at["backward"] + APART
                done = self.launch("backward", "gpu_memcpy", "Memcpy DtoD (Device -> Device)", 2.0, 7)
                name = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
                self.events.append(span(name, first, self.at["backward"] - first, tid=2))
                self.free[7] = done
        if job.captured:
            lasts = self.at["backward"] + 1.0 - waits
            self.events.append(span("switchml.wait_for_buckets", waits, lasts, tid=2, cat="user_annotation"))
        self.at["main"] = self.at["backward"]
        self.call("main", "aten::empty")
        done = self.launch("main", "kernel", "multi_tensor_apply_kernel", job.optimizer, 7)
        begun = self.at["main"] + APART
        self.call("main", "cudaDeviceSynchronize", done + 2.0 - begun, cat="cuda_runtime")
        end = self.at["main"]
        self.events.append(span(f"ProfilerStep#{number}", begin - 1.0, end - begin + 2.0, cat="user_annotation"))
        for event in self.events:
            event["args"].setdefault("Record function id", 0)

    def bucket(self, bucket: int) -> tuple[float, float]:
        """A part of backward and its all-reduce; returns when the sum was there, and copied up."""
        job, stream = self.job, 20 + self.taken % POOL
        self.taken += 1
        node = self.at["backward"] + APART
        done = self.launch("backward", "kernel", f"backward {bucket}", job.kernel, 7)
        gradient = self.at["backward"] + APART
        self.at["backward"] = gradient
        caller = self.at["backward"] + APART
        landed = self.launch("backward", "gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", job.copy, stream, after=done)
        called = self.at["backward"]
        self.events += [
            span("c10d::allreduce_", caller - 1.0, called - caller + 2.0, tid=2),
            span("torch::autograd::AccumulateGrad", gradient, called - gradient + 3.0, tid=2),
            span("autograd::engine::evaluate_function: AddmmBackward0", node - 1.0, called - node + 5.0, tid=2),
        ]
        self.at["backward"] += 4.0
        if job.agents:
            return self.by_agent(caller, called, landed, stream)
        thread = min((0, 1), key=self.gloo.__getitem__)
        begin = max(called + 4.0, self.gloo[thread] + 4.0)
        went_on = max(begin + 1.0, landed) + 2.0
        summed = went_on + job.all_reduce
        self.correlation += 1
        more = {"tid": 30 + thread, "cat": "cuda_runtime"}
        self.events += [
            span("gloo:all_reduce", begin, summed + 20.0 - begin, tid=30 + thread, cat="user_annotation"),
            span("cudaStreamSynchronize", begin + 1.0, went_on - begin - 1.0, **more),
            span("aten::copy_", summed, 10.0, tid=30 + thread),
            span("cudaMemcpyAsync", summed + 1.0, LAUNCH, correlation=self.correlation, **more),
            span("cudaEventRecord", summed + 12.0, 2.0, **more),
            span("cudaEventRecordWithFlags", summed + 22.0, 1.0, **more),
        ]
        self.gloo[thread] = summed + 23.0
        copied = self.device(
            "gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", job.copy, stream, summed + 8.0, self.correlation
        )
        return summed + 20.0, copied

    def by_agent(self, caller: float, called: float, landed: float, stream: int) -> tuple[float, float]:
        """One thread waits for the copy down and submits, another launches the copy up."""
        begin = landed + 2.0
        summed = max(begin, self.calls[-1][1] if self.calls else 0.0) + self.job.all_reduce
        number = len(self.calls)
        self.calls.append((begin, summed))
        self.correlation += 1
        name = f"switchml.all_reduce#{number}"
        self.events += [
            span(name, caller - 0.5, called - caller + 1.0, tid=2, cat="user_annotation"),
            span("cudaEventSynchronize", called + 3.0, landed + 1.0 - called - 3.0, tid=40, cat="cuda_runtime"),
            span("cudaMemcpyAsync", summed + 5.0, LAUNCH, tid=41, cat="cuda_runtime", correlation=self.correlation),
            span("cudaEventRecord", summed + 11.0, 2.0, tid=41, cat="cuda_runtime"),
        ]
        name = "Memcpy HtoD (Pinned -> Device)"
        copied = self.device("gpu_memcpy", name, self.job.copy, stream, summed + 12.0, self.correlation)
        return summed + 20.0, copied


def capture(folder: Path, job: Staged, ranks: int = 2) -> float:
    """Write rank-N.json of all ranks, which do the same; returns how long an iteration takes, in seconds."""
    player = _Player(job)
    for number in range(job.iterations):
        player.iteration(number)
    names = {1: "python", 2: "pt_autograd_0", 30: "pt_gloo_runloop", 31: "pt_gloo_runloop"}
    threads = [
        {"ph": "M", "name": "thread_name", "pid": 10, "tid": tid, "args": {"name": name}}
        for tid, name in names.items()
        if job.named or tid < 30
    ]
    for rank in range(ranks):
        about = {"backend": "gloo", "rank": rank, "world_size": ranks}
        head = {"baseTimeNanoseconds": 10**18, "host_name": "node", "distributedInfo": about}
        path = write(folder / f"rank-{rank}.json", [*player.events, *threads], **head)
        if job.captured:
            path.with_suffix(".json.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
            path.with_suffix(".about.json").write_text(json.dumps(_about(job, rank, ranks)))
        if job.agents:
            rows = [
                (at, begin * 1e3, begin * 1e3, end * 1e3, 1 << 20, -1, 0, False)
                for at, (begin, end) in enumerate(player.calls)
            ]
            arrays = {"calls_0": np.array(rows, CALL), "packets_0": np.empty(0, PACKET)}
            np.savez(path.with_suffix(".wire.npz"), **arrays)
    return (player.at["main"] + APART) * 1e-6 / job.iterations


def _about(job: Staged, rank: int, ranks: int) -> dict:
    """rank-N.about.json of a capture; clocks of both kinds show the same."""
    names = [f"layer{bucket}.weight" for bucket in range(job.buckets)]
    ddp = {
        "module": "Net", "bucket_cap_bytes": 25 << 20, "comm_hook": "", "buckets": [[name] for name in names],
        "parameters": {name: {"shape": [1 << 19], "bytes": 1 << 20} for name in names}, "gradients": names,
    }  # fmt: skip
    agent = {"job": "job", "tag": 1, "ranks": list(range(ranks)), "transport": "udp", "packets_lost": 0}
    return {
        "format": "switchml", "version": 1, "rank": rank, "world_size": ranks, "host": "node", "backend": "gloo",
        "clock": [{"monotonic_ns": at, "unix_ns": 10**18 + at} for at in (0, 10**9)], "pings": None,
        "iterations": [{"number": number, "kind": "captured"} for number in range(job.iterations)], "ddp": [ddp],
        "codec": "", "versions": {}, "agents": [agent] if job.agents else [],
    }  # fmt: skip
