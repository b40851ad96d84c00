"""The result of `switchml mininet`: a table for people, one JSON object for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from emulator.bench import tables
from emulator.bench.mininet.experiments import FLAT, RING, TREE, MininetPlan, Row

TITLES = {RING: "Gloo's ring", TREE: "racks aggregate", FLAT: "only s1 aggregates"}
AXES = {"scaling": "hosts", "loss": "loss", "slots": "slots", "two-racks": "racks", "allreduce": "hosts"}


def title_of(row: Row) -> str:
    return TITLES.get(row.case.series, row.case.series)


def as_json(plan: MininetPlan, rows: Sequence[Row]) -> dict[str, Any]:
    """One object of plain values; times in seconds, rates in bits a second."""
    return {
        "experiment": plan.experiment,
        "aggregator": plan.aggregator,
        "hosts": plan.hosts,
        "rate_bps": plan.rate_bps,
        "delay_s": plan.delay_s,
        "loss": plan.loss or 0.0,
        "size_bytes": plan.size_bytes,
        "payload_bytes": plan.payload_bytes,
        "wire": plan.wire,
        "rows": [
            {
                "series": row.case.series,
                AXES[plan.experiment]: row.case.x,
                "workers": row.case.workers,
                "racks": row.case.layout.racks,
                "slots": row.case.slots or None,
                "seconds": row.tally.median_s,
                "all_seconds": row.tally.seconds,
                "goodput_bps": row.goodput_bps,
                "error": row.tally.error,
                "checksum": f"{row.tally.checksum:016x}",
                **row.tally.packets_as_json(),
                **{name: getattr(row.tally, name) for name in ("sent_bytes", "dropped", "lost", "cpu_seconds")},
            }
            for row in rows
        ],
    }


def print_table(plan: MininetPlan, rows: Sequence[Row]) -> None:
    """A row for each case."""
    loss = "" if plan.experiment == "loss" else f", {plan.loss or 0:.2%} loss"
    has_trunks = any("trunks up" in row.tally.sent_bytes for row in rows)
    cells = []
    for row in rows:
        tally, n = row.tally, len(row.tally.seconds)
        trunks = tally.sent_bytes.get("trunks up", 0) / n / 1e6
        cells.append(
            (
                title_of(row),
                f"{row.case.x:.2%}" if plan.experiment == "loss" else f"{row.case.x:g}",
                *(f"{seconds * 1e3:.0f}" for seconds in (tally.median_s, min(tally.seconds), max(tally.seconds))),
                f"{row.goodput_bps / 1e6:.1f}",
                f"{tally.sent_bytes['up'] / n / row.case.workers / 1e6:.2f}",
                *([f"{trunks / row.case.layout.racks:.2f}" if trunks else "–"] if has_trunks else []),
                f"{tally.agents['retransmitted']:.0f}" if "retransmitted" in tally.agents else "",
                f"{sum(tally.lost.values())}",
            )
        )
    headings = ("", AXES[plan.experiment], "ms", "least", "most", "Mbit/s", "MB up")
    trunks_note = " MB trunks: what a rack sends up in one." if has_trunks else ""
    tables.print_table(
        (*headings, *["MB trunks"] * has_trunks, "resent", "lost"),
        cells,
        before=f"All-reduce of {plan.size_bytes / 2**20:g} MiB of float32 ({plan.wire} lanes, {plan.payload_bytes} "
        f"bytes in a packet) over links of {plan.rate_bps / 1e6:g} Mbit/s, {plan.delay_s * 1e6:g} µs{loss} each way.",
        notes=[
            f"ms: median over {plan.repeats} repeats of the slowest rank's time. Mbit/s of tensor. MB up: what a host "
            f"sends in one all-reduce.{trunks_note} Packets retransmitted and lost: of all hosts and repeats."
        ],
    )
