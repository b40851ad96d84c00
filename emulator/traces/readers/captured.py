"""What `switchml trace capture` and `switchml_profile` leave of a rank: torch's profile, to which the notes of our own
agents are joined. Their all-reduces become COLLECTIVE events on lanes of their own, launched by the span that submitted
them; where a thread waits for communication there are SYNC events; packets become `wire`.

Files of a rank: rank-N.about.json, rank-N.json.gz, rank-N.sizes.json, and with our agents rank-N.wire.npz. There may be
a rank-N.et.json too, torch's execution trace, for other programs. It is not read: it covers one iteration,
after those that count; our spans give the order of collectives and their waiters in all iterations; and the profile has
the groups.
"""

from __future__ import annotations

import dataclasses
import json
import re
import zipfile
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from emulator.traces.events import NONE, Events, Group, Lane, LaneKind, Pings, RankTrace, What, Wire
from emulator.traces.readers import sizes
from emulator.traces.readers.kineto import kineto
from emulator.traces.readers.nesting import parents
from emulator.workload.graph import Collective
from switchml.errors import TraceError

VERSION = 1
ABOUT = re.compile(r"rank-(\d+)\.about\.json")
_OF_RANK = re.compile(r"(rank-\d+)\.(json\.gz|wire\.npz|et\.json|sizes\.json|about\.json)")
LAUNCH = re.compile(r"switchml\.all_reduce#(\d+)")
WAIT, WAIT_FOR_BUCKETS = "switchml.wait", "switchml.wait_for_buckets"
ALL_REDUCE = "switchml:all_reduce"
_COPY_BACK = "copy_bucket_to_grad"
_NODE = "autograd::engine::evaluate_function"
SLACK_S = 50e-6
"""A collective is noted as done by another thread than the one that waits for it, perhaps a little later."""


def about_of(path: Path) -> Path | None:
    """The file that says whose capture `path` is a part of; None where it is of none."""
    match = _OF_RANK.fullmatch(path.name)
    about = path.with_name(f"{match[1]}.about.json") if match else None
    return about if about is not None and about.is_file() else None


def read(path: Path, *, rank: int | None = None, salvage: bool = False) -> RankTrace:
    """The trace that rank-N.about.json, `path`, belongs to. Raises TraceError for files that are missing or broken."""
    about = _read_about(path)
    if rank is not None and rank != about["rank"]:
        raise TraceError(f"{path} is of rank {about['rank']}, not {rank}")
    stem = path.name.removesuffix(".about.json")
    profile = path.with_name(f"{stem}.json.gz")
    if not profile.is_file():
        raise TraceError(f"{path}: {profile.name} is not beside it")
    known = sizes.read(path.with_name(f"{stem}.sizes.json"))
    trace = kineto.read(profile, rank=about["rank"], salvage=salvage, sizes=known)
    clock = _Clock(about["clock"], trace.epoch_s)
    builder = _TraceBuilder(trace)
    wire = None
    if about["agents"]:
        notes = path.with_name(f"{stem}.wire.npz")
        calls, packets = _read_notes(notes, len(about["agents"]))
        for k, (agent, own) in enumerate(zip(about["agents"], calls, strict=True)):
            builder.add_calls(f"switchml {agent['tag']}" + (f" ({k})" if k else ""), agent["ranks"], own, clock)
        wire = _wire(about["agents"], packets, clock)
    ddp = about["ddp"]
    builder.add_waits([len(bucket) for bucket in ddp[0]["buckets"]] if len(ddp) == 1 else [])
    trace = builder.trace()
    gradients = _gradients(trace, known)
    trace.events.bytes[list(gradients)] = [one.bytes for one in gradients.values()]
    names = {event: one.name for event, one in gradients.items() if one.name}
    return dataclasses.replace(
        trace,
        format="switchml",
        source=profile,
        world_size=about["world_size"],
        host=about["host"],
        backend=about["backend"] or trace.backend,
        steps=_steps(trace, about),
        wire=wire,
        pings=_pings(about.get("pings"), clock),
        gradient_names=names or _gradient_names(trace, about),
        about=trace.about | _details(about),
    )


def _read_about(path: Path) -> dict[str, Any]:
    try:
        about = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise TraceError(f"{path} can't be read: {error}") from None
    if not isinstance(about, dict) or about.get("format") != "switchml":
        raise TraceError(f"{path} was not written by switchml trace capture")
    if about.get("version") != VERSION:
        raise TraceError(f"{path} has version {about.get('version')}; this switchml reads version {VERSION}")
    return about


