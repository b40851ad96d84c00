"""Events, rates and times as text: one line each, for the log and for `switchml status`."""

import json
import time
from collections.abc import Mapping
from typing import Any

from switchml.control.membership import name_ranks


def describe(event: Mapping[str, Any]) -> str:
    """One line for an event of events.py, without its time."""
    kind, job = event.get("event", "?"), event.get("job", "?")
    if kind == "job_forming":
        text = f"forming, {event['world_size']} ranks expected"
    elif kind == "rank_joined":
        who = f" ({event['host']}, pid {event['pid']})" if event["host"] else ""
        where = f" from {event['address']}" if "address" in event else ""
        text = f"rank {event['rank']}{who} joined{where}, {event['joined']} of {event['world_size']}"
    elif kind == "job_started":
        moved = f", moved here (epoch {event['epoch']})" if event.get("epoch") else ""
        text = f"started as job {event['job_id']} with {event['slots']} slots{moved}"
    elif kind in ("peer_left", "peer_lost"):
        text = event["reason"]
    elif kind == "job_ended":
        text = f"{event['state']}: {event['reason']}"
    elif kind == "stall":
        text = f"stalled, waits for {name_ranks(event['missing'])}" if event["missing"] else "resumed"
    elif kind == "rates":
        text = f"{si(event['goodput_bps'], 'bit/s')} goodput, {si(event['rounds_per_s'], 'rounds/s')}, "
        if "retransmissions_per_s" in event:
            text += f"{si(event['retransmissions_per_s'], 'retransmissions/s')}, "
        text += f"{event['slots_in_use']} slots in use"
    else:
        text = f"{kind} {json.dumps({name: event[name] for name in event if name not in ('event', 'time', 'job')})}"
    return f"job {job!r}: {text}"


def describe_at(event: Mapping[str, Any]) -> str:
    """`describe` with the local time of day in front."""
    return f"{time.strftime('%H:%M:%S', time.localtime(event.get('time', 0)))} {describe(event)}"


def si(value: float, unit: str) -> str:
    """Text with an SI prefix and three digits: `1.25 Gbit/s`."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}".rstrip()


def duration(seconds: float) -> str:
    """Text of a duration: `3.2 s`, `5 min 10 s`, `2 h 3 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
