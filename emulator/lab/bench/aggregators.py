"""What `switchml bench aggregators` measures: the same all-reduce through every aggregator there is, in one run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from emulator.lab.bench.allreduce import joined_ranks, start_aggregator
from emulator.lab.bench.ranks.reducing import GLOO
from emulator.lab.bench.report import busbw_factor, spread
from emulator.lab.bench.sizes import ITEM_BYTES, Case
from emulator.lab.bench.tally import Tally, ratios
from switchml.errors import ConfigError
from switchml.tables import Table, number, show, text


@dataclass
class BackendResult:
    """One backend of `switchml bench aggregators`. `transport`: how its ranks reach it; "tcp" for Gloo."""

    backend: str
    transport: str
    payload_bytes: int
    tally: Tally

    def gigabytes_per_s(self, size_bytes: int) -> float:
        """algbw: bytes of the tensor over the median time, in 10^9 bytes a second."""
        return size_bytes / self.tally.median_s / 1e9


def measure(
    size_bytes: int,
    backends: Sequence[str],
    *,
    workers: int,
    repeats: int,
    warmup: int,
    wire: str = "int32",
    report: Callable[[str], None] = lambda text: None,
) -> list[BackendResult]:
    """All-reduce `size_bytes` through each of `backends` (GLOO and AGGREGATORS), in turns: all ranks have joined all of
    them, so the times of a round saw much the same machine. Idle aggregators cost nothing: they sleep.

    Raises ConfigError for one that cannot be started, JobError or RanksDisagree if a result is wrong."""
    if len(set(backends)) < len(backends) or not backends:
        raise ConfigError(f"aggregators {', '.join(backends) or 'none'}: expected each of them once")
    case = Case((size_bytes // ITEM_BYTES,), False, repeats, warmup)
    with contextlib.ExitStack() as stack:
        started = {name: start_aggregator(name, workers, "auto", stack)[1] for name in backends if name != GLOO}
        with joined_ranks(workers, backends, case.elements, None, started, wire) as (team, transports):
            targets = {name: target() for name, target in started.items()}
            turns = [
                BackendResult(
                    name, transports.get(name, "tcp"), targets[name].payload_bytes if name in targets else 0, Tally()
                )
                for name in backends
            ]
            team.prepare(case)
            for number in range(-warmup, repeats):
                for turn in turns:
                    repeat = team.repeat(turn.backend)
                    which = "warm-up" if number < 0 else f"{number + 1} of {repeats}"
                    report(f"{turn.backend}: {repeat.seconds:.3f} s ({which})")
                    if number >= 0:
                        turn.tally.add(repeat)
    return turns


def as_json(turns: Sequence[BackendResult], size_bytes: int, workers: int) -> dict[str, Any]:
    """Times in seconds, algbw and busbw in 10^9 bytes a second as nccl-tests has them."""
    rows = []
    for turn in turns:
        algbw = turn.gigabytes_per_s(size_bytes)
        times = ratios(turn.tally, turns[0].tally)
        row = {
            "aggregator": turn.backend,
            "transport": turn.transport,
            "payload_bytes": turn.payload_bytes,
            "seconds": turn.tally.seconds,
            "median_seconds": turn.tally.median_s,
            "algbw_gb_per_s": algbw,
            "busbw_gb_per_s": algbw * busbw_factor(workers),
            "packets": turn.tally.packets("sent", "received", "retransmitted"),
            "times_as_long": median(times),
            "times_as_long_range": [min(times), max(times)],
        }
        rows.append(row)
    return {"workers": workers, "size_bytes": size_bytes, "results": rows}


def print_table(result: dict[str, Any]) -> None:
    """What `as_json` returned, on stdout."""
    first = result["results"][0]["aggregator"]
    table = Table(
        [
            text("aggregator"),
            text("transport", drop=2),
            number("payload", "B", drop=5),
            number("time", "ms"),
            number("algbw", "GB/s", drop=1),
            number("busbw", "GB/s", drop=4),
            number("resent", "%", drop=3),
            number(f"time over {first}'s"),
            number("least – most"),
        ],
        title=f"Sum of {result['size_bytes'] // 4:,} float32, {result['workers']} ranks",
    )
    for turn in result["results"]:
        packets = turn["packets"]
        low, high = turn["times_as_long_range"]
        table.add(
            turn["aggregator"],
            turn["transport"],
            str(turn["payload_bytes"] or ""),
            f"{turn['median_seconds'] * 1e3:.1f}",
            f"{turn['algbw_gb_per_s']:.4f}",
            f"{turn['busbw_gb_per_s']:.4f}",
            f"{100 * packets['retransmitted'] / packets['sent']:.1f}" if packets["sent"] else "",
            f"{turn['times_as_long']:.2f}",
            spread(low, high),
        )
    show(table)
