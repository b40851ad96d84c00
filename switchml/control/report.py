"""`StatusReply` as text: JSON for programs, tables for people."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf.message import Message

from switchml.control import v2_pb2
from switchml.control.membership import name_ranks
from switchml.control.wording import duration
from switchml.counters import MALFORMED
from switchml.tables import Table, number, text

COUNTERS_SHOWN = ("accepted", "retransmissions", "duplicates", "stale", "received_packets", "sent_packets")
"""Counters in the table of ranks; --json has all of them."""
GLOO = "/gloo"
"""Suffix of the names of collectives that used Gloo (v2.proto)."""
REFUSALS = ("refused_window", "refused_tag", "refused_format", "refused_auth")


def as_json(reply: v2_pb2.StatusReply) -> str:
    """One JSON object with the field names of v2.proto, including fields that are zero or empty."""
    return json.dumps(_plain(reply))


def _plain(message: Message) -> dict[str, Any]:
    """`message` as dicts, lists and numbers; protobuf's own JSON has 64-bit integers as strings."""
    result: dict[str, Any] = {}
    for descriptor in message.DESCRIPTOR.fields:
        value = getattr(message, descriptor.name)
        if isinstance(value, Mapping):
            value = dict(sorted(value.items()))
        elif isinstance(value, Message):
            value = _plain(value)
        elif not isinstance(value, (str, int, float)):
            value = [_plain(item) if isinstance(item, Message) else item for item in value]
        result[descriptor.name] = value
    return result


def head(reply: v2_pb2.StatusReply) -> str:
    """Text that describes the aggregator as a whole."""
    plane = reply.dataplane
    line = (
        f"switchml {reply.version} aggregator, up {duration(reply.uptime_s)}. "
        f"Data plane: {plane.kind} at {plane.address.ip}:{plane.address.port}, "
        f"{plane.slots_allocated} of {plane.slot_capacity} slots allocated. Events: {reply.events_address}."
    )
    refused = ", ".join(
        f"{count} {name.removeprefix('refused_')}"
        for name, count in sorted(reply.refused.items())
        if count and name != MALFORMED
    )
    if refused:
        line += f" Packets refused: {refused}."
    if malformed := reply.refused.get(MALFORMED):
        line += f" Control messages that could not be read: {malformed}."
    if reply.hidden_jobs:
        line += f" Jobs with another secret, which are not shown (--secret): {reply.hidden_jobs}."
    return line if reply.jobs else f"{line}\nNo jobs."


def as_tables(reply: v2_pb2.StatusReply) -> list[Table]:
    """Tables of jobs and of their ranks, if there are any."""
    if not reply.jobs:
        return []
    live = [job for job in reply.jobs if job.state not in ("ended", "failed")]
    tables = [_job_table(reply.jobs)]
    if any(job.ranks for job in live):
        tables.append(_rank_table(live))
    if any(rank.calls for job in reply.jobs for rank in job.ranks):
        tables.append(_call_table(reply.jobs))
    if any(rank.loading for job in reply.jobs for rank in job.ranks):
        tables.append(_loading_table(reply.jobs))
    return tables


def _job_table(jobs: Iterable[v2_pb2.JobStatus]) -> Table:
    columns = [
        text("job"),
        number("id", drop=6),
        text("state"),
        number("ranks"),
        number("protocol", drop=7),
        number("slots", drop=4),
        number("in use", drop=5),
        number("payload", "B", drop=3),
        number("goodput", "Mbit/s"),
        text("age", drop=1),
        text("remarks", drop=2),
    ]
    table = Table(columns, title="Jobs")
    for job in jobs:
        joined = sum(rank.state == "joined" for rank in job.ranks)
        remarks = job.reason or (f"waits for {name_ranks(job.missing)}" if job.missing else "")
        if job.epoch:
            remarks = f"epoch {job.epoch}: moved here{'; ' if remarks else ''}{remarks}"
        table.add(
            job.name,
            str(job.job_id or "–"),
            job.state,
            f"{joined}/{job.world_size}",
            f"v{job.protocol}",
            str(job.slots or "–"),
            str(job.slots_in_use),
            str(job.payload_bytes or "–"),
            f"{job.goodput_bps / 1e6:,.1f}",
            duration(job.age_s),
            remarks,
        )
    return table


def _rank_table(jobs: Iterable[v2_pb2.JobStatus]) -> Table:
    columns = [
        text("job"),
        number("rank"),
        text("state", drop=1),
        text("process", drop=1),
        text("address", drop=2),
        number("accepted"),
        number("resent"),
        number("duplicates", drop=4),
        number("stale", drop=5),
        number("received", drop=6),
        number("sent", drop=6),
        number("refused", drop=3),
        number("rate", "packets/s", drop=2),
    ]
    table = Table(columns, title="Ranks", notes=["packets since the rank joined, and received in a second"])
    for job in jobs:
        for rank in job.ranks:
            is_joined = rank.state == "joined"
            table.add(
                job.name,
                str(rank.rank),
                "" if is_joined else rank.state,
                f"{rank.host}, pid {rank.pid}" if rank.host else "",
                f"{rank.address.ip}:{rank.address.port}",
                *(f"{_count(rank, name):,}" for name in COUNTERS_SHOWN),
                f"{sum(_count(rank, name) for name in REFUSALS):,}",
                f"{rank.rates['received_packets']:,.0f}" if "received_packets" in rank.rates else "–",
            )
    return table


def _call_table(jobs: Iterable[v2_pb2.JobStatus]) -> Table:
    columns = [text("job"), text("collective"), number("aggregator"), number("Gloo")]
    table = Table(columns, title="Collectives", notes=["calls of PyTorch programs, by the rank that made most"])
    for job in jobs:
        for name in sorted({name.removesuffix(GLOO) for rank in job.ranks for name in rank.calls}):
            ways = (max(rank.calls.get(name + way, 0) for rank in job.ranks) for way in ("", GLOO))
            table.add(job.name, name, *(f"{count:,}" for count in ways))
    return table


def _loading_table(jobs: Iterable[v2_pb2.JobStatus]) -> Table:
    columns = [
        text("job"),
        number("rank"),
        number("step"),
        number("buffer", "%"),
        number("peers", "%", drop=2),
        number("storage", "%", drop=1),
        number("reads"),
        number("read", "MB"),
        number("retried", drop=3),
        number("waits"),
        number("waited", "s"),
    ]
    table = Table(columns, title="Planned loaders", notes=["where samples came from, and reads of storage"])
    for job in jobs:
        for rank in job.ranks:
            if not rank.loading:
                continue
            of = defaultdict(float, rank.loading)
            samples = [of[name] for name in ("buffer_hits", "peer_hits", "storage_samples")]
            table.add(
                job.name,
                str(rank.rank),
                f"{of['steps']:,.0f}",
                *(f"{100 * each / max(sum(samples), 1):.0f}" for each in samples),
                f"{of['reads']:,.0f}",
                f"{of['read_bytes'] / 1e6:,.1f}",
                f"{of['retried']:,.0f}",
                f"{of['waits']:,.0f}",
                f"{of['wait_s']:,.1f}",
            )
    return table


def _count(rank: v2_pb2.RankStatus, name: str) -> int:
    return rank.counters.get(name, 0)
