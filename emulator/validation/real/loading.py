"""A planned loader over a slow link, beside torch's DataLoader and `emulate --loader solar`.

An HTTP server in one network namespace has the samples as one .npy file; all ranks are in another, behind a link of a
limited rate. The server waits before each answer, as object stores do. Ranks only load: nothing trains. The plain
loader keeps nothing, so each of its epochs is like the first, and one is measured. It also gives the one constant that
is not in the plan: the processor time of a read.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from emulator.testbed.namespaces import Lab
from emulator.testbed.star import LinkOptions, Star
from emulator.validation.rows import Row
from emulator.workload.loading.loading import Dataset, Storage, solar
from host_agent.loading import PlannedLoader, open_source
from host_agent.loading.loader import WINDOW
from host_agent.loading.sources.records import GAP_BYTES
from switchml.errors import JobError
from switchml.runtime.folders import TemporaryFolder

PORT = 8080
TCP_SHARE = 1448 / 1514
"""Of a full frame, what TCP carries; tbf counts the Ethernet header."""
READS_AT_ONCE = 32
"""Of a planned rank: 16 of each of two windows."""


def serve(path: str, latency_s: float) -> None:
    """HTTP with ranges, for as long as this process lives."""
    from aiohttp import web

    content = Path(path).read_bytes()

    async def answer(request: web.Request) -> web.Response:
        headers = {"Accept-Ranges": "bytes", "ETag": '"1"'}
        if request.method == "HEAD":
            return web.Response(headers=headers | {"Content-Length": str(len(content))})
        await asyncio.sleep(latency_s)
        wanted = request.http_range
        start, stop = wanted.start or 0, wanted.stop if wanted.stop is not None else len(content)
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
        return web.Response(status=206, body=content[start:stop], headers=headers)

    application = web.Application()
    application.router.add_route("*", "/data.npy", answer)
    web.run_app(application, port=PORT, print=lambda *_: print("ready", flush=True), access_log=None)


def load(kind: str, rank: int, plan: dict[str, Any]) -> None:
    """One rank: says that it is ready, waits for a line, loads, prints what it did as JSON."""
    import torch
    from torch.utils.data import DataLoader
    from torch.utils.data.distributed import DistributedSampler

    torch.set_num_threads(1)
    source: Any = open_source(plan["url"])
    source.read([0])  # connected
    each = {"batch_size": plan["batch"]}
    loader: Any
    if kind == "planned":
        bytes_each = plan["buffer_samples"] * plan["sample_bytes"]
        place = {"rank": rank, "world_size": plan["ranks"], "peers": None}
        loader = PlannedLoader(source, **each, epochs=plan["epochs"], buffer_bytes=bytes_each, drop_last=True, **place)
        epochs = plan["epochs"]
    else:
        items: Any = _Items(source)
        sampler: Any = DistributedSampler(items, plan["ranks"], rank, drop_last=True)
        loader = DataLoader(items, **each, sampler=sampler, drop_last=True)
        epochs = 1
    print("ready", flush=True)
    sys.stdin.readline()
    before = (source.traffic.reads, source.traffic.bytes)
    started, cpu_s = time.perf_counter(), time.process_time()
    samples = sum(len(batch) for _ in range(epochs) for batch in loader)
    took_s = time.perf_counter() - started
    reads, size = source.traffic.reads - before[0], source.traffic.bytes - before[1]
    cpu_s = time.process_time() - cpu_s
    print(
        json.dumps({"samples": samples, "seconds": took_s, "reads": reads, "bytes": size, "cpu_s": cpu_s}), flush=True
    )


class _Items:
    """What a map-style data set over the same storage does."""

    def __init__(self, source: Any):
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Any:
        (sample,) = self._source.read([index])
        if isinstance(sample, Exception):
            raise sample
        return sample.copy()


def measured(kind: str, star: Star, plan: dict[str, Any]) -> dict[str, Any]:
    """All ranks of one loader, in the second host's namespace."""
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-m", __name__, kind, json.dumps(plan)]
    ranks = [star.hosts[1].popen([*command, str(rank)], **pipes) for rank in range(plan["ranks"])]
    for rank in ranks:
        assert rank.stdout is not None
        if rank.stdout.readline() != "ready\n":
            raise JobError(f"a rank of the {kind} loader ended with exit code {rank.wait()}")
    for rank in ranks:
        print(file=rank.stdin, flush=True)
    found = [json.loads(rank.communicate()[0]) for rank in ranks]
    seconds = max(each["seconds"] for each in found)
    totals = {name: sum(each[name] for each in found) for name in ("samples", "reads", "bytes", "cpu_s")}
    return {"loader": kind, "seconds": seconds, "samples_per_s": totals["samples"] / seconds, **totals}


