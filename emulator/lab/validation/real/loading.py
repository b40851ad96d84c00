"""A planned loader over a slow link, compared with torch's DataLoader and `emulate --loader solar`.

An HTTP server in one network namespace serves the samples as one .npy file; all ranks are in another, behind a
rate-limited link. The server delays each response, as object stores do. Ranks only load: nothing trains. The plain
loader has no cache, so all its epochs are alike and one is measured. It also gives the one constant that is not in the
plan: the CPU time of a read.
"""

import asyncio
import contextlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np

from emulator.jobs.workload.loading.loading import Dataset, Storage, solar
from emulator.lab.bench.ranks.process import CallableRank, RankPlace
from emulator.lab.bench.ranks.team import Team, places, training_context
from emulator.lab.validation.real import litdata_loading as litdata
from emulator.lab.validation.rows import Row
from emulator.networks.testbed.namespaces import Lab
from emulator.networks.testbed.star import LinkOptions, Star
from host_agent.loading import PlannedLoader, open_source
from host_agent.loading.execution import WINDOWS
from host_agent.loading.loader import WINDOW
from host_agent.loading.sources.files import REMOTE_READS
from host_agent.loading.sources.records import GAP_BYTES
from switchml.protocol import sizes
from switchml.runtime.folders import TemporaryFolder

PORT = 8080
REPEATS = 3
"""Runs of each loader except the slow ones, of which the median is used."""
FILE = "data.npy"
NUMBER_BYTES = 8
"""Each sample begins with its number, int64."""


