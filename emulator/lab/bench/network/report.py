"""The result of `switchml bench network` as a table and as a JSON object."""

from typing import Any

from emulator.lab.bench.network.measure import Experiment, Result
from emulator.lab.bench.ranks.reducing import GLOO, SWITCHML
from emulator.lab.bench.sizes import ALL_REDUCE, NAMES
from emulator.lab.bench.tally import Tally
from switchml.protocol.packet import WORD_BYTES
from switchml.tables import Column, number, text


def as_json(result: Result) -> dict[str, Any]:
    """JSON object of plain values; times in seconds, rates in bits/s."""
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
    names = ("workers", "ranks_per_host", "collective", "size_bytes", "wire", "payload_bytes", "framing_bound_bps")
    return {
        **{name: getattr(e, name) for name in names},
        **{name: getattr(e.link, name) for name in ("rate_bps", "delay_s", "loss")},
        "queue_bytes": e.link.queue_limit_bytes,
        "tcp": result.tcp,
        "seconds": {name: tally.median_s for name, tally in result.tallies.items()},
        "all_seconds": {name: tally.seconds for name, tally in result.tallies.items()},
        "goodput_bps": {name: result.goodput_bps(name) for name in result.tallies},
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
            name: {backend: tally.surveyed[name] for backend, tally in result.tallies.items()}
            for name in ("dropped", "lost", "sent_bytes")
        },
        "cpu_seconds": {backend: tally.cpu_seconds for backend, tally in result.tallies.items()},
    }


def columns(first: Experiment, has_ranks: bool) -> list[Column]:
    """Columns of a table of experiments such as `first`, some with several ranks per host (`has_ranks`); columns
    without content are left out."""
    return [
        number("hosts", least=5),
        number("ranks", drop=9, least=5 * has_ranks),
        number("density", drop=9, least=7 * bool(first.sparsity)),
        number("union", drop=9, least=5 * bool(first.sparsity)),
        text("sum by", least=8),
        number("time", "ms", least=6),
        number("goodput", "Mbit/s", least=6),
        number("bound", "Mbit/s", drop=2, least=6),
        number("share", "%", least=5),
        number("times dense", drop=1, least=5 * bool(first.sparsity)),
        number("times Gloo", drop=1, least=5 * (GLOO in first.backends)),
        number("resent", drop=3, least=7),
        number("dropped", drop=4, least=7),
        number("lost", drop=5, least=6 * bool(first.link.loss)),
        number("CPU", "s", drop=6, least=6),
    ]


def title(first: Experiment, tcp: str) -> str:
    """Title of the table. `tcp`: Gloo's congestion control."""
    link = first.link
    return (
        f"{NAMES[first.collective]} of {first.size_bytes / 2**20:g} MiB of float32 ({first.wire} lanes, "
        f"{first.payload_bytes} bytes in a packet) over links of {link.rate_bps / 1e6:g} Mbit/s, "
        f"{link.delay_s * 1e6:g} µs and {link.loss:.2%} loss each way, queues of {link.queue_limit_bytes >> 10} KiB; "
        f"Gloo over TCP with {tcp}."
    )


def notes(first: Experiment) -> list[str]:
    """Explanation of the columns."""
    lines = [
        f"Goodput is of the tensor. Bounds: {first.payload_bytes} of {first.payload_bytes} + 10 + 8 + 20 + 14 bytes "
        "on the line are ours (header, UDP, IP, Ethernet as tc counts it), times 32 bits over a lane's; a ring moves "
        "each bit 2(n-1)/n times, 1448 bytes in 1514. Packets resent, dropped by full queues (a train counts once), "
        "lost on purpose, and CPU seconds: of all hosts and repeats."
    ]
    if first.collective != ALL_REDUCE:
        lines.insert(
            0,
            f"Packets of this collective have {WORD_BYTES} bytes more. A link carries {first.link_share:.3f} of the "
            f"tensor in its busier direction, in a ring {first.ring_traffic:.3f}.",
        )
    if first.sparsity is not None:
        lines.insert(
            0,
            f"Sparse: blocks of {first.sparsity.block} elements, {first.sparsity.overlap} overlap between the ranks; "
            "union is the share of blocks that some rank has, and bound what a link could carry if it brought its "
            "host each of those once, in dense packets.",
        )
    return lines


def rows(result: Result) -> list[list[str]]:
    """Table rows, one for each backend, in the order of `columns`."""
    return [_row(result, backend, tally) for backend, tally in result.tallies.items()]


def _row(result: Result, backend: str, tally: Tally) -> list[str]:
    e, is_ours = result.experiment, backend == SWITCHML
    bound, goodput = e.bound_bps(backend), result.goodput_bps(backend)
    return [
        str(e.workers),
        str(e.world_size) if e.ranks_per_host > 1 else "",
        f"{e.sparsity.density:g}" if e.sparsity else "",
        f"{e.union_density:.3f}" if e.sparsity else "",
        "sparse" if e.sparsity and is_ours else backend,
        f"{tally.median_s * 1e3:.0f}",
        f"{goodput / 1e6:.0f}",
        f"{bound / 1e6:.0f}" if bound else "–",
        f"{100 * goodput / bound:.1f}" if bound else "–",
        f"{result.dense_ratio:.2f}" if e.sparsity and is_ours and result.dense_ratio else "",
        f"{result.ratio:.2f}" if is_ours and result.ratio else "",
        f"{tally.agents.get('retransmitted', 0):.0f}" if backend != GLOO else "",
        f"{sum(tally.surveyed['dropped'].values())}",
        f"{sum(tally.surveyed['lost'].values())}" if e.link.loss else "",
        f"{sum(tally.cpu_seconds.values()):.2f}",
    ]
