"""Reads dPRO's timelines (github.com/joapolarbear/dpro, docs/format.md): Chrome's JSON with `"pid": "host0.rank1"`,
names such as `BW.conv1.backward` and `Comm.conv1.Sync`, and a transaction after `~>` that both ends of a message share.
Edges of an accompanying dag.gml become causes.
"""

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from emulator.jobs.workload.graph import Collective
from emulator.traces.events import NONE, Group, Lane, LaneKind, RankTrace, What
from emulator.traces.readers.chrome import ChromeFile
from emulator.traces.readers.tables import Numbers, occurrences, table
from switchml.errors import TraceError
from switchml.files import read_text

_PLACE = re.compile(r"host(\d+)\.rank(\d+)")
_WHAT = {"I/O": What.LOAD, "IO": What.LOAD}


class Event(msgspec.Struct):
    """One event; `args` has the plain name, the iteration (`cnt` or `step`) and possibly `size`."""

    name: str = ""
    ph: str = "X"
    ts: float = 0.0
    dur: float = 0.0
    pid: int | str = ""
    tid: int | str = ""
    cat: str = ""
    args: dict[str, Any] | None = None


def read(path: Path, *, salvage: bool = False) -> list[RankTrace]:
    """Read all ranks in `path`."""
    file = ChromeFile(path, Event, salvage=salvage)
    ranks: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for batch in file.batches():
        for event in batch:
            place = _PLACE.search(str(event.pid))
            if event.ph == "X" and place:
                event.name = event.name.split("->")[-1]
                ranks[int(place[1]), int(place[2])].append(event)
    if not ranks:
        raise TraceError(f"{path} has no events of dPRO's: none with a pid such as host0.rank0")
    edges = _edges(path.parent / "dag.gml")
    # Ranks are numbered globally; dPRO numbers them per host or globally, depending on how it was run.
    through = len({rank for _, rank in ranks}) == len(ranks)
    places = sorted(ranks, key=lambda place: place[1] if through else place)
    number = {place: place[1] if through else at for at, place in enumerate(places)}
    world = tuple(sorted(number.values()))
    about = {"broken": file.broken} if file.broken else {}
    return [
        _trace(ranks[place], edges, rank=number[place], host=f"host{place[0]}", world=world, source=path, about=about)
        for place in places
    ]


def _trace(
    recorded: list[Event], edges: dict[str, list[str]], rank: int, host: str, world: tuple[int, ...], **others: Any
) -> RankTrace:
    first_us = min(event.ts for event in recorded)
    lanes, names, groups = Numbers(), Numbers(), Numbers()
    recorded.sort(key=lambda event: (event.ts, -event.dur))
    lane_of = [lanes[_lane(event)] for event in recorded]
    order = np.argsort(lane_of, kind="stable")
    recorded = [recorded[at] for at in order]
    start_s = np.array([(event.ts - first_us) * 1e-6 for event in recorded])
    duration_s = np.array([event.dur * 1e-6 for event in recorded])
    what, collective = (np.array(column) for column in zip(*map(_kind, recorded), strict=True))
    communication = np.flatnonzero(collective)
    communication = communication[np.argsort(start_s[communication], kind="stable")]
    group, sequence, peer = (np.full(len(recorded), NONE, np.int64) for _ in range(3))
    # Each tensor is a separate group: its transactions are numbered separately, and have the same order on every rank.
    group[communication] = [groups[_transaction(recorded[at].name)] for at in communication]
    sequence[communication] = occurrences(zip(what[communication], group[communication], strict=True))
    for at in np.flatnonzero(collective == Collective.P2P):
        peer[at] = _peer(recorded[at], 1 if what[at] == What.SEND else -1, rank, world)
    return RankTrace(
        rank=rank,
        world_size=len(world),
        host=host,
        format="dpro",
        epoch_s=first_us * 1e-6,
        lanes=[Lane(name, kind) for name, kind in lanes],
        groups=[Group(key, world) for key in groups],
        events=table(
            name=[names[event.name] for event in recorded],
            what=what,
            lane=np.array(lane_of)[order],
            start_s=start_s,
            duration_s=duration_s,
            collective=collective,
            group=group,
            sequence=sequence,
            peer=peer,
            bytes=[float((event.args or {}).get("size", 0) or 0) for event in recorded],
        ),
        names=list(names),
        causes=_causes(recorded, start_s, start_s + duration_s, edges),
        steps=_steps(recorded, start_s, start_s + duration_s),
        **others,
    )


