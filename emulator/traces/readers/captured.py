"""Reads the output of `switchml trace capture` and `switchml_profile` for a rank: torch's profile joined with the
switchml agents' logs. The agents' collectives become COLLECTIVE events on separate lanes, caused by the span that
submitted them; waits for communication become SYNC events, packets `wire`. Files of a rank: rank-N.about.json,
rank-N.json.gz, rank-N.sizes.json, and with switchml agents rank-N.wire.npz. torch's execution trace, rank-N.et.json, is
for other programs: it covers one iteration after the captured ones.
"""

import dataclasses
import re
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from emulator.jobs.workload.graph import Collective
from emulator.traces.events import NONE, Group, Lane, LaneKind, Pings, RankTrace, What, Wire
from emulator.traces.readers import sizes
from emulator.traces.readers.kineto import kineto, staging
from emulator.traces.readers.tables import Numbers, in_order, joined, table
from host_agent.recording import KINDS
from switchml.errors import TraceError
from switchml.files import read_arrays, read_json

VERSION = 1
ABOUT = re.compile(r"rank-(\d+)\.about\.json")
_OF_RANK = re.compile(r"(rank-\d+)\.(json\.gz|wire\.npz|et\.json|sizes\.json|about\.json)")
SUBMIT = "switchml.all_reduce"
LAUNCH = re.compile(rf"{re.escape(SUBMIT)}#(\d+)")
WAIT, WAIT_FOR_BUCKETS = "switchml.wait", "switchml.wait_for_buckets"
CALLS = [f"switchml:{kind}" for kind in KINDS]
COLLECTIVES = np.array([Collective[kind.upper()] for kind in KINDS])
_COPY_BACK = "copy_bucket_to_grad"
_NODE = "autograd::engine::evaluate_function"
SLACK_S = 50e-6
"""A collective is logged as done by another thread than the one that waits for it, possibly a little later."""


def about_of(path: Path) -> Path | None:
    """Return the about file of the capture that `path` belongs to; None if there is none."""
    match = _OF_RANK.fullmatch(path.name)
    about = path.with_name(f"{match[1]}.about.json") if match else None
    return about if about is not None and about.is_file() else None


def read(path: Path, *, rank: int | None = None, salvage: bool = False) -> RankTrace:
    """Read the trace of the capture with the about file `path`. Raises TraceError for missing or damaged files."""
    about = _read_about(path)
    if rank is not None and rank != about["rank"]:
        raise TraceError(f"{path} is of rank {about['rank']}, not {rank}")
    stem = path.name.removesuffix(".about.json")
    profile = path.with_name(f"{stem}.json.gz")
    if not profile.is_file():
        raise TraceError(f"{path}: {profile.name} is not beside it")
    known = sizes.read(path.with_name(f"{stem}.sizes.json"))
    (trace,) = kineto.read(profile, rank=about["rank"], salvage=salvage, sizes=known)
    clock = _Clock(about["clock"], trace.epoch_s)
    agents, ddp = about["agents"], about["ddp"]
    calls, packets = _read_notes(path.with_name(f"{stem}.wire.npz"), len(agents)) if agents else ([], [])
    trace = staging.by_agents(_with_calls(trace, agents, calls, clock))
    trace = _with_waits(trace, [len(bucket) for bucket in ddp[0]["buckets"]] if len(ddp) == 1 else [])
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
        wire=_wire(agents, packets, clock) if agents else None,
        pings=_pings(about.get("pings"), clock),
        gradient_names=names or _gradient_names(trace, about),
        about=trace.about | _details(about),
    )


def _read_about(path: Path) -> dict[str, Any]:
    about = read_json(path, TraceError)
    if not isinstance(about, dict) or about.get("format") != "switchml":
        raise TraceError(f"{path} was not written by switchml trace capture")
    if about.get("version") != VERSION:
        raise TraceError(f"{path} has version {about.get('version')}; this switchml reads version {VERSION}")
    return about


