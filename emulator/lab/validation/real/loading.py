"""A planned loader over a slow link, beside torch's DataLoader and `emulate --loader solar`.

An HTTP server in one network namespace has the samples as one .npy file; all ranks are in another, behind a link of a
limited rate. The server waits before each answer, as object stores do. Ranks only load: nothing trains. The plain
loader keeps nothing, so each of its epochs is like the first, and one is measured. It also gives the one constant that
is not in the plan: the processor time of a read.
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
"""Runs of all but the slow loaders, of which the median counts."""
FILE = "data.npy"
NUMBER_BYTES = 8
"""Samples begin with their number, int64."""


def serve(folder: str, latency_s: float) -> None:
    """The files of `folder` by HTTP, with ranges, for as long as this process lives; as S3 does, where a client reads
    objects of a bucket that is called as a folder is. Prints what it has sent, as JSON, for each line that comes in."""
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
    """Batches of torch's DataLoader, of one epoch."""
    from torch.utils.data import DataLoader
    from torch.utils.data.distributed import DistributedSampler

    items: Any = _Items(_connected(plan))
    sampler: Any = DistributedSampler(items, plan["ranks"], rank, drop_last=True)
    return DataLoader(items, plan["batch"], sampler=sampler, drop_last=True)


def planned(rank: int, plan: dict[str, Any], order: str = "distributed") -> Iterable[Any]:
    """Batches of the planned loader, of all epochs."""
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
    # Of chunks with one sample each it keeps nothing: one epoch is like another.
    "litdata, samples": lambda rank, plan: litdata.batches(rank, plan, 1, 1),
    "litdata, chunks": lambda rank, plan: litdata.batches(rank, plan, plan["chunk_samples"], plan["epochs"]),
}
"""What a rank may load with. Blocks and chunks stay together: neighbours in storage are in near-by batches. The other
loaders draw a batch from everywhere."""


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


@dataclass(frozen=True)
class Loaded:
    """What one rank did. `steps`: the numbers of the samples in each batch."""

    seconds: float
    cpu_s: float
    steps: list[list[int]]


class LoadingRank(CallableRank):
    """A rank with its loader open."""

    def __init__(self, kind: str, plan: dict[str, Any], place: RankPlace):
        import torch

        torch.set_num_threads(1)
        self._batches = OPENED[kind](place.rank, plan)

    def ready(self) -> None:
        """The loader is open."""

    def load(self) -> Loaded:
        """Load all batches."""
        started, cpu_s = time.perf_counter(), time.process_time()
        heads = [np.asarray(batch[:, :NUMBER_BYTES]).copy() for batch in self._batches]
        seconds, cpu_s = time.perf_counter() - started, time.process_time() - cpu_s
        return Loaded(seconds, cpu_s, [head.view(np.int64).ravel().tolist() for head in heads])

    def leave(self) -> None:
        os._exit(0)  # threads of litdata's may wait for more to do


@dataclass(frozen=True)
class Stage:
    """A server in the first host's namespace, and room for ranks in the second's."""

    star: Star
    server: subprocess.Popen[str]
    plan: dict[str, Any]

    def measured(self, kind: str) -> dict[str, Any]:
        """All ranks of one loader: `reads` and `bytes` as the storage counts them."""
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
    """From how many parts of the data set a global batch comes, over what it is where every sample is drawn from all:
    1 for a full shuffle. There are as many parts as samples in a batch."""
    shares = []
    for step in steps:
        parts = len({sample * len(step) // samples for sample in step})
        # Draws without putting back: a part is missed if all come from the others.
        inside = samples / len(step)
        missed = np.prod([max(samples - inside - drawn, 0) / (samples - drawn) for drawn in range(len(step))])
        shares.append(parts / (len(step) * (1 - missed)))
    return float(np.mean(shares))


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
    """The plain loader, the planned one, and what the emulator says of that; with `against` in the plan, another's
    loader, too, and both with blocks that stay together. `times`: the data set's size over that of all ranks' buffers.
    Needs root."""
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
    """What the planned loader reads, and how long it takes."""
    progress("a planned loader behind 200 Mbit/s")
    plan = {"ranks": 4, "samples": 2000, "sample_bytes": 4096, "batch": 16, "epochs": 5}
    _, planned, emulated = compare(plan, 200e6, 10e-3, 5.0)
    found = [("reads", "reads", 1.0), ("bytes", "MB", 1e-6), ("seconds", "s", 1.0)]
    return [Row(f"loader: {name}", planned[name] * to, emulated[name] * to, unit) for name, unit, to in found]


if __name__ == "__main__":
    serve(sys.argv[1], float(sys.argv[2]))