def serve(folder: str, latency_s: float) -> None:
    """Serve the files of `folder` by HTTP, with range requests, until this process ends; an S3 client can read them as
    objects of buckets named like the subfolders. Prints its counters as JSON for each line on stdin."""
    from aiohttp import web

    contents: dict[str, bytes] = {}
    sent = {"reads": 0, "bytes": 0}

    async def answer(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in contents:
            if not (path := Path(folder, name)).is_file():
                return web.Response(status=404)
            contents[name] = path.read_bytes()
        content = contents[name]
        headers = {"Accept-Ranges": "bytes", "ETag": '"1"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        if request.method == "HEAD":
            return web.Response(headers=headers | {"Content-Length": str(len(content))})
        await asyncio.sleep(latency_s)
        wanted = request.http_range
        start, stop = wanted.start or 0, wanted.stop if wanted.stop is not None else len(content)
        sent["reads"] += 1
        sent["bytes"] += stop - start
        if wanted.start is None:
            return web.Response(body=content, headers=headers)
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
        return web.Response(status=206, body=content[start:stop], headers=headers)

    def report() -> None:
        if not sys.stdin.readline():
            asyncio.get_running_loop().remove_reader(sys.stdin)
        print(json.dumps(sent), flush=True)

    async def listen(_: web.Application) -> None:
        asyncio.get_running_loop().add_reader(sys.stdin, report)

    application = web.Application()
    application.router.add_route("*", "/{name:.+}", answer)
    application.on_startup.append(listen)
    web.run_app(application, port=PORT, print=lambda *_: print("ready", flush=True), access_log=None)


def plain(rank: int, plan: dict[str, Any]) -> Iterable[Any]:
    """Batches of torch's DataLoader, for one epoch."""
    from torch.utils.data import DataLoader
    from torch.utils.data.distributed import DistributedSampler

    items: Any = _Items(_connected(plan))
    sampler: Any = DistributedSampler(items, plan["ranks"], rank, drop_last=True)
    return DataLoader(items, plan["batch"], sampler=sampler, drop_last=True)


def planned(rank: int, plan: dict[str, Any], order: str = "distributed") -> Iterable[Any]:
    """Batches of the planned loader, for all epochs."""
    bytes_each = plan["buffer_samples"] * plan["sample_bytes"]
    place: Any = {"rank": rank, "world_size": plan["ranks"], "peers": None}
    loader = PlannedLoader(
        _connected(plan), plan["batch"], plan["epochs"], buffer_bytes=bytes_each, order=order, drop_last=True, **place
    )
    return (batch for _ in range(plan["epochs"]) for batch in loader)


def _connected(plan: dict[str, Any]) -> Any:
    source: Any = open_source(f"{plan['storage']}/{FILE}")
    source.read([0])
    return source


OPENED: dict[str, Callable[[int, dict[str, Any]], Iterable[Any]]] = {
    "plain": plain,
    "planned": planned,
    "planned, blocks": lambda rank, plan: planned(rank, plan, "blocks"),
    # With one sample per chunk there is nothing to cache: all epochs are alike.
    "litdata, samples": lambda rank, plan: litdata.batches(rank, plan, 1, 1),
    "litdata, chunks": lambda rank, plan: litdata.batches(rank, plan, plan["chunk_samples"], plan["epochs"]),
}
"""Available loaders. Blocks and chunks keep neighboring samples in nearby batches. The other loaders draw a batch from
the whole data set."""


class _Items:
    """A map-style data set over the same storage."""

    def __init__(self, source: Any):
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Any:
        (sample,) = self._source.read([index])
        if isinstance(sample, Exception):
            raise sample
        return sample.copy()


@dataclass(frozen=True)
class Loaded:
    """Results of one rank. `steps`: the numbers of the samples in each batch."""

    seconds: float
    cpu_s: float
    steps: list[list[int]]


class LoadingRank(CallableRank):
    """A rank with an open loader."""

    def __init__(self, kind: str, plan: dict[str, Any], place: RankPlace):
        import torch

        torch.set_num_threads(1)
        self._batches = OPENED[kind](place.rank, plan)

    def ready(self) -> None:
        """Return once the loader is open."""

    def load(self) -> Loaded:
        """Load all batches."""
        started, cpu_s = time.perf_counter(), time.process_time()
        heads = [np.asarray(batch[:, :NUMBER_BYTES]).copy() for batch in self._batches]
        seconds, cpu_s = time.perf_counter() - started, time.process_time() - cpu_s
        return Loaded(seconds, cpu_s, [head.view(np.int64).ravel().tolist() for head in heads])

    def leave(self) -> None:
        os._exit(0)  # litdata's threads may be waiting for work


@dataclass(frozen=True)
class Stage:
    """A server in the first host's namespace; ranks run in the second's."""

    star: Star
    server: subprocess.Popen[str]
    plan: dict[str, Any]

    def measured(self, kind: str) -> dict[str, Any]:
        """Run all ranks with one loader: `reads` and `bytes` as counted by the storage."""
        ranks = places(self.star.hosts[1:], self.plan["ranks"])
        with (
            TemporaryFolder("loading-cache") as cache,
            Team(training_context(), partial(LoadingRank, kind, self.plan | {"cache": cache}), ranks) as team,
        ):
            team.ask(methodcaller("ready"))
            before = self._sent()
            found: list[Loaded] = team.ask(methodcaller("load"), timeout_s=math.inf)
            sent = self._sent()
        seconds = max(each.seconds for each in found)
        steps: list[list[int]] = [sum(parts, []) for parts in zip(*(each.steps for each in found), strict=True)]
        samples = sum(map(len, steps))
        return {
            "loader": kind,
            "seconds": seconds,
            "samples_per_s": samples / seconds,
            "samples": samples,
            "reads": sent["reads"] - before["reads"],
            "bytes": sent["bytes"] - before["bytes"],
            "spread": spread(steps, self.plan["samples"]),
            "cpu_s": sum(each.cpu_s for each in found),
        }

    def _sent(self) -> dict[str, int]:
        print(file=self.server.stdin, flush=True)
        assert self.server.stdout is not None
        sent: dict[str, int] = json.loads(self.server.stdout.readline())
        return sent


def spread(steps: list[list[int]], samples: int) -> float:
    """Shuffle quality: number of data set parts that a global batch draws from, relative to uniform draws; 1 for a full
    shuffle. The data set has as many parts as a batch has samples."""
    shares = []
    for step in steps:
        parts = len({sample * len(step) // samples for sample in step})
        # Drawing without replacement: a part is missed if all samples come from the others.
        inside = samples / len(step)
        missed = np.prod([max(samples - inside - drawn, 0) / (samples - drawn) for drawn in range(len(step))])
        shares.append(parts / (len(step) * (1 - missed)))
    return float(np.mean(shares))


def predicted(plan: dict[str, Any], rate_bps: float, latency_s: float, read_cpu_s: float) -> dict[str, Any]:
    """`emulate --loader solar`'s model of the planned loader. `read_cpu_s`: CPU seconds per read of the plain loader,
    scaled as there are fewer cores than ranks."""
    dataset = Dataset(
        samples=plan["samples"],
        sample_bytes=plan["sample_bytes"],
        global_batch=plan["batch"] * plan["ranks"],
        ranks=plan["ranks"],
        epochs=plan["epochs"],
        buffer_samples=plan["buffer_samples"],
    )
    storage = Storage(
        bytes_per_s=rate_bps / 8 * sizes.TCP_SHARE,
        seek_s=latency_s,
        reads_at_once=REMOTE_READS,
        read_cpu_s=read_cpu_s * max(1.0, plan["ranks"] / len(os.sched_getaffinity(0))),
    )
    loads = solar(dataset, storage, window=WINDOW, gap_bytes=GAP_BYTES, reorder=False)
    seconds = float(loads.seconds(dataset, storage).sum(axis=0).max())
    totals = {"reads": int(loads.reads.sum()), "bytes": int(loads.read_samples.sum() * dataset.sample_bytes)}
    samples = int(loads.batch.sum())
    return {"loader": "emulated", "seconds": seconds, "samples_per_s": samples / seconds, "samples": samples, **totals}


@contextlib.contextmanager
def stage(plan: dict[str, Any], rate_bps: float, latency_s: float, times: float) -> Iterator[Stage]:
    """Storage with the plan's samples, behind the link. Needs root."""
    with TemporaryFolder("loading") as folder, Lab() as lab:
        data = np.zeros((plan["samples"], plan["sample_bytes"]), np.uint8)
        data[:, :NUMBER_BYTES] = np.arange(len(data))[:, None].view(np.uint8)
        np.save(Path(folder, FILE), data)
        if plan.get("against") == litdata.NAME:
            for chunk in {1, plan["chunk_samples"]}:
                litdata.write_chunks(Path(folder), data, chunk)
        star = Star(lab, 2, LinkOptions(rate_bps=rate_bps))
        buffer_samples = int(plan["samples"] / times / plan["ranks"])
        held = buffer_samples + WINDOWS * WINDOW * plan["batch"]
        plan |= {
            "storage": f"http://{star.address(0)}:{PORT}",
            "buffer_samples": buffer_samples,
            "cache_bytes": held * plan["sample_bytes"],
        }
        server = star.hosts[0].popen(
            [sys.executable, "-m", __name__, folder, str(latency_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stdout is not None
            server.stdout.readline()
            yield Stage(star, server, plan)
        finally:
            server.kill()
            server.wait()
            star.close()


def compare(plan: dict[str, Any], rate_bps: float, latency_s: float, times: float) -> list[dict[str, Any]]:
    """Results of the plain loader, the planned one, and the emulator's prediction of the latter; with `against` in the
    plan, also those of a third-party loader, and of both with blocks that stay together. `times`: the data set's size
    over that of all ranks' buffers. Needs root."""
    with stage(plan, rate_bps, latency_s, times) as place:
        found = [place.measured("plain"), _median([place.measured("planned") for _ in range(REPEATS)])]
        found.append(predicted(plan, rate_bps, latency_s, found[0]["cpu_s"] / found[0]["reads"]))
        if plan.get("against") == litdata.NAME:
            found.append(place.measured("litdata, samples"))
            pairs = [(place.measured("planned, blocks"), place.measured("litdata, chunks")) for _ in range(REPEATS)]
            found += map(_median, zip(*pairs, strict=True))
    return found


def _median(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The run of median duration."""
    return sorted(runs, key=lambda run: run["seconds"])[len(runs) // 2]


def rows(progress: Callable[[str], None] = lambda line: None) -> list[Row]:
    """Reads, bytes and seconds of the planned loader."""
    progress("a planned loader behind 200 Mbit/s")
    plan = {"ranks": 4, "samples": 2000, "sample_bytes": 4096, "batch": 16, "epochs": 5}
    _, planned, emulated = compare(plan, 200e6, 10e-3, 5.0)
    found = [("reads", "reads", 1.0), ("bytes", "MB", 1e-6), ("seconds", "s", 1.0)]
    return [Row(f"loader: {name}", planned[name] * to, emulated[name] * to, unit) for name, unit, to in found]


if __name__ == "__main__":
    serve(sys.argv[1], float(sys.argv[2]))
