"""`switchml trace replay`: a traced job replayed, as it was and with something changed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from emulator.cli.options import (
    ANY_PATH,
    RATE,
    RATE_UNITS,
    SIZE,
    TIME_UNITS,
    Quantity,
    json_option,
    output,
    table,
    timeline_option,
)
from emulator.cluster.algorithms import ALGORITHMS_HELP, HIERARCHIES, HIERARCHY_HELP


class Change(click.ParamType):
    """A new value with its unit, or "x0.5" for so many times the traced one. Converts to ("factor" or "value",
    number)."""

    def __init__(self, name: str, units: dict[str, float], example: str) -> None:
        self.name = f"{name}|xF"
        self._quantity = Quantity(name, units, f"{example} or x0.5")

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        if isinstance(value, tuple):
            return value
        if re.fullmatch(r"x[0-9.]+", str(value).strip()):
            return "factor", float(str(value).strip()[1:])
        return "value", self._quantity.convert(value, param, ctx)


class Slow(click.ParamType):
    """ "RANK=FACTOR"."""

    name = "rank=factor"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, float]:
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"(\d+)=([0-9.]+)", str(value).strip())
        if not match:
            self.fail(f"{value!r}: expected a rank and a factor, as in 1=1.5", param, ctx)
        return int(match[1]), float(match[2])


@click.command()
@click.argument("path", type=ANY_PATH)
@click.option(
    "--iteration", type=click.IntRange(0), help="Replay only this iteration.  [default: all, one after the other]"
)
@click.option("--link", type=RATE, help="Rate of each host's link in the traced run, if known.")
@click.option("--ranks-per-host", type=click.IntRange(1), help="Ranks that share a link.  [default: as traced]")
@click.option("--bandwidth", type=Change("rate", RATE_UNITS, "50mbit"), help="Change the rate of links.")
@click.option(
    "--latency", type=Change("time", TIME_UNITS, "100us"), help="Change the latency of each step of a collective."
)
@click.option("--allreduce", help=ALGORITHMS_HELP)
@click.option("--hierarchy", type=click.Choice(list(HIERARCHIES)), help=HIERARCHY_HELP)
@click.option("--cluster", help="The network of a built-in cluster or .toml file, whose nodes the ranks fill.")
@click.option("--ranks", type=click.IntRange(1), help="Change the number of data-parallel ranks.")
@click.option(
    "--bucket-cap",
    type=SIZE,
    multiple=True,
    help="Change the cap of DDP's buckets; twice: of the first, of the others.",
)
@click.option("--codec", help="Compress gradients with a codec of docs/codecs.md, measured here.")
@click.option("--accelerator", help="Change the accelerator: x2 for twice as fast, or a built-in one such as h100.")
@click.option("--without-straggler", type=click.IntRange(0), metavar="RANK", help="Make a rank as fast as the others.")
@click.option("--slow", type=Slow(), multiple=True, metavar="RANK=F", help="Make a rank F times as slow.")
@timeline_option
@json_option
def replay(path: Path, as_json: bool, timeline: Path | None, iteration: int | None, **options: Any) -> None:
    """Replay the traces in PATH, a directory with one a rank: predicted against traced iteration time, in all and for
    each part; and, with any of the options that change something, what the job would take then. The timeline is that of
    a mean iteration."""
    from emulator.replay.engine import replay as play
    from emulator.traces.align import align
    from emulator.traces.join import join, join_each
    from emulator.traces.readers.read import read
    from emulator.whatif.predict import predicted, traced

    traces = read(path)
    clocks = align(traces)
    mean = join(traces, iteration=iteration, clocks=clocks)
    iterations = [mean] if iteration is not None else join_each(traces, clocks)
    as_traced, as_replayed = traced(iterations), predicted(iterations)
    changes, prepare = _changes(mean, iterations, **options)
    ranks = mean.graph.ranks.device.tolist()
    report: dict[str, Any] = {
        "iterations": len(iterations),
        "ops": len(mean.graph.ops),
        "ranks": ranks,
        "clock_offset_s": [float(offset) for offset in mean.offset_s],
        "clock_error_s": clocks.error_s,
        "traced": as_traced.as_json(ranks),
        "replayed": as_replayed.as_json(ranks),
        "error": as_replayed.iteration_s / as_traced.iteration_s - 1,
        "assumptions": list(mean.assumptions),
    }
    shown = mean
    if changes:
        changed = [_apply(prepare(one), changes) for one in iterations]
        shown = _apply(prepare(mean), changes)
        as_changed = predicted(changed)
        network = shown.network
        report["changes"] = [name for name, _ in changes]
        report["assumptions"] += _error_of_accelerator(options["accelerator"])
        report["changed"] = as_changed.as_json(ranks)
        report["speedup"] = as_replayed.iteration_s / as_changed.iteration_s
        if network is not None:
            report["network"] = {
                "allreduce": network.algorithm,
                "hierarchy": network.hierarchy,
                "link_bps": 8 * network.link_bytes_per_s,
                "latency_s": network.latency_s,
                "host_s_per_byte": network.host_s_per_byte,
            }
            report["assumptions"] += [*network.assumptions, *shown.assumptions[len(mean.assumptions) :]]
    if timeline is not None:
        from emulator.report.perfetto import write_timeline

        write_timeline(play(shown.graph, shown.costs), timeline)
    output(as_json, lambda: report, lambda: _show(report))


def _changes(mean, iterations, *, link, ranks_per_host, bandwidth, latency, allreduce, hierarchy, cluster, ranks,
             bucket_cap, codec, accelerator, without_straggler, slow):  # fmt: skip
    """(list of (what, change), what to do first): changes in the order in which they are applied."""
    from emulator.whatif import changes, codec_costs, contention, network
    from emulator.whatif.network import assume

    bandwidth_title, rates = _new_value(bandwidth, "bps", 1e6, "Mbit/s")
    latency_title, delays = _new_value(latency, "seconds", 1e-6, "µs")
    slowed = ", ".join(f"rank {rank} {factor:g} times as slow" for rank, factor in slow)
    reduced = " by ".join(filter(None, (f"all-reduce {allreduce or 'as traced'}", hierarchy)))
    caps = ", ".join(f"{cap / 2**20:g} MiB" for cap in bucket_cap)
    speeds = _accelerator(accelerator, mean) if accelerator else None
    cost = codec_costs.measure([codec], network.world_size(mean))[codec] if codec else None
    of_machines = [
        (without_straggler is not None, f"rank {without_straggler} no straggler",
         lambda one: changes.without_straggler(one, without_straggler)),
        (slow, slowed, lambda one: changes.slow(one, dict(slow))),
        (accelerator, f"accelerator {accelerator}", lambda one: changes.accelerator_of(one, speeds)),
    ]  # fmt: skip
    of_networks = [
        (cluster, f"network of {cluster}", lambda one: changes.cluster(one, cluster)),
        (allreduce or hierarchy, reduced, lambda one: changes.allreduce(one, allreduce or "", hierarchy or "")),
        (bandwidth, f"links {bandwidth_title}", lambda one: changes.bandwidth(one, **rates)),
        (latency, f"latency {latency_title}", lambda one: changes.latency(one, **delays)),
        (ranks, f"{ranks} ranks", lambda one: changes.ranks(one, ranks)),
        (bucket_cap, f"buckets of {caps}", lambda one: changes.buckets(one, bucket_cap)),
        (codec, f"codec {codec}", lambda one: changes.codec(one, cost, codec)),
    ]
    chosen = [(title, change) for is_chosen, title, change in of_machines + of_networks if is_chosen]
    is_fitted = any(is_chosen for is_chosen, *_ in of_networks)
    model = network.fit(iterations, link, ranks_per_host or 0) if is_fitted else None
    measured = contention.measure(iterations) if bucket_cap else None
    return chosen, lambda one: assume(one, network=model, contention=measured)


def _new_value(option, name: str, unit: float, unit_name: str) -> tuple[str, dict[str, float]]:
    """A `Change` in words, and as an argument called `name` or "factor"."""
    if not option:
        return "", {}
    what, value = option
    if what == "factor":
        return f"x{value:g}", {"factor": value}
    return f"{value / unit:g} {unit_name}", {name: value}


def _apply(joined, changes):
    for _, change in changes:
        joined = change(joined)
    return joined


def _accelerator(name: str, mean):
    """As `changes.accelerator` takes it."""
    from emulator.whatif.speeds import Speeds, speeds

    if match := re.fullmatch(r"x([0-9.]+)", name):
        return Speeds(*[float(match[1])] * 3)
    return speeds(mean, name)


def _error_of_accelerator(name: str | None) -> list[str]:
    from emulator.whatif.speeds import CARRIED

    return [CARRIED] if name and not re.fullmatch(r"x[0-9.]+", name) else []


def _show(report: dict[str, Any]) -> None:
    from emulator.replay.parts import PARTS
    from switchml.terminal import Console

    console = Console(highlight=False)
    columns = [name for name in ("traced", "replayed", "changed") if name in report]
    shown = table(["ms an iteration"], columns, box=None, padding=(0, 2, 0, 0), pad_edge=False)

    def row(name: str, values: list[float], style: str = "") -> None:
        shown.add_row(name, *(f"{value * 1e3:.2f}" if value else "-" for value in values), style=style)

    row("in all", [report[key]["iteration_s"] for key in columns], "bold")
    for part in PARTS:
        values = [report[key]["parts_s"].get(part, 0.0) for key in columns]
        if any(value >= 5e-6 for value in values):
            row(f"  {part}", values)
    if len(report["ranks"]) > 1:
        for place, rank in enumerate(report["ranks"][:16]):
            values = [report[key]["ranks"][place]["parts_s"].get("compute", 0.0) for key in columns]
            row(f"  compute of rank {rank}", values, "dim")
    console.print(shown)
    console.print(
        f"\n{report['iterations']} iterations of {len(report['ranks'])} ranks, {report['ops']} ops an iteration; "
        f"replayed {report['error']:+.2%} off"
    )
    if "changed" in report:
        console.print(f"With {', '.join(report['changes'])}: {report['speedup']:.3g} times as fast", style="bold")
    for assumption in report["assumptions"]:
        console.print(f"- {assumption}", style="dim")
