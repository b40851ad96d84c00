"""The result of `switchml bench network`: a table for people, one JSON object for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from emulator.bench import tables
from emulator.bench.network.measure import LinkTally, Result
from emulator.bench.ranks.reducing import GLOO, SWITCHML


def as_json(result: Result) -> dict[str, Any]:
    """One object of plain values; times in seconds, rates in bits a second."""
    e = result.experiment
    ring = e.ring_bound_bps
    sparse = {}
    if e.sparsity is not None:
        sparse = {
            **e.sparsity.as_json(),
            "union_density": e.union_density,
            "union_bound_bps": e.union_bound_bps,
            "fraction_of_union_bound": result.fraction_of_union_bound,
            "ratio_to_dense": result.dense_ratio,
        }
    return {
        "workers": e.workers,
        "ranks_per_host": e.ranks_per_host,
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
        "ratio_to_node": result.node_ratio,
        "error": {name: tally.error for name, tally in result.tallies.items()},
        **result.tallies[SWITCHML].packets_as_json(),
        **sparse,
        "agents": result.tallies[SWITCHML].agents,
        **{
            name: {backend: asdict(tally)[name] for backend, tally in result.tallies.items()}
            for name in ("dropped", "lost", "sent_bytes", "cpu_seconds")
        },
    }


def print_table(results: Sequence[Result]) -> None:
    """One row for each backend of each result, which differ in their number of hosts and ranks and in density only."""
    first = results[0].experiment
    link, payload, sparsity = first.link, first.payload_bytes, first.sparsity
    others = ("x dense",) * (sparsity is not None) + ("x Gloo",) * (GLOO in first.backends)
    has_ranks = any(result.experiment.ranks_per_host > 1 for result in results)
    headings = (
        "hosts",
        *("ranks",) * has_ranks,
        *(("density", "union") if sparsity else ()),
        "",
        "ms",
        "Mbit/s",
        "bound",
        "share",
        *others,
    )
    notes = [
        f"Mbit/s of tensor. Bounds: {payload} of {payload} + 10 + 8 + 20 + 14 bytes on the line are ours (header, UDP, "
        "IP, Ethernet as tc counts it), times 32 bits over a lane's; a ring moves each bit 2(n-1)/n times, 1448 bytes "
        "in 1514. Packets retransmitted, dropped by full queues (a train counts once), lost on purpose, and CPU "
        "seconds: of all hosts and repeats."
    ]
    if sparsity is not None:
        notes.insert(
            0,
            f"Sparse: blocks of {sparsity.block} elements, {sparsity.overlap} overlap between the ranks; union is the "
            "share of blocks that some rank has, and bound what a link could carry if it brought its host each of "
            "those once, in dense packets.",
        )
    tables.print_table(
        (*headings, "resent", "drops", *(("lost",) if link.loss else ()), "CPU s"),
        [_row(result, backend, tally, has_ranks) for result in results for backend, tally in result.tallies.items()],
        left=0,
        before=f"All-reduce of {first.size_bytes / 2**20:g} MiB of float32 ({first.wire} lanes, {payload} bytes in a "
        f"packet) over links of {link.rate_bps / 1e6:g} Mbit/s, {link.delay_s * 1e6:g} µs and {link.loss:.2%} loss "
        f"each way, queues of {link.queue_limit_bytes >> 10} KiB; Gloo over TCP with {results[0].tcp}.",
        notes=notes,
    )


def _row(result: Result, backend: str, tally: LinkTally, has_ranks: bool) -> list[str]:
    e, is_ours = result.experiment, backend == SWITCHML
    bound, goodput = e.bound_bps(backend), result.goodput_bps(backend)
    cells = [str(e.workers), *([str(e.world_size)] if has_ranks else [])]
    if e.sparsity is not None:
        cells += [f"{e.sparsity.density:g}", f"{e.union_density:.3f}"]
    cells += ["sparse" if e.sparsity and is_ours else backend, f"{tally.median_s * 1e3:.0f}", f"{goodput / 1e6:.0f}"]
    cells += [f"{bound / 1e6:.0f}", f"{goodput / bound:.1%}"] if bound else ["–", "–"]
    if e.sparsity is not None:
        cells.append(f"{result.dense_ratio:.2f}" if is_ours and result.dense_ratio else "")
    if GLOO in e.backends:
        cells.append(f"{result.ratio:.2f}" if is_ours and result.ratio else "")
    cells.append(f"{tally.agents.get('retransmitted', 0):.0f}" if backend != GLOO else "")
    cells.append(f"{sum(tally.dropped.values())}")
    if e.link.loss:
        cells.append(f"{sum(tally.lost.values())}")
    return [*cells, f"{sum(tally.cpu_seconds.values()):.2f}"]
