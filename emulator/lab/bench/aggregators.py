"""Measurement of `switchml bench aggregators`: the same all-reduce through every available aggregator, in one run."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from emulator.lab.bench.allreduce import Measurement, start_aggregator
from emulator.lab.bench.ranks.reducing import GLOO, Target
from emulator.lab.bench.ranks.team import Repeat, joined_ranks, local_places
from emulator.lab.bench.report import busbw_factor, spread
from emulator.lab.bench.sizes import ITEM_BYTES, Case
from emulator.lab.bench.tally import ratios, take_turns
from switchml.errors import ConfigError
from switchml.tables import Table, number, show, text


@dataclass(frozen=True)
class Comparison:
    """Result of `measure`. `targets`: the aggregators, by name; `transports`: the transport to each. Gloo is in
    neither."""

    measurement: Measurement
    targets: dict[str, Target]
    transports: dict[str, str]


def measure(
    size_bytes: int,
    backends: Sequence[str],
    *,
    workers: int,
    repeats: int,
    warmup: int,
    report: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """All-reduce `size_bytes` through each of `backends` (GLOO and AGGREGATORS), alternating: all ranks have joined all
    of them. Idle aggregators use no CPU: they sleep.

    Raises ConfigError for an aggregator that cannot be started, JobError or RanksDisagree if a result is wrong."""
    if len(set(backends)) < len(backends) or not backends:
        raise ConfigError(f"aggregators {', '.join(backends) or 'none'}: expected each of them once")
    case = Case((size_bytes // ITEM_BYTES,), False, repeats, warmup)

    def on_repeat(number: int, backend: str, repeat: Repeat) -> None:
        which = "warm-up" if number < 0 else f"{number + 1} of {repeats}"
        report(f"{backend}: {repeat.seconds:.3f} s ({which})")

    with contextlib.ExitStack() as stack:
        started = {name: start_aggregator(name, workers, "auto", stack)[1] for name in backends if name != GLOO}
        with joined_ranks(local_places(workers), backends, case.elements, started) as (team, transports):
            tallies = take_turns(team, case, backends, on_repeat=on_repeat)
            targets = {name: target() for name, target in started.items()}
    return Comparison(Measurement(case, tallies), targets, transports)


def as_json(found: Comparison, workers: int) -> dict[str, Any]:
    """JSON object of the results: times in seconds, algbw and busbw in 10^9 bytes/s as defined by nccl-tests."""
    measurement, rows = found.measurement, []
    first, *_ = measurement.tallies.values()
    for name, tally in measurement.tallies.items():
        algbw, times = measurement.gigabytes_per_s(name), ratios(tally, first)
        row = {
            "aggregator": name,
            "transport": found.transports.get(name, "tcp"),
            "payload_bytes": found.targets[name].payload_bytes if name in found.targets else 0,
            "seconds": tally.seconds,
            "median_seconds": tally.median_s,
            "algbw_gb_per_s": algbw,
            "busbw_gb_per_s": algbw * busbw_factor(workers),
            "packets": tally.packets("sent", "received", "retransmitted"),
            "times_as_long": median(times),
            "times_as_long_range": [min(times), max(times)],
        }
        rows.append(row)
    return {"workers": workers, "size_bytes": measurement.case.size_bytes, "results": rows}


def print_table(result: dict[str, Any]) -> None:
    """Print the result of `as_json` as a table on stdout."""
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