def _read_notes(path: Path, agents: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    arrays = read_arrays(path, TraceError)
    try:
        calls, packets = ([arrays[f"{what}_{k}"] for k in range(agents)] for what in ("calls", "packets"))
        return calls, packets
    except KeyError as error:
        raise TraceError(f"{path} has no packets of {agents} agents: it lacks {error}") from None


class _Clock:
    """Converts nanoseconds of CLOCK_MONOTONIC to seconds since the epoch. `pairs`: both clocks at the capture's start
    and end."""

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
    """A launched collective and its times."""

    event: int
    launched_s: float
    start_s: float
    end_s: float
    in_backward: bool
    """Whether autograd launched it, as for DDP."""


def _with_calls(trace: RankTrace, agents: list[dict[str, Any]], calls: list[np.ndarray], clock: _Clock) -> RankTrace:
    """Return the trace with each successful collective of the switchml agents, from its submission to its end: events
    after all others, on a lane for each agent. The spans that submitted them become launches."""
    names = Numbers(zip(trace.names, count()))
    number = {at: int(match[1]) for at, name in enumerate(trace.names) if (match := LAUNCH.fullmatch(name))}
    spans = np.flatnonzero(np.isin(trace.events.name, list(number)))
    event_of = {
        number[name]: span for name, span in zip(trace.events.name[spans].tolist(), spans.tolist(), strict=True)
    }
    if len(spans):
        trace.events.what[spans], trace.events.name[spans] = What.LAUNCH, names[SUBMIT]
    parts, causes, lanes, groups = [trace.events], [trace.causes], list(trace.lanes), list(trace.groups)
    for agent, own in zip(agents, calls, strict=True):
        own = own[own["failed"] == 0]
        # Older captures contain all-reduces only.
        kinds = own["kind"] if "kind" in (own.dtype.names or ()) else np.zeros(len(own), np.int64)
        start_s, end_s = clock.seconds(own["submitted"]), clock.seconds(own["done"])
        launch = np.array([event_of.get(call, NONE) for call in own["launch"].tolist()], np.int32)
        if trace.lanes_of(LaneKind.DEVICE):
            launch = _in_turn(launch, spans, trace.events.start_s, start_s)
        known = np.flatnonzero(launch != NONE)
        # Two clocks: the profiler's may be off by some microseconds.
        start_s[known] = np.maximum(start_s[known], trace.events.start_s[launch[known]])
        causes.append(np.stack([launch[known], sum(map(len, parts)) + known], axis=1))
        parts.append(
            table(
                name=np.array([names[CALLS[kind]] for kind in kinds.tolist()], np.int64),
                what=np.full(len(own), What.COLLECTIVE),
                lane=np.full(len(own), len(lanes)),
                start_s=start_s,
                duration_s=np.maximum(end_s - start_s, 0.0),
                parent=np.full(len(own), NONE),
                collective=COLLECTIVES[kinds],
                group=np.full(len(own), len(groups)),
                sequence=own["tensor"],
                bytes=own["bytes"],
            )
        )
        job = f"{agent['job']} ({agent['tag']})"  # the same on all its ranks, whatever other jobs each takes part in
        lanes.append(Lane(job, LaneKind.TRANSPORT))
        groups.append(Group(job, tuple(agent["ranks"])))
    return dataclasses.replace(
        trace, names=list(names), lanes=lanes, groups=groups, events=joined(parts), causes=np.concatenate(causes)
    )


def _in_turn(launch: np.ndarray, spans: np.ndarray, began_s: np.ndarray, start_s: np.ndarray) -> np.ndarray:
    """Return `launch`, int32 (calls,), completed: one thread submits accelerator tensors in the order in which they
    were queued."""
    free = np.setdiff1d(spans, launch)
    free = iter(free[np.argsort(began_s[free], kind="stable")].tolist())
    launch, span = launch.copy(), next(free, NONE)
    for call in np.flatnonzero(launch == NONE)[np.argsort(start_s[launch == NONE], kind="stable")].tolist():
        if span != NONE and began_s[span] <= start_s[call]:
            launch[call], span = span, next(free, NONE)
    return launch


def _with_waits(trace: RankTrace, buckets: list[int]) -> RankTrace:
    """Return the trace with SYNC events for waiting spans, all in order. `buckets`: number of gradients in each DDP
    bucket, if known: at the end of backward DDP waits for one bucket after the other, and copies each back before it
    waits for the next (reducer.cpp, finalize_backward)."""
    events, end_s = trace.events, trace.events.end_s
    names = {name: at for at, name in enumerate(trace.names) if name in (WAIT, WAIT_FOR_BUCKETS)}
    spans = np.flatnonzero(np.isin(events.name, list(names.values())))
    inside: dict[int, list[int]] = {span: [] for span in spans.tolist()}
    for event in np.flatnonzero(np.isin(events.parent, spans)).tolist():
        inside[int(events.parent[event])].append(event)
    waits: list[tuple[int, float, float, list[_Launched]]] = []  # span, from, until, awaited collectives
    left = _launched(trace)
    for span in spans[np.argsort(events.start_s[spans], kind="stable")].tolist():
        from_s, until_s = float(events.start_s[span]), float(end_s[span])
        if events.name[span] == names.get(WAIT):
            awaited = _awaited(left, from_s, until_s)
            waits.append((span, from_s, until_s, awaited))
            left = [one for one in left if one not in awaited]
            continue
        mine = [one for one in left if one.in_backward and one.launched_s < from_s]
        left = [one for one in left if one not in mine]
        copied = [event for event in inside[span] if _COPY_BACK in trace.names[events.name[event]]]
        pauses = _pauses(from_s, until_s, events.start_s[inside[span]].tolist(), end_s[inside[span]].tolist())
        if len(mine) != len(buckets) or sum(buckets) != len(copied):
            # Views of buckets need no copies: the wait is the first pause that ends no sooner.
            by_pause: dict[tuple[float, float], list[_Launched]] = {}
            for one in mine:
                ends_later = (pause for pause in pauses if one.end_s <= pause[1] + SLACK_S)
                by_pause.setdefault(next(ends_later, None) or _longest(pauses), []).append(one)
            waits += [(span, *pause, awaited) for pause, awaited in by_pause.items()]
            continue
        for one, first in zip(mine, np.cumsum([0, *buckets[:-1]]).tolist(), strict=True):
            # There may be other activity between the copies of two buckets.
            after = 1 + inside[span].index(copied[first - 1]) if first else 0
            pause = _longest(pauses[after : inside[span].index(copied[first]) + 1])
            waits.append((span, *pause, [one]))
    for _, _, until_s, awaited in waits:
        for one in awaited:  # a communicator's thread may close its span long after it has woken the waiting thread
            if one.start_s < until_s < one.end_s:
                events.duration_s[one.event] = until_s - one.start_s
    of_span = [span for span, *_ in waits]
    since_s, ended_s = (np.array([wait[column] for wait in waits], np.float64) for column in (1, 2))
    syncs = table(
        name=events.name[of_span],
        what=np.full(len(waits), What.SYNC),
        lane=events.lane[of_span],
        start_s=since_s,
        duration_s=np.maximum(ended_s - since_s, 0.0),
        parent=np.full(len(waits), NONE),
    )
    causes = [(one.event, sync) for sync, (*_, awaited) in enumerate(waits, len(events)) for one in awaited]
    events = joined([events, syncs])
    order = in_order(events.lane, events.start_s, events.duration_s)
    events = table(**{name: column[order] for name, column in vars(events).items() if name != "parent"})
    of_transport = np.array([lane.kind == LaneKind.TRANSPORT for lane in trace.lanes])[events.lane]
    events.parent[of_transport] = NONE  # overlapping events there are not nested
    pairs = np.concatenate([trace.causes, np.array(causes, np.int32).reshape(-1, 2)])
    return dataclasses.replace(trace, events=events, causes=np.argsort(order)[pairs].astype(np.int32))


def _pauses(from_s: float, until_s: float, starts_s: list[float], ends_s: list[float]) -> list[tuple[float, float]]:
    """Return the pauses before, between and after consecutive spans between two times: one more than spans."""
    begins_s, over_s = [*starts_s, until_s], [from_s, *ends_s]
    return [(over_s, max(over_s, begin_s)) for over_s, begin_s in zip(over_s, begins_s, strict=True)]


def _longest(pauses: list[tuple[float, float]]) -> tuple[float, float]:
    return max(pauses, key=lambda pause: pause[1] - pause[0])


def _awaited(left: list[_Launched], start_s: float, end_s: float) -> list[_Launched]:
    """Return the collectives that a `Work.wait` waited for: the last that ended during it, else the oldest that ended
    before."""
    left = [one for one in left if not one.in_backward and one.launched_s < start_s]
    ended = [one for one in left if start_s <= one.end_s <= end_s + SLACK_S]
    earlier = [one for one in left if one.end_s < start_s]
    return sorted(ended, key=lambda one: one.end_s)[-1:] or earlier[:1]


def _launched(trace: RankTrace) -> list[_Launched]:
    """Return the collectives launched by a host thread, in launch order."""
    events, end_s = trace.events, trace.events.end_s
    cause, caused = trace.causes.T
    pairs = trace.causes[(events.what[cause] == What.LAUNCH) & (events.what[caused] == What.COLLECTIVE)]
    launched = [
        _Launched(
            event=event,
            launched_s=float(events.start_s[launch]),
            start_s=float(events.start_s[event]),
            end_s=float(end_s[event]),
            in_backward=any(trace.names[events.name[outer]].startswith(_NODE) for outer in events.around(launch)),
        )
        for launch, event in pairs.tolist()
    ]
    return sorted(launched, key=lambda one: (one.launched_s, one.event))


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
    """Return the captured iterations that were completed."""
    whole = {f"ProfilerStep#{one['number']}" for one in about["iterations"] if one["kind"] == "captured"}
    names = [at for at, name in enumerate(trace.names) if name in whole]
    at = np.flatnonzero(np.isin(trace.events.name, names))
    at = at[np.argsort(trace.events.start_s[at])]
    return np.stack([trace.events.start_s[at], trace.events.end_s[at]], axis=1) if len(at) else trace.steps


def _gradients(trace: RankTrace, known: sizes.Sizes | None) -> dict[int, sizes.Parameter]:
    """Return event → parameter whose gradient became final in it; empty if the log and the profile have different
    numbers of them."""
    events = np.flatnonzero(trace.events.gradient)
    events = events[np.argsort(trace.events.start_s[events], kind="stable")].tolist()
    if known is None or len(events) != len(known.gradients):
        return {}
    return {event: known.parameters[at] for event, at in zip(events, known.gradients, strict=True)}


def _gradient_names(trace: RankTrace, about: dict[str, Any]) -> dict[int, str]:
    """Return gradient names for captures without sizes: the order reported by DDP, if there is one DDP module and sizes
    agree."""
    if len(about["ddp"]) != 1:
        return {}
    ddp = about["ddp"][0]
    sizes = [ddp["parameters"][name]["bytes"] for name in ddp["gradients"]]
    events = trace.events
    names: dict[int, str] = {}
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
    if loading := about.get("loading"):
        kept, others, read = (loading[name] for name in ("buffer_hits", "peer_hits", "storage_samples"))
        details["samples"] = f"{kept:,} kept, {others:,} from others, {read:,} read"
        size = f"{loading['read_bytes'] / 1e6:.1f} MB in {loading['reads']:,} reads"
        details["loading"] = f"{size}, {loading['waits']:,} waits of {loading['wait_s']:.2f} s in all"
    if about["agents"]:
        details["transport"] = ", ".join(sorted({agent["transport"] for agent in about["agents"]}))
    lost = sum(agent["packets_lost"] for agent in about["agents"])
    if lost:
        details["packets lost"] = f"{lost:,} of them did not fit the log"
    return details
