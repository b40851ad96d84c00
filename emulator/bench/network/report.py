"""What `switchml bench network` has found: a table for people, one JSON object for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from emulator.bench.network.measure import Result
from emulator.bench.ranks.reducing import DENSE, GLOO, SWITCHML


def as_json(result: Result) -> dict[str, Any]:
    """One object of plain values; times in seconds, rates in bits a second."""
    e, agents = result.experiment, result.tallies[SWITCHML].agents
    ring = e.ring_bound_bps
    sparse = {}
    if e.sparsity is not None:
        sparse = {
            "density": e.sparsity.density,
            "block": e.sparsity.block,
            "overlap": e.sparsity.overlap,
            "sparse": e.sparsity.mode,
            "union_density": e.union_density,
            "union_bound_bps": e.union_bound_bps,
            "fraction_of_union_bound": result.fraction_of_union_bound,
            "ratio_to_dense": result.dense_ratio,
        }
    return {
        "workers": e.workers,
        "rate_bps": e.link.rate_bps,
        "delay_s": e.link.delay_s,
        "loss": e.link.loss,
        "queue_bytes": e.link.queue_limit_bytes,
        "size_bytes": e.size_bytes,
        "wire": e.wire,
        "payload_bytes": e.payload_bytes,
        "tcp": result.tcp,
        "seconds": {name: tally.median_s for name, tally in result.tallies.items()},
        "all_seconds": {name: tally.seconds for name, tally in result.tallies.items()},
        "goodput_bps": {name: result.goodput_bps(name) for name in result.tallies},
        "framing_bound_bps": e.framing_bound_bps,
        "fraction_of_line_rate": result.fraction_of_line_rate,
        "ring_bound": e.ring_traffic,
        "ring_bound_bps": ring,
        "fraction_of_ring_bound": result.goodput_bps(GLOO) / ring if ring and GLOO in result.tallies else None,
        "ratio": result.ratio,
        "error": {name: tally.error for name, tally in result.tallies.items()},
        "packets": int(agents.get("sent", 0)),
        "retransmitted": int(agents.get("retransmitted", 0)),
        **sparse,
        "agents": agents,
        **{
            name: {backend: asdict(tally)[name] for backend, tally in result.tallies.items()}
            for name in ("dropped", "lost", "sent_bytes", "cpu_seconds")
        },
    }


def print_table(results: Sequence[Result]) -> None:
    """One row for each backend of each result, which differ in their number of hosts and in density only."""
    from rich.console import Console
    from rich.table import Table

    first = results[0].experiment
    link, payload = first.link, first.payload_bytes
    console = Console(highlight=False)
    console.print(
        f"All-reduce of {first.size_bytes / 2**20:g} MiB of float32 ({first.wire} lanes, {payload} bytes a packet) "
        f"over links of {link.rate_bps / 1e6:g} Mbit/s, {link.delay_s * 1e6:g} µs and {link.loss:.2%} loss each way, "
        f"queues of {link.queue_limit_bytes >> 10} KiB; Gloo over TCP with {results[0].tcp}.\n"
    )
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    is_sparse = first.sparsity is not None
    has_gloo = GLOO in first.backends
    for heading in ("hosts", "density", "union") if is_sparse else ("hosts",):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, min_width=6)
    others = ("x dense",) * is_sparse + ("x Gloo",) * has_gloo
    losses = ("resent", "drops", "lost") if link.loss else ("resent", "drops")
    for heading in ("ms", "Mbit/s", "bound", "share", *others, *losses, "CPU s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        e = result.experiment
        bounds = {SWITCHML: e.union_bound_bps, DENSE: e.framing_bound_bps, GLOO: e.ring_bound_bps}
        for backend, tally in result.tallies.items():
            is_ours = backend == SWITCHML
            bound = bounds[backend]
            goodput = result.goodput_bps(backend)
            table.add_row(
                str(e.workers),
                *((f"{e.sparsity.density:g}", f"{e.union_density:.3f}") if is_sparse else ()),
                "sparse" if is_sparse and is_ours else backend,
                f"{tally.median_s * 1e3:.0f}",
                f"{goodput / 1e6:.0f}",
                f"{bound / 1e6:.0f}" if bound else "–",
                f"{goodput / bound:.1%}" if bound else "–",
                *((f"{result.dense_ratio:.2f}" if is_ours and result.dense_ratio else "",) if is_sparse else ()),
                *((f"{result.ratio:.2f}" if is_ours and result.ratio else "",) if has_gloo else ()),
                f"{tally.agents.get('retransmitted', 0):.0f}" if backend != GLOO else "",
                f"{sum(tally.dropped.values())}",
                *((f"{sum(tally.lost.values())}",) if link.loss else ()),
                f"{sum(tally.cpu_seconds.values()):.2f}",
            )
    Console(highlight=False, width=max(console.width, 100)).print(table)  # no column is cut on a narrow terminal
    if is_sparse:
        console.print(
            f"\nSparse: blocks of {first.sparsity.block} elements, {first.sparsity.overlap} overlap between the ranks; "
            "union is the share of blocks that some rank has, and bound what a link could carry if it brought its host "
            "each of those once, in dense packets.",
            style="dim",
        )
    console.print(
        f"\nMbit/s of tensor. Bounds: {payload} of {payload} + 10 + 8 + 20 + 14 bytes on the line are ours (header, "
        "UDP, IP, Ethernet as tc counts it), times 32 bits over a lane's; a ring moves each bit 2(n-1)/n times, 1448 "
        "bytes in 1514. Packets resent, dropped by full queues (a train counts once), lost on purpose, and CPU "
        "seconds: of all hosts and repeats.",
        style="dim",
    )
