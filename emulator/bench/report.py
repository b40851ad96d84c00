"""What was measured, as lines in the style of nccl-tests and as one JSON object.

algbw is bytes of the tensor over time; busbw is algbw times 2(n-1)/n, what each rank's link would carry in a ring
(nccl-tests, doc/PERFORMANCE.md), so that figures for different n compare. Both in 10^9 bytes a second. `error` is the
largest difference to the exact sum, relative to the largest sum.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from emulator.bench.allreduce import Measurement, Report
from emulator.bench.limits import Limit
from emulator.bench.ranks.reducing import DENSE, GLOO, INT32, PLAIN, SWITCHML
from emulator.bench.sizes import ITEM_BYTES

_CASE, _TIMES, _RATIO = "{:>12} {:>12} {:>6}", " {:>11} {:>7} {:>7} {:>8}", " {:>7} {:>13}"
_SPARSE = " {:>7} {:>8} {:>8}"
_PLAIN = " {:>8}"
_INT32 = " {:>8} {:>8} {:>8}"


def busbw_factor(workers: int) -> float:
    """busbw / algbw of an all-reduce."""
    return 2 * (workers - 1) / workers


def header(
    workers: int, transport: str, wire: str, backends: tuple[str, ...], cores: int, beside: int = 0
) -> list[str]:
    """The lines above the table."""
    columns = [_CASE.format("size", "count", "type"), _CASE.format("(B)", "(elements)", "")]
    title = " " * len(columns[0])
    for backend in backends:
        title += f" {' ' + backend + ' ':-^36}"
        columns[0] += _TIMES.format("time", "algbw", "busbw", "error")
        columns[1] += _TIMES.format("(us)", "(GB/s)", "(GB/s)", "")
    if DENSE in backends:
        title += " " * len(_SPARSE.format("", "", ""))
        columns[0] += _SPARSE.format("union", "x dense", "of bound")
        columns[1] += _SPARSE.format("", "", "")
    if PLAIN in backends:
        title += " " * len(_PLAIN.format(""))
        columns[0] += _PLAIN.format("x plain")
        columns[1] += _PLAIN.format("")
    if INT32 in backends:
        title += " " * len(_INT32.format("", "", ""))
        columns[0] += _INT32.format("x int32", "packets", "rank cpu")
        columns[1] += _INT32.format("", "x int32", "x int32")
    if GLOO in backends:
        columns[0] += _RATIO.format("ratio", "min - max")
        columns[1] += _RATIO.format("", "")
    title_line = f"sum of float32 in place, {workers} ranks on {cores} cores, transport {transport}, {wire} on the wire"
    if beside:
        title_line += f", beside {beside} busy processes"
    return ["# " + title_line, "#", *(f"# {line}".rstrip() for line in (title, *columns))]


def line(measurement: Measurement, workers: int, backends: tuple[str, ...], union_density: float = 1.0) -> str:
    """One case's line of the table."""
    case = measurement.case
    name = f"{len(case.parts)} parts" if case.overlapped else "float"
    text = "  " + _CASE.format(case.size_bytes, case.size_bytes // ITEM_BYTES, name)
    for backend in backends:
        bandwidth = measurement.gigabytes_per_s(backend)
        text += _TIMES.format(
            f"{measurement.median_s(backend) * 1e6:.1f}",
            f"{bandwidth:.3f}",
            f"{bandwidth * busbw_factor(workers):.3f}",
            f"{measurement.tallies[backend].relative_error:.0e}",
        )
    if DENSE in backends:
        times = measurement.ratios_to(DENSE)
        text += _SPARSE.format(f"{union_density:.4f}", f"{median(times):.2f}x", f"{median(times) * union_density:.0%}")
    if times := measurement.ratios_to(PLAIN):
        text += _PLAIN.format(f"{median(times):.2f}x")
    if times := measurement.ratios_to(INT32):
        processor = measurement.processor_s(SWITCHML) / measurement.processor_s(INT32)
        text += _INT32.format(f"{median(times):.2f}x", f"{measurement.packets_to_int32:.3f}", f"{processor:.2f}")
    if ratios := measurement.ratios_to(GLOO):
        text += _RATIO.format(f"{median(ratios):.2f}x", f"{min(ratios):.2f} - {max(ratios):.2f}")
    return text


def footer(report: Report, limit: Limit | None) -> list[str]:
    """The lines below the table: the largest case's packets and processor time, and the machine's bound if there is
    one."""
    last = max(report.measurements, key=lambda measurement: measurement.case.size_bytes)
    repeats, calls = len(last.tallies[SWITCHML].seconds), last.case.calls
    counts = ", ".join(f"{name} {count:,}" for name, count in last.packets.items())
    lines = [
        f"Packets of all ranks, {last.case.size_bytes} B, {repeats} x {calls}: {counts}",
        "Processor time of a call:",
    ]
    for backend in report.backends:
        lines.append(f"  {backend + ', mean of ranks':<24}" + _usage(last.tallies[backend].mean_usage, calls))
    if last.aggregator:
        lines.append(f"  {'aggregator':<24}" + _usage(last.aggregator, calls))
    if limit is not None:
        reached = last.elements_per_s(SWITCHML)
        lines += ["", *limit.explain()]
        lines.append(
            f"  = {limit.elements_per_s / 1e6:,.0f} M elements/s "
            f"({limit.elements_per_s * ITEM_BYTES / 1e9:.3f} GB/s algbw)"
            f"; {last.case.size_bytes} B reached {reached / 1e6:,.0f} M, {reached / limit.elements_per_s:.0%} of it"
        )
    if report.sparsity is not None:
        s = report.sparsity
        lines += [
            "",
            f"switchml skips blocks of zeros, dense does not: blocks of {s.block}, density {s.density:g}, {s.overlap} "
            "overlap; union: share of blocks",
            "that some rank has; of bound: the union's share of dense's time, over switchml's time",
        ]
    if PLAIN in report.backends:
        lines += ["", "switchml authenticates packets, plain does not; x plain: plain's time over switchml's"]
    if INT32 in report.backends:
        lines += [
            "",
            "switchml sums exactly, int32 in its lanes; x int32: int32's time over switchml's; packets and rank cpu: "
            "switchml's over int32's",
        ]
    if GLOO in report.backends:
        lines += ["", "ratio: Gloo's time over switchml's, median of the pairs; above 1, switchml is faster"]
    return ["#", *(f"# {text}".rstrip() for text in lines)]


def as_json(report: Report, limit: Limit | None, *, is_sweep: bool) -> dict[str, Any]:
    """The only case's object; with `is_sweep`, `results` lists one for each."""
    results = [_case_json(report, measurement, limit) for measurement in report.measurements]
    if not is_sweep:
        return results[0]
    common = {"workers": report.workers, "transport": report.transport, "wire": report.wire, "beside": report.beside}
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
        "size_bytes": case.size_bytes,
        "elements": case.size_bytes // ITEM_BYTES,
        "transport": report.transport,
        "wire": report.wire,
        "beside": report.beside,
        "elements_per_s": rates,
        "ratio": median(ratios) if ratios else None,
        "ratios": ratios,
        "aggregator_kind": report.aggregator,
        "limit_elements_per_s": limit and limit.elements_per_s,
        "fraction_of_limit": limit and rates[SWITCHML] / limit.elements_per_s,
        "limit_terms_ns": limit and limit.terms(),
        "seconds": {name: measurement.seconds(name) for name in report.backends},
        "median_seconds": {name: measurement.median_s(name) for name in report.backends},
        "algbw_gb_per_s": {name: measurement.gigabytes_per_s(name) for name in report.backends},
        "busbw_gb_per_s": {
            name: measurement.gigabytes_per_s(name) * busbw_factor(report.workers) for name in report.backends
        },
        "max_error": {name: tally.error for name, tally in measurement.tallies.items()},
        "relative_error": {name: tally.relative_error for name, tally in measurement.tallies.items()},
        "parts_bytes": [part * ITEM_BYTES for part in case.parts] if case.overlapped else None,
        "calls_per_repeat": case.calls,
        "packets": measurement.packets,
        **compared,
        "usage_per_repeat": {
            **{f"{name}_rank": tally.mean_usage for name, tally in measurement.tallies.items()},
            "aggregator": measurement.aggregator,
        },
    }


def _usage(usage: dict[str, float], calls: int) -> str:
    return (
        f"{usage['user_s'] / calls * 1e3:8.2f} ms user {usage['system_s'] / calls * 1e3:8.2f} ms system"
        f" {usage['voluntary'] / calls:8.1f} waits {usage['involuntary'] / calls:8.1f} preemptions"
    )