def _kind(event: Event) -> tuple[What, Collective]:
    parts = event.name.split(".")
    if parts[0] != "Comm":
        return _WHAT.get(parts[0], What.COMPUTE), Collective.NONE
    last = parts[-1].split("~>")[0].upper()
    if last in ("SEND", "PUSH_REQ", "PULL_RES"):
        return What.SEND, Collective.P2P
    if last in ("RECV", "PUSH_RES", "PULL_REQ"):
        return What.RECV, Collective.P2P
    reduces = "ALLREDUCE" in last or last in ("PUSH", "PULL")
    return (What.COLLECTIVE, Collective.ALL_REDUCE) if reduces else (What.SCOPE, Collective.NONE)


def _lane(event: Event) -> tuple[str, LaneKind]:
    if event.name.startswith("Comm."):
        return f"communication {event.tid}".strip(), LaneKind.TRANSPORT
    if _kind(event)[0] == What.LOAD:
        return "loader", LaneKind.HOST
    return f"compute {event.tid}".strip(), LaneKind.DEVICE


def _transaction(name: str) -> str:
    """Return tensor and, for chunks, chunk: equal at both ends of a transfer."""
    tensor, _, suffix = name.partition("~>")
    return ".".join(tensor.split(".")[1:-1]) + (f"~>{suffix}" if suffix else "")


def _peer(event: Event, step: int, rank: int, world: tuple[int, ...]) -> int:
    """Return the peer in the arguments, or the neighbor in the ring."""
    peer = (event.args or {}).get("peer")
    return int(peer) if peer is not None else world[(world.index(rank) + step) % len(world)]


def _iteration(event: Event) -> int:
    args = event.args or {}
    return int(args.get("step", args.get("cnt", 0)) or 0)


def _steps(recorded: list[Event], start_s: np.ndarray, end_s: np.ndarray) -> np.ndarray:
    number = np.array([_iteration(event) for event in recorded])
    return np.array([[start_s[number == at].min(), end_s[number == at].max()] for at in np.unique(number)])


def _causes(recorded: list[Event], start_s: np.ndarray, end_s: np.ndarray, edges: dict[str, list[str]]) -> np.ndarray:
    """Return the graph's edges in each iteration, where the times are consistent."""
    place = {(event.name.split("~>")[0], _iteration(event)): at for at, event in enumerate(recorded)}
    pairs = set()
    for (name, step), cause in place.items():
        for follower in edges.get(name, ()):
            effect = place.get((follower, step))
            if effect is not None and effect != cause and end_s[cause] <= start_s[effect] + 1e-6:
                pairs.add((cause, effect))
    return np.array(sorted(pairs), np.int32).reshape(-1, 2)


def _edges(path: Path) -> dict[str, list[str]]:
    """Parse a GML file (as written by networkx): node label → labels of successors; empty if there is no file."""
    if not path.exists():
        return {}
    text = read_text(path, TraceError)
    labels = {
        number[1]: label[1].split("->")[-1]
        for block in re.findall(r"\bnode\s*\[(.*?)\n\s*\]", text, re.DOTALL)
        if (number := re.search(r"\bid\s+(\d+)", block)) and (label := re.search(r'\blabel\s+"([^"]*)"', block))
    }
    following: dict[str, list[str]] = defaultdict(list)
    for block in re.findall(r"\bedge\s*\[(.*?)\n\s*\]", text, re.DOTALL):
        source, target = (re.search(rf"\b{end}\s+(\d+)", block) for end in ("source", "target"))
        if source and target:
            following[labels.get(source[1], "")].append(labels.get(target[1], ""))
    return following