def _read_notes(path: Path, agents: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return tuple([file[f"{what}_{k}"] for k in range(agents)] for what in ("calls", "packets"))
    except (zipfile.BadZipFile, OSError, ValueError, KeyError, EOFError) as error:
        raise TraceError(f"{path} has no packets of {agents} agents: {error}") from None


class _Clock:
    """From nanoseconds of CLOCK_MONOTONIC to seconds since the trace's epoch. `pairs`: the two clocks at the capture's
    start and end, between which Unix time may have been slewed."""

    def __init__(self, pairs: list[dict[str, int]], epoch_s: float) -> None:
        self._monotonic = [pair["monotonic_ns"] for pair in pairs]
        self._ahead = [pair["unix_ns"] - pair["monotonic_ns"] for pair in pairs]
        self._epoch_ns = round(epoch_s * 1e9)

    def seconds(self, monotonic_ns: np.ndarray) -> np.ndarray:
        since = monotonic_ns + (self._ahead[0] - self._epoch_ns)
        slewed = np.interp(monotonic_ns, self._monotonic, [ahead - self._ahead[0] for ahead in self._ahead])
        return (since + slewed) * 1e-9


@dataclass(frozen=True)
class _Launched:
    """A collective and its times."""

    event: int
    launched_s: float
    start_s: float
    end_s: float
    in_backward: bool
    """Whether autograd launched it, as it does for DDP."""


class _TraceBuilder:
    """A trace that events are added to. New ones are numbered after the old ones; `trace` puts all in order."""

    def __init__(self, trace: RankTrace) -> None:
        self._trace = trace
        self._names, self._lanes, self._groups = list(trace.names), list(trace.lanes), list(trace.groups)
        self._what = trace.events.what.copy()
        self._name = trace.events.name.copy()
        self._duration_s = trace.events.duration_s.copy()
        self._rows: list[dict[str, Any]] = []
        self._causes = [tuple(pair) for pair in trace.causes.tolist()]
        self._launches = self._find_launches()

    def _find_launches(self) -> dict[int, int]:
        """Number of a span → its event, which is a launch from here on."""
        numbers = {at: int(match[1]) for at, name in enumerate(self._names) if (match := LAUNCH.fullmatch(name))}
        plain = self._number_of_name(LAUNCH.pattern.partition("#")[0].replace("\\", "")) if numbers else NONE
        launches = {}
        for event in np.flatnonzero(np.isin(self._trace.events.name, list(numbers))).tolist():
            launches[numbers[int(self._name[event])]] = event
            self._what[event], self._name[event] = What.LAUNCH, plain
        return launches

    def _number_of_name(self, name: str) -> int:
        if name not in self._names:
            self._names.append(name)
        return self._names.index(name)

    def _add(self, **columns: Any) -> int:
        self._rows.append(columns)
        return len(self._trace.events) + len(self._rows) - 1

    # All-reduces of ours

    def add_calls(self, job: str, ranks: list[int], calls: np.ndarray, clock: _Clock) -> None:
        """Each of an agent's all-reduces from its submission to its end, without those that failed."""
        self._lanes.append(Lane(job, LaneKind.TRANSPORT))
        self._groups.append(Group(job, tuple(ranks)))
        name = self._number_of_name(ALL_REDUCE)
        start_s, end_s = clock.seconds(calls["submitted"]), clock.seconds(calls["done"])
        for call, from_s, until_s in zip(calls, start_s.tolist(), end_s.tolist(), strict=True):
            if call["failed"]:
                continue
            launch = self._launches.get(int(call["launch"]), NONE)
            if launch != NONE:
                # Two clocks: the profiler's may be some microseconds off.
                from_s = max(from_s, float(self._trace.events.start_s[launch]))
            event = self._add(
                name=name,
                what=What.COLLECTIVE,
                lane=len(self._lanes) - 1,
                start_s=from_s,
                duration_s=max(until_s - from_s, 0.0),
                collective=Collective.ALL_REDUCE,
                group=len(self._groups) - 1,
                sequence=int(call["tensor"]),
                bytes=float(call["bytes"]),
            )
            if launch != NONE:
                self._causes.append((launch, event))

    # Waits

    def add_waits(self, buckets: list[int]) -> None:
        """SYNC events for waiting spans. `buckets`: how many gradients DDP has in each, where it is known: at the end
        of backward it waits for one bucket after the other, and copies each back before it waits for the next
        (reducer.cpp, finalize_backward)."""
        names = {name: at for at, name in enumerate(self._names) if name in (WAIT, WAIT_FOR_BUCKETS)}
        events = self._trace.events
        spans = np.flatnonzero(np.isin(events.name, list(names.values())))
        inside: dict[int, list[int]] = {span: [] for span in spans.tolist()}
        for event in np.flatnonzero(np.isin(events.parent, spans)).tolist():
            inside[int(events.parent[event])].append(event)
        left = self._launched()
        for span in spans[np.argsort(events.start_s[spans], kind="stable")].tolist():
            start_s, end_s = float(events.start_s[span]), float(events.end_s[span])
            if events.name[span] == names.get(WAIT):
                awaited = self._awaited(left, start_s, end_s)
                self._add_sync(span, start_s, end_s, awaited)
                left = [one for one in left if one not in awaited]
                continue
            mine = [one for one in left if one.in_backward and one.launched_s < start_s]
            left = [one for one in left if one not in mine]
            copied = [event for event in inside[span] if _COPY_BACK in self._names[self._name[event]]]
            begins_s = [*events.start_s[inside[span]].tolist(), end_s]
            if len(mine) != len(buckets) or sum(buckets) != len(copied):
                # Views of buckets need no copies; what else there may be, it waits for all before it does anything.
                self._add_sync(span, start_s, begins_s[0], mine)
                continue
            for one, first in zip(mine, np.cumsum([0, *buckets[:-1]]).tolist(), strict=True):
                from_s = float(events.end_s[copied[first - 1]]) if first else start_s
                self._add_sync(span, from_s, begins_s[bisect_left(begins_s, from_s)], [one])

    def _awaited(self, left: list[_Launched], start_s: float, end_s: float) -> list[_Launched]:
        """What a `Work.wait` waited for: what ended with it, else the oldest that was over before."""
        left = [one for one in left if not one.in_backward and one.launched_s < start_s]
        ended = [one for one in left if start_s <= one.end_s <= end_s + SLACK_S]
        earlier = [one for one in left if one.end_s < start_s]
        return sorted(ended, key=lambda one: one.end_s)[-1:] or earlier[:1]

    def _add_sync(self, span: int, from_s: float, until_s: float, causes: list[_Launched]) -> None:
        lane, name = int(self._trace.events.lane[span]), int(self._name[span])
        sync = self._add(name=name, what=What.SYNC, lane=lane, start_s=from_s, duration_s=max(until_s - from_s, 0.0))
        self._causes += [(one.event, sync) for one in causes]
        for one in causes:  # a communicator's thread may close its span long after it has woken who waits
            if one.start_s < until_s < one.end_s:
                self._shorten(one.event, until_s - one.start_s)

    def _shorten(self, event: int, duration_s: float) -> None:
        if event < len(self._duration_s):
            self._duration_s[event] = duration_s
        else:
            self._rows[event - len(self._duration_s)]["duration_s"] = duration_s

    def _launched(self) -> list[_Launched]:
        """Collectives that a host thread has launched, in the order of the launches."""
        events, launched = self._trace.events, []
        for cause, caused in self._causes:
            if cause >= len(events) or self._what[cause] != What.LAUNCH:
                continue
            if caused >= len(events):
                row = self._rows[caused - len(events)]
                start_s, duration_s = row["start_s"], row["duration_s"]
            elif events.what[caused] == What.COLLECTIVE:
                start_s, duration_s = float(events.start_s[caused]), float(events.duration_s[caused])
            else:
                continue
            launched_s = float(events.start_s[cause])
            launched.append(_Launched(caused, launched_s, start_s, start_s + duration_s, self._is_in_backward(cause)))
        return sorted(launched, key=lambda one: (one.launched_s, one.event))

    def _is_in_backward(self, event: int) -> bool:
        while (event := int(self._trace.events.parent[event])) != NONE:
            if self._trace.names[self._trace.events.name[event]].startswith(_NODE):
                return True
        return False

    # The whole

    def trace(self) -> RankTrace:
        events, rows = self._trace.events, self._rows
        added = {"collective": Collective.NONE, "group": NONE, "sequence": NONE, "peer": NONE, "bytes": 0.0}
        added |= {"gradient": False, "parent": NONE}
        columns = {}
        for field in dataclasses.fields(Events):
            changed = {"what": self._what, "name": self._name, "duration_s": self._duration_s}
            old = changed.get(field.name, getattr(events, field.name))
            new = np.array([row.get(field.name, added.get(field.name)) for row in rows], old.dtype)
            columns[field.name] = np.concatenate([old, new])
        order = np.lexsort((-columns["duration_s"], columns["start_s"], columns["lane"]))
        columns = {name: column[order] for name, column in columns.items()}
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        end_s = columns["start_s"] + columns["duration_s"]
        columns["parent"] = parents(columns["lane"], columns["start_s"], end_s)
        of_transport = np.array([lane.kind == LaneKind.TRANSPORT for lane in self._lanes])[columns["lane"]]
        columns["parent"][of_transport] = NONE  # what overlaps there is not inside
        causes = np.array(self._causes, np.int64).reshape(-1, 2)
        return dataclasses.replace(
            self._trace,
            names=self._names,
            lanes=self._lanes,
            groups=self._groups,
            events=Events(**columns),
            causes=place[causes].astype(np.int32),
        )


def _wire(agents: list[dict], packets: list[np.ndarray], clock: _Clock) -> Wire:
    records = np.concatenate(packets)
    job = np.repeat([agent["tag"] for agent in agents], [len(own) for own in packets]).astype(np.int32)
    order = np.argsort(records["at"], kind="stable")
    records, job = records[order], job[order]
    return Wire(
        at_s=clock.seconds(records["at"]),
        what=records["what"],
        job=job,
        tensor=records["tensor"].astype(np.int64),
        chunk=records["chunk"].astype(np.int64),
        version=records["version"],
        bytes=records["bytes"],
    )


def _pings(columns: dict[str, list] | None, clock: _Clock) -> Pings | None:
    if not columns or not columns["message"]:
        return None
    at_s = clock.seconds(np.array(columns["at_ns"], np.int64))
    return Pings(at_s, np.array(columns["message"], np.int64), np.array(columns["sent"], bool))


def _steps(trace: RankTrace, about: dict[str, Any]) -> np.ndarray:
    """The captured iterations that came to their end."""
    whole = {f"ProfilerStep#{one['number']}" for one in about["iterations"] if one["kind"] == "captured"}
    names = [at for at, name in enumerate(trace.names) if name in whole]
    at = np.flatnonzero(np.isin(trace.events.name, names))
    at = at[np.argsort(trace.events.start_s[at])]
    return np.stack([trace.events.start_s[at], trace.events.end_s[at]], axis=1) if len(at) else trace.steps


def _gradients(trace: RankTrace, known: sizes.Sizes | None) -> dict[int, sizes.Parameter]:
    """Event → whose gradient became final in it; none where the notes have more or fewer of them than the profile."""
    events = np.flatnonzero(trace.events.gradient)
    events = events[np.argsort(trace.events.start_s[events], kind="stable")].tolist()
    if known is None or len(events) != len(known.gradients):
        return {}
    return {event: known.parameters[at] for event, at in zip(events, known.gradients, strict=True)}


def _gradient_names(trace: RankTrace, about: dict[str, Any]) -> dict[int, str]:
    """For captures without a list of them: gradients become final in the order that DDP reported, if there is one DDP
    module and the sizes agree."""
    if len(about["ddp"]) != 1:
        return {}
    ddp = about["ddp"][0]
    sizes = [ddp["parameters"][name]["bytes"] for name in ddp["gradients"]]
    events, names = trace.events, {}
    for from_s, until_s in _steps(trace, about).tolist():
        mine = np.flatnonzero(events.gradient & (events.start_s >= from_s) & (events.start_s < until_s))
        mine = mine[np.argsort(events.start_s[mine], kind="stable")]
        if len(mine) == len(sizes) and np.array_equal(events.bytes[mine], sizes):
            names |= dict(zip(mine.tolist(), ddp["gradients"], strict=True))
    return names


def _details(about: dict[str, Any]) -> dict[str, str]:
    details = dict(about["versions"])
    details |= {"codec": about["codec"]} if about["codec"] else {}
    for ddp in about["ddp"][:1]:
        details["bucket_cap_mb"] = f"{ddp['bucket_cap_bytes'] / (1 << 20):.4g}"
    if about["agents"]:
        details["transport"] = ", ".join(sorted({agent["transport"] for agent in about["agents"]}))
    lost = sum(agent["packets_lost"] for agent in about["agents"])
    if lost:
        details["packets lost"] = f"{lost:,} of them had no room in the notes"
    return details
