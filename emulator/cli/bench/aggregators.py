"""`switchml bench aggregators`: the same all-reduce through our P4 switch, BMv2's, the software aggregator and Gloo."""

from __future__ import annotations

import json
import os
import shutil
from statistics import median
from typing import Any

import click

from emulator.cli.bench.allreduce import Checked


@click.command()
@click.option("--workers", type=click.IntRange(1, 32), default=4, show_default=True, help="Ranks, one process each.")
@click.option(
    "--size", type=Checked("size", "parse_size"), default="1M", show_default=True, help="Bytes of the tensor."
)
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True, help="Rounds: each has a turn in it.")
@click.option("--warmup", type=click.IntRange(0), default=1, show_default=True, help="Rounds that are not counted.")
@click.option(
    "--aggregators",
    metavar="NAME,…",
    help="Of p4, bmv2, p4-lanes, bmv2-lanes (a register a lane), software, gloo; the first is what the others are "
    "compared with.  [default: all that can run here]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object in place of the table.")
def aggregators(workers: int, size: int, repeats: int, warmup: int, aggregators: str | None, as_json: bool) -> None:
    """Time one all-reduce through every aggregator, in turns, in one run.

    p4 is our P4 switch, bmv2 the real simple_switch, both with the program of p4/; the two with -lanes run its variant
    with one register a lane. Every result is checked against the exact sum.
    """
    from rich.console import Console

    from emulator.bench import aggregators as measuring
    from emulator.bench.allreduce import AGGREGATORS
    from emulator.bench.ranks.reducing import GLOO

    known = (*AGGREGATORS, GLOO)
    names = [name.strip() for name in aggregators.split(",")] if aggregators else what_can_run()
    for name in names:
        if name not in known:
            raise click.BadParameter(f"{name!r}: expected some of {', '.join(known)}", param_hint="--aggregators")
    with Console(stderr=True).status("starting") as status:
        turns = measuring.measure(size, names, workers=workers, repeats=repeats, warmup=warmup, report=status.update)
    result = as_dict(turns, size, workers)
    if as_json:
        click.echo(json.dumps(result))
    else:
        print_table(result)


def what_can_run() -> list[str]:
    """All aggregators for which this machine has what they need."""
    from importlib.util import find_spec

    has_bmv2 = os.geteuid() == 0 and all(map(shutil.which, ("simple_switch", "ip")))
    bmv2 = ["bmv2", "bmv2-lanes"] if has_bmv2 else []
    return ["p4", *bmv2[:1], "p4-lanes", *bmv2[1:], "software", *(["gloo"] if find_spec("torch") else [])]


def as_dict(turns: list, size_bytes: int, workers: int) -> dict[str, Any]:
    """What was measured; times in seconds, algbw and busbw in 10^9 bytes a second as nccl-tests has them."""
    from emulator.bench.report import busbw_factor
    from emulator.bench.tally import ratios

    times_as_long = [ratios(turn.tally, turns[0].tally) for turn in turns]

    return {
        "workers": workers,
        "size_bytes": size_bytes,
        "results": [
            {
                "aggregator": turn.backend,
                "transport": turn.transport,
                "payload_bytes": turn.payload_bytes,
                "seconds": turn.tally.seconds,
                "median_seconds": turn.tally.median_s,
                "algbw_gb_per_s": turn.gigabytes_per_s(size_bytes),
                "busbw_gb_per_s": turn.gigabytes_per_s(size_bytes) * busbw_factor(workers),
                "packets": turn.tally.packets("sent", "received", "retransmitted"),
                "times_as_long": median(times),
                "times_as_long_range": [min(times), max(times)],
            }
            for turn, times in zip(turns, times_as_long, strict=True)
        ],
    }


def print_table(result: dict[str, Any]) -> None:
    """The result on stdout."""
    from rich.console import Console
    from rich.table import Table

    first = result["results"][0]["aggregator"]
    table = Table(
        title=f"sum of {result['size_bytes'] // 4:,} float32, {result['workers']} ranks",
        title_justify="left",
    )
    for name in ("aggregator", "by", "payload"):
        table.add_column(name)
    for name in ("time", "algbw", "busbw", "retransmitted", f"time / {first}'s", "min - max"):
        table.add_column(name, justify="right")
    for turn in result["results"]:
        sent, again = (turn["packets"].get(name, 0) for name in ("sent", "retransmitted"))
        low, high = turn["times_as_long_range"]
        table.add_row(
            turn["aggregator"],
            turn["transport"],
            f"{turn['payload_bytes']} B" if turn["payload_bytes"] else "",
            f"{turn['median_seconds'] * 1e3:.1f} ms",
            f"{turn['algbw_gb_per_s']:.4f} GB/s",
            f"{turn['busbw_gb_per_s']:.4f} GB/s",
            f"{again / sent:.1%}" if sent else "",
            f"{turn['times_as_long']:.2f}",
            f"{low:.2f} - {high:.2f}",
        )
    Console().print(table)
