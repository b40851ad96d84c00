"""Measurements as a table with the columns of nccl-tests and as a JSON object.

algbw is bytes of the tensor over time; busbw is algbw times 2(n-1)/n, the bandwidth of each rank's link in a ring
(nccl-tests, doc/PERFORMANCE.md; other collectives have other factors), so that results for different n are comparable.
Both in 10^9 bytes/s. `error` is the largest difference from the exact sum, relative to the largest sum.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from emulator.lab.bench.allreduce import Measurement, Report
from emulator.lab.bench.limits import Limit
from emulator.lab.bench.ranks.reducing import AGENTS, DENSE, GLOO, INT32, PLAIN, SWITCHML, Calls
from emulator.lab.bench.sizes import ALL_REDUCE, FSDP, ITEM_BYTES, NAMES, text_of
from host_agent.tensors import HALVES
from switchml import plotting
from switchml.pages.charts import Line
from switchml.pages.panels import Curves
from switchml.protocol.sizes import AUTO
from switchml.tables import Column, Table, number, show, text
from switchml.terminal import say


def busbw_factor(workers: int, collective: str = ALL_REDUCE) -> float:
    """busbw / algbw. A concurrent all-gather and reduce-scatter together move as many bytes as an all-reduce."""
    if collective == "broadcast":
        return 1.0
    return (2 if collective in (ALL_REDUCE, FSDP) else 1) * (workers - 1) / workers


def title(
    workers: int,
    transport: str,
    wire: str,
    cores: int,
    background: int = 0,
    collective: str = ALL_REDUCE,
    dtypes: Sequence[str] = ("float32",),
    calls: Calls = AGENTS,
) -> str:
    """Title of the table."""
    others = f", beside {background} busy processes" if background else ""
    elements = f" of {dtypes[0]}" if len(dtypes) == 1 else ""
    what = f"Sum{elements} in place" if collective == ALL_REDUCE else f"{NAMES[collective]}{elements}"
    where = f", torch.distributed with {calls.device} tensors" if calls.api == "torch" else ""
    ranks = f"{workers} ranks on {cores} cores{where}"
    return f"{what}: {ranks}, by {transport}, {_sent_as(wire, dtypes)} on the wire{others}"


def _sent_as(wire: str, dtypes: Sequence[str]) -> str:
    """Format of the elements on the wire."""
    if wire != AUTO:
        return wire
    names = [dtype if dtype in HALVES else "int32" for dtype in dtypes]
    return ", ".join(dict.fromkeys(names))


def columns(backends: Sequence[str], dtypes: Sequence[str] = ("float32",)) -> list[Column]:
    """Columns of the table, in the order of `cells`. The type column is never hidden if there are several types."""
    each: dict[str, Callable[[str], Column]] = {
        "time": lambda name: number(f"{name} time", "µs", least=11),
        "algbw": lambda name: number(f"{name} algbw", "GB/s", drop=2, least=7),
        "busbw": lambda name: number(f"{name} busbw", "GB/s", drop=3, least=7),
        "error": lambda name: number(f"{name} error", drop=4, least=5),
    }
    return [
        number("size", "B", least=12),
        number("count", "elements", drop=6, least=12),
        text("type", drop=0 if len(dtypes) > 1 else 5, least=8 if len(dtypes) > 1 else 7),
        *(column(name) for name in backends for column in each.values()),
        *([number("union", drop=1, least=6), number("times dense", least=6)] if DENSE in backends else []),
        *([number("of bound", "%", drop=1, least=5)] if DENSE in backends else []),
        *([number("times plain", least=6)] if PLAIN in backends else []),
        *([number("times int32", least=6), number("packets to int32's", drop=1, least=6)] if INT32 in backends else []),
        *([number("CPU to int32's", drop=1, least=5)] if INT32 in backends else []),
        *([number("times Gloo", least=6), number("least – most", drop=1, least=13)] if GLOO in backends else []),
    ]


def cells(measurement: Measurement, workers: int, backends: Sequence[str], union_density: float = 1.0) -> Iterator[str]:
    """Table row of one case."""
    case = measurement.case
    yield from (f"{case.size_bytes}", f"{case.size_bytes // case.item}")
    yield f"{len(case.parts)} parts" if case.overlapped else case.dtype
    for backend in backends:
        bandwidth = measurement.gigabytes_per_s(backend)
        yield f"{measurement.median_s(backend) * 1e6:,.1f}"
        yield f"{bandwidth:.3f}"
        yield f"{bandwidth * busbw_factor(workers, case.collective):.3f}"
        yield f"{measurement.tallies[backend].relative_error:.0e}"
    if DENSE in backends:
        dense = median(measurement.ratios_to(DENSE))
        yield from (f"{union_density:.4f}", f"{dense:.2f}", f"{100 * dense * union_density:.0f}")
    if PLAIN in backends:
        yield f"{median(measurement.ratios_to(PLAIN)):.2f}"
    if INT32 in backends:
        processor = measurement.processor_s(SWITCHML) / measurement.processor_s(INT32)
        ratio = median(measurement.ratios_to(INT32))
        yield from (f"{ratio:.2f}", f"{measurement.packets_to_int32:.3f}", f"{processor:.2f}")
    if GLOO in backends:
        ratios = measurement.ratios_to(GLOO)
        yield from (f"{median(ratios):.2f}", spread(min(ratios), max(ratios)))


def spread(least: float, most: float) -> str:
    """Return "least – most", or an empty string if they are equal."""
    return f"{least:.2f} – {most:.2f}" if least < most else ""


def notes(report: Report) -> list[str]:
    """Explanation of the ratio columns."""
    lines = []
    if report.sparsity is not None:
        s = report.sparsity
        lines.append(
            f"switchml skips blocks of zeros, dense does not: blocks of {s.block}, density {s.density:g}, {s.overlap} "
            "overlap; union: share of blocks that some rank has; of bound: the union's share of dense's time, over "
            "switchml's time"
        )
    if PLAIN in report.backends:
        lines.append("switchml authenticates packets, plain does not; times plain: plain's time over switchml's")
    if INT32 in report.backends:
        lines.append(
            "switchml sums exactly, int32 in its lanes; times int32: int32's time over switchml's; packets and CPU: "
            "switchml's over int32's"
        )
    if GLOO in report.backends:
        lines.append("times Gloo: Gloo's time over switchml's, median of the pairs; above 1, switchml is faster")
    return lines


def print_footer(report: Report, limit: Limit | None) -> None:
    """Print the text below the table: the largest case's packets and CPU time, and the machine's
    limit if there is one."""
    last = max(report.measurements, key=lambda measurement: measurement.case.size_bytes)
    repeats, calls = len(last.tallies[SWITCHML].seconds), last.case.calls
    counts = ", ".join(f"{name} {count:,}" for name, count in last.packets.items())
    say(f"\nPackets of all ranks, {last.case.size_bytes} B, {repeats} x {calls}: {counts}\n")
    usage = {f"{name}, mean of ranks": last.tallies[name].mean_usage for name in report.backends}
    usage |= {"aggregator": last.aggregator} if last.aggregator else {}
    table = Table(
        [text("a call of"), number("user", "ms"), number("system", "ms"), number("waits"), number("preemptions")],
        title="Processor time",
    )
    for name, used in usage.items():
        times = (f"{used[key] / calls * 1e3:.2f}" for key in ("user_s", "system_s"))
        table.add(name, *times, *(f"{used[key] / calls:.1f}" for key in ("voluntary", "involuntary")))
    show(table)
    if limit is not None:
        reached = last.elements_per_s(SWITCHML)
        say("\n" + "\n".join(limit.explain()))
        say(
            f"  = {limit.elements_per_s / 1e6:,.0f} M elements/s "
            f"({limit.elements_per_s * ITEM_BYTES / 1e9:.3f} GB/s algbw)"
            f"; {last.case.size_bytes} B reached {reached / 1e6:,.0f} M, {reached / limit.elements_per_s:.0%} of it"
        )
        if last.aggregator:
            say(_processor_time(last, limit, report.workers))


def _processor_time(last: Measurement, limit: Limit, workers: int) -> str:
    """CPU time of a call over all processes: at the limit, and as measured."""
    least_ms = last.case.elements * limit.together_ns / 1e6
    used = {
        name: _processor_s(last.tallies[name].mean_usage) * workers for name in (SWITCHML, GLOO) if name in last.tallies
    }
    used[SWITCHML] += _processor_s(last.aggregator)
    each = ", ".join(f"{name} took {seconds / last.case.calls * 1e3:.1f}" for name, seconds in used.items())
    return f"  processor time of all ranks and the aggregator, a call: {least_ms:.1f} ms at the limit; {each}"


def _processor_s(usage: dict[str, float]) -> float:
    return usage["user_s"] + usage["system_s"]


def as_json(report: Report, limit: Limit | None, *, is_sweep: bool) -> dict[str, Any]:
    """JSON object of the only case; with `is_sweep`, an object whose `results` lists one for each case."""
    results = [_case_json(report, measurement, limit) for measurement in report.measurements]
    if not is_sweep:
        return results[0]
    common = {name: getattr(report, name) for name in ("workers", "transport", "wire")} | {"beside": report.background}
    common |= dataclasses.asdict(report.calls)
    return {**common, "limit_elements_per_s": limit and limit.elements_per_s, "results": results}


def all_as_json(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """One object for one or several runs."""
    return objects[0] if len(objects) == 1 else {"results": objects}


def _case_json(report: Report, measurement: Measurement, limit: Limit | None) -> dict[str, Any]:
    named = (SWITCHML, *(name for name in report.backends if name in (DENSE, PLAIN, INT32)), GLOO)
    rates = {name: measurement.elements_per_s(name) if name in report.backends else None for name in named}
    ratios = measurement.ratios_to(GLOO)
    case = measurement.case
    compared: dict[str, Any] = {}
    if report.sparsity is not None:
        union = report.union_density(measurement)
        to_dense = median(measurement.ratios_to(DENSE))
        compared = {
            **report.sparsity.as_json(),
            "union_density": union,
            "ratio_to_dense": to_dense,
            "fraction_of_union_bound": to_dense * union,
        }
    if to_plain := measurement.ratios_to(PLAIN):
        compared = {"ratio_to_plain": median(to_plain), "ratios_to_plain": to_plain}
    if to_int32 := measurement.ratios_to(INT32):
        compared = {
            "ratio_to_int32": median(to_int32),
            "ratios_to_int32": to_int32,
            "packets_to_int32": measurement.packets_to_int32,
        }
    return {
        "workers": report.workers,
        "collective": case.collective,
        "size_bytes": case.size_bytes,
        "dtype": case.dtype,
        "elements": case.size_bytes // case.item,
        "transport": report.transport,
        "wire": report.wire,
        **dataclasses.asdict(report.calls),
        "beside": report.background,
        "elements_per_s": rates,
        "ratio": median(ratios) if ratios else None,
        "ratios": ratios,
        "aggregator_kind": report.aggregator,
        "limit_elements_per_s": limit and limit.elements_per_s,
        "fraction_of_limit": limit and measurement.elements_per_s(SWITCHML) / limit.elements_per_s,
        "limit_terms_ns": limit and limit.terms(),
        "seconds": {name: measurement.seconds(name) for name in report.backends},
        "median_seconds": {name: measurement.median_s(name) for name in report.backends},
        "algbw_gb_per_s": {name: measurement.gigabytes_per_s(name) for name in report.backends},
        "busbw_gb_per_s": {
            name: measurement.gigabytes_per_s(name) * busbw_factor(report.workers, case.collective)
            for name in report.backends
        },
        "max_error": {name: tally.error for name, tally in measurement.tallies.items()},
        "relative_error": {name: tally.relative_error for name, tally in measurement.tallies.items()},
        "parts_bytes": [part * case.item for part in case.parts] if case.overlapped else None,
        "calls_per_repeat": case.calls,
        "packets": measurement.packets,
        **compared,
        "usage_per_repeat": {
            **{f"{name}_rank": tally.mean_usage for name, tally in measurement.tallies.items()},
            "aggregator": measurement.aggregator,
        },
    }


def draw(report: Report, limit: Limit | None, path: Path) -> None:
    """Write the plot, with a line for each backend. Overlapped cases are left out. Raises ConfigError."""
    title = f"All-reduce of {report.workers} ranks, transport {report.transport}, {report.wire} lanes"
    measurements = sorted(
        (one for one in report.measurements if not one.case.overlapped), key=lambda one: one.case.size_bytes
    )
    sizes = [one.case.size_bytes for one in measurements]
    times = [Line(name, sizes, [one.median_s(name) * 1e6 for one in measurements]) for name in report.backends]
    rates = [Line(name, sizes, [one.gigabytes_per_s(name) for one in measurements]) for name in report.backends]
    if limit is not None:
        bytes_per_s = limit.elements_per_s * ITEM_BYTES
        times.append(Line("limit", sizes, [size / bytes_per_s * 1e6 for size in sizes], is_dashed=True))
        rates.append(Line("limit", sizes, [bytes_per_s / 1e9 for _ in sizes], is_dashed=True))
    names = {float(size): text_of(size) for size in sizes}
    panels = [
        Curves(title, "bytes of the tensor", unit, lines, x_log=2, y_log=True, x_names=names)
        for title, unit, lines in (("Time", "time (µs)", times), ("Bandwidth", "algbw (GB/s)", rates))
    ]
    plotting.draw(path, title, panels)
