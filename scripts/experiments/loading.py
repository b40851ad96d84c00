"""Loading over a slow link: torch's DataLoader beside PlannedLoader, and what the emulator predicts.

    sudo python scripts/experiments/loading.py [--rate 200mbit] [--latency 10ms] [--samples 4000] [--json]

An HTTP server in one network namespace has the samples as one .npy file; all ranks are in another, behind a link of
`--rate`. The server waits `--latency` before each answer, as object stores do. Ranks only load: nothing trains. The
plain loader keeps nothing, so each of its epochs is like the first, and one is measured.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import numpy as np

from emulator.testbed.namespaces import Lab, check_rights
from emulator.testbed.star import LinkOptions, Star
from emulator.workload.loading.loading import Dataset, Storage, solar
from host_agent.loading import PlannedLoader, open_source
from host_agent.loading.loader import WINDOW
from switchml.cli.options import RATE, SECONDS, Count
from switchml.tables import Table, number, show, text

PORT = 8080
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
    source = open_source(plan["url"])
    source.read([0])  # connected
    each = {"batch_size": plan["batch"]}
    if kind == "planned":
        bytes_each = plan["buffer_samples"] * plan["sample_bytes"]
        place = {"rank": rank, "world_size": plan["ranks"], "peers": None}
        loader = PlannedLoader(source, **each, epochs=plan["epochs"], buffer_bytes=bytes_each, drop_last=True, **place)
        epochs = plan["epochs"]
    else:
        sampler = DistributedSampler(range(len(source)), plan["ranks"], rank, drop_last=True)
        loader = DataLoader(_Items(source), **each, sampler=sampler, drop_last=True)
        epochs = 1
    print("ready", flush=True)
    sys.stdin.readline()
    started, before = time.perf_counter(), (source.traffic.reads, source.traffic.bytes)
    samples = sum(len(batch) for _ in range(epochs) for batch in loader)
    took_s = time.perf_counter() - started
    reads, size = source.traffic.reads - before[0], source.traffic.bytes - before[1]
    print(json.dumps({"samples": samples, "seconds": took_s, "reads": reads, "bytes": size}), flush=True)


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
    command = [sys.executable, __file__, "--role", kind, "--plan", json.dumps(plan)]
    ranks = [star.hosts[1].popen([*command, "--rank", str(rank)], **pipes) for rank in range(plan["ranks"])]
    for rank in ranks:
        if rank.stdout.readline() != "ready\n":
            raise click.ClickException(f"a rank of the {kind} loader ended with exit code {rank.wait()}")
    for rank in ranks:
        print(file=rank.stdin, flush=True)
    found = [json.loads(rank.communicate()[0]) for rank in ranks]
    seconds = max(each["seconds"] for each in found)
    totals = {name: sum(each[name] for each in found) for name in ("samples", "reads", "bytes")}
    return {"loader": kind, "seconds": seconds, "samples_per_s": totals["samples"] / seconds, **totals}


def predicted(plan: dict[str, Any], rate_bps: float, latency_s: float) -> dict[str, Any]:
    """`emulate --loader solar`'s model of the planned ranks."""
    dataset = Dataset(
        samples=plan["samples"],
        sample_bytes=plan["sample_bytes"],
        global_batch=plan["batch"] * plan["ranks"],
        ranks=plan["ranks"],
        epochs=plan["epochs"],
        buffer_samples=plan["buffer_samples"],
    )
    storage = Storage(bytes_per_s=rate_bps / 8, seek_s=latency_s, reads_at_once=READS_AT_ONCE)
    loads = solar(dataset, storage, window=WINDOW)
    seconds = float(loads.seconds(dataset, storage).sum(axis=0).max())
    totals = {"reads": int(loads.reads.sum()), "bytes": int(loads.read_samples.sum() * dataset.sample_bytes)}
    samples = int(loads.batch.sum())
    return {"loader": "emulated", "seconds": seconds, "samples_per_s": samples / seconds, "samples": samples, **totals}


@click.command(help=__doc__)
@click.option("--ranks", type=Count(1), default=4)
@click.option("--rate", type=RATE, default="200mbit", help="Of the link to the storage.")
@click.option("--latency", type=SECONDS, default="10ms", help="Until the storage answers.")
@click.option("--samples", type=Count(1), default=4000)
@click.option("--sample-bytes", type=Count(1), default=4096)
@click.option("--micro-batch", "batch", type=Count(1), default=16, help="Of each rank.")
@click.option("--epochs", type=Count(1), default=5, help="Of the planned loader.")
@click.option("--times", type=click.FloatRange(1), default=5.0, help="The data set's size over all ranks' buffers.")
@click.option("--json", "as_json", is_flag=True)
@click.option("--role", hidden=True)
@click.option("--plan", "given", hidden=True)
@click.option("--rank", type=int, hidden=True)
def main(
    rate: float, latency: float, times: float, as_json: bool, role: str, given: str, rank: int, **plan: Any
) -> None:
    if role == "server":
        return serve(given, latency)
    if role:
        return load(role, rank, json.loads(given))
    check_rights()
    with tempfile.TemporaryDirectory() as folder, Lab() as lab:
        path = Path(folder, "data.npy")
        np.save(path, np.zeros((plan["samples"], plan["sample_bytes"]), np.uint8))
        star = Star(lab, 2, LinkOptions(rate_bps=rate))
        plan["url"] = f"http://{star.address(0)}:{PORT}/data.npy"
        plan["buffer_samples"] = int(plan["samples"] / times / plan["ranks"])
        command = [sys.executable, __file__, "--role", "server", "--plan", str(path), "--latency", f"{latency}s"]
        server = star.hosts[0].popen(command, stdout=subprocess.PIPE, text=True)
        try:
            server.stdout.readline()
            rows = [measured(kind, star, plan) for kind in ("plain", "planned")]
        finally:
            server.kill()
            server.wait()
            star.close()
    rows.append(predicted(plan, rate, latency))
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    columns = [text("loader"), *map(number, ("samples/s", "seconds", "samples", "reads", "MB"))]
    table = Table(columns, title=f"{plan['ranks']} ranks, {rate / 1e6:g} Mbit/s, {latency * 1e3:g} ms")
    for row in rows:
        table.add(
            row["loader"],
            f"{row['samples_per_s']:,.0f}",
            f"{row['seconds']:.1f}",
            *(f"{row[name]:,}" for name in ("samples", "reads")),
            f"{row['bytes'] / 1e6:.1f}",
        )
    show(table)


if __name__ == "__main__":
    main()