def predicted(plan: dict[str, Any], rate_bps: float, latency_s: float, read_cpu_s: float) -> dict[str, Any]:
    """`emulate --loader solar`'s model of the planned ranks. `read_cpu_s`: what the plain loader's reads took of a
    processor, of which there are fewer than ranks."""
    dataset = Dataset(
        samples=plan["samples"],
        sample_bytes=plan["sample_bytes"],
        global_batch=plan["batch"] * plan["ranks"],
        ranks=plan["ranks"],
        epochs=plan["epochs"],
        buffer_samples=plan["buffer_samples"],
    )
    storage = Storage(
        bytes_per_s=rate_bps / 8 * TCP_SHARE,
        seek_s=latency_s,
        reads_at_once=READS_AT_ONCE,
        read_cpu_s=read_cpu_s * max(1.0, plan["ranks"] / len(os.sched_getaffinity(0))),
    )
    loads = solar(dataset, storage, window=WINDOW, gap_bytes=GAP_BYTES, reorder=False)
    seconds = float(loads.seconds(dataset, storage).sum(axis=0).max())
    totals = {"reads": int(loads.reads.sum()), "bytes": int(loads.read_samples.sum() * dataset.sample_bytes)}
    samples = int(loads.batch.sum())
    return {"loader": "emulated", "seconds": seconds, "samples_per_s": samples / seconds, "samples": samples, **totals}


def compare(plan: dict[str, Any], rate_bps: float, latency_s: float, times: float) -> list[dict[str, Any]]:
    """The plain loader, the planned one, and what the emulator says of that. `times`: the data set's size over that of
    all ranks' buffers. Needs root."""
    with TemporaryFolder("loading") as folder, Lab() as lab:
        path = Path(folder, "data.npy")
        np.save(path, np.zeros((plan["samples"], plan["sample_bytes"]), np.uint8))
        star = Star(lab, 2, LinkOptions(rate_bps=rate_bps))
        plan["url"] = f"http://{star.address(0)}:{PORT}/data.npy"
        plan["buffer_samples"] = int(plan["samples"] / times / plan["ranks"])
        command = [sys.executable, "-m", __name__, "server", str(path), str(latency_s)]
        server = star.hosts[0].popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            server.stdout.readline()
            rows = [measured(kind, star, plan) for kind in ("plain", "planned")]
        finally:
            server.kill()
            server.wait()
            star.close()
    return [*rows, predicted(plan, rate_bps, latency_s, rows[0]["cpu_s"] / rows[0]["reads"])]


def rows(progress: Callable[[str], None] = lambda line: None) -> list[Row]:
    """What the planned loader reads, and how long it takes."""
    progress("a planned loader behind 200 Mbit/s")
    plan = {"ranks": 4, "samples": 2000, "sample_bytes": 4096, "batch": 16, "epochs": 5}
    _, planned, emulated = compare(plan, 200e6, 10e-3, 5.0)
    found = [("reads", "reads", 1.0), ("bytes", "MB", 1e-6), ("seconds", "s", 1.0)]
    return [Row(f"loader: {name}", planned[name] * to, emulated[name] * to, unit) for name, unit, to in found]


if __name__ == "__main__":
    role, first, *others = sys.argv[1:]
    if role == "server":
        serve(first, float(others[0]))
    else:
        load(role, int(others[0]), json.loads(first))
