"""`StatusReply` as text: JSON for programs, tables for people."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf.message import Message
from rich.console import RenderableType
from rich.table import Table

from switchml.control import v2_pb2
from switchml.control.membership import name_ranks
from switchml.control.wording import duration, si

JOB_COLUMNS = ("job", "id", "state", "ranks", "protocol", "slots", "in use", "payload", "goodput", "age", "remarks")
COUNTERS_SHOWN = ("accepted", "retransmissions", "duplicates", "stale", "received_packets", "sent_packets")
"""In the table of ranks; --json has all of them."""
REFUSALS = ("refused_window", "refused_tag", "refused_format", "refused_auth")


def as_json(reply: v2_pb2.StatusReply) -> str:
    """One JSON object with the field names of v2.proto; fields that are zero or empty are there too."""
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


def as_tables(reply: v2_pb2.StatusReply) -> list[RenderableType]:
    """A line about the aggregator, a table of jobs and one of their ranks, for rich to print."""
    plane = reply.dataplane
    head = (
        f"switchml {reply.version} aggregator, up {duration(reply.uptime_s)}. "
        f"Data plane: {plane.kind} at {plane.address.ip}:{plane.address.port}, "
        f"{plane.slots_allocated} of {plane.slot_capacity} slots allocated. Events: {reply.events_address}."
    )
    refused = ", ".join(
        f"{count} {name.removeprefix('refused_')}" for name, count in sorted(reply.refused.items()) if count
    )
    if refused:
        head += f" Packets refused: {refused}."
    if reply.hidden_jobs:
        head += f" Jobs with another secret, which are not shown (--secret): {reply.hidden_jobs}."
    if not reply.jobs:
        return [head, "No jobs."]
    live = [job for job in reply.jobs if job.state not in ("ended", "failed")]
    return [head, _job_table(reply.jobs), *([_rank_table(live)] if any(job.ranks for job in live) else [])]


def _job_table(jobs: Iterable[v2_pb2.JobStatus]) -> Table:
    table = Table(*JOB_COLUMNS, title="Jobs", title_justify="left")
    for job in jobs:
        joined = sum(rank.state == "joined" for rank in job.ranks)
        remarks = job.reason or (f"waits for {name_ranks(job.missing)}" if job.missing else "")
        table.add_row(
            job.name,
            str(job.job_id or "-"),
            job.state,
            f"{joined}/{job.world_size}",
            f"v{job.protocol}",
            str(job.slots or "-"),
            str(job.slots_in_use),
            f"{job.payload_bytes} B" if job.payload_bytes else "-",
            si(job.goodput_bps, "bit/s"),
            duration(job.age_s),
            remarks,
        )
    return table


def _rank_table(jobs: Iterable[v2_pb2.JobStatus]) -> Table:
    counters = (name.replace("_", " ") for name in COUNTERS_SHOWN)
    table = Table("job", "rank", "who", "address", *counters, "refused", "in/s", title="Ranks", title_justify="left")
    for job in jobs:
        for rank in job.ranks:
            who = f"{rank.host}, pid {rank.pid}" if rank.host else ""
            table.add_row(
                job.name,
                f"{rank.rank}" + (f" ({rank.state})" if rank.state != "joined" else ""),
                who,
                f"{rank.address.ip}:{rank.address.port}",
                *(str(_count(rank, name)) for name in COUNTERS_SHOWN),
                str(sum(_count(rank, name) for name in REFUSALS)),
                si(rank.rates["received_packets"], "") if "received_packets" in rank.rates else "-",
            )
    return table


def _count(rank: v2_pb2.RankStatus, name: str) -> int:
    return rank.counters.get(name, 0)
