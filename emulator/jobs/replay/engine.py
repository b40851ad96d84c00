"""`replay`: replays one job (or several on one fabric) to its end or an error. Chooses the engine, runs it in slices so
that progress, budgets and Ctrl-C work, and explains deadlocks.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from emulator.jobs.replay import calendar, sweep
from emulator.jobs.replay.conditions import Conditions, Flat, noises
from emulator.jobs.workload.costs import NO_ROUTE, Costs, no_routes
from emulator.jobs.workload.graph import NO_TRANSFER, Graph, Order
from switchml.errors import BudgetSpent, ConfigError, Deadlock

SLICE = 2_000_000
"""Maximum number of events between clock checks: well below a second, unless thousands of flows share a link."""
FIRST_SLICE = 20_000
SHORT_S = 0.1
"""The slice size doubles after a slice of at most this duration."""
SHOWN = 6
"""Maximum number of lines in a deadlock's explanation, and of ranks named in a line."""
FOLLOWED = 200
"""Maximum number of predecessors followed back from a missing rank's op."""


@dataclass(frozen=True)
class Replayed:
    """Result of a replay. Times are seconds from the start of the replay; arrays (ops,) and (transfers,) float64."""

    graph: Graph
    costs: Costs
    conditions: Conditions
    start_s: np.ndarray
    """Time at which an op took its stream; a member of a transfer then waits for the others until `transfer_start_s`.
    """
    end_s: np.ndarray
    transfer_start_s: np.ndarray
    """Time at which the last member arrived, and data began to move."""
    transfer_last: np.ndarray
    """int32: the op that arrived last."""
    makespan_s: float
    events: int
    wall_s: float
    """Run time of the replay itself."""
    engine: str
    """"sweep" or "calendar"."""

    def __repr__(self) -> str:
        return f"<Replayed {len(self.graph.ops):,} ops of {len(self.graph.ranks)} ranks: {self.makespan_s:.4g} s>"

    def wait_s(self) -> np.ndarray:
        """Return, for each op, how long it held its stream while other members of its transfer were missing; float64
        (ops,)."""
        wait_s, transfer = np.zeros(len(self.graph.ops)), self.graph.ops.transfer
        members = np.flatnonzero(transfer != NO_TRANSFER)
        wait_s[members] = np.maximum(self.transfer_start_s[transfer[members]] - self.start_s[members], 0.0)
        return wait_s


def replay(
    graph: Graph,
    costs: Costs,
    conditions: Conditions | None = None,
    *,
    engine: str = "auto",
    event_budget: int | None = None,
    time_budget_s: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Replayed:
    """Replay `graph`. `engine`: "auto", "sweep" or "calendar". `progress` is called periodically with (completed ops,
    total ops).

    Raises GraphError for costs that do not match the graph, Deadlock when ops wait for each other, BudgetSpent after
    `event_budget` events or `time_budget_s` seconds of wall-clock time.
    """
    began_s = time.perf_counter()
    conditions = conditions or Conditions()
    costs.check(graph)
    flat = conditions.for_kernels(graph)
    fixed_s, moved_bytes, route = _transfer_times(graph, costs, conditions, flat)
    reason = contention(graph, conditions, route)
    if engine not in ("auto", "sweep", "calendar"):
        raise ConfigError(f"unknown engine {engine!r}; expected auto, sweep or calendar")
    if engine == "sweep" and reason:
        raise ConfigError(f"the sweep engine can't replay this job: {reason}")
    if engine == "auto":
        engine = "calendar" if reason else "sweep"
    if engine == "sweep":
        play: _Sweep | _Calendar = _Sweep(graph, costs, flat, fixed_s)
    else:
        play = _Calendar(graph, costs, flat, fixed_s, route, moved_bytes)
    events, ended = _drive(play, len(graph.ops), began_s, event_budget, time_budget_s, progress)
    if ended < len(graph.ops):
        waiting = explain(graph, play.start_s, play.end_s)
        left = len(graph.ops) - ended
        raise Deadlock(
            f"deadlock: {left} of {len(graph.ops)} ops can never run, after {play.now_s():.6g} s: "
            + "; ".join(waiting),
            tuple(waiting),
        )
    return Replayed(
        graph=graph,
        costs=costs,
        conditions=conditions,
        start_s=play.start_s,
        end_s=play.end_s,
        transfer_start_s=play.transfer_start_s,
        transfer_last=play.transfer_last,
        makespan_s=float(play.end_s.max(initial=0.0)),
        events=events,
        wall_s=time.perf_counter() - began_s,
        engine=engine,
    )


def contention(graph: Graph, conditions: Conditions, route: np.ndarray) -> str:
    """Return what makes durations depend on contention; "" where there is none."""
    if np.any(graph.streams.order == Order.READY):
        return "it has streams that take whatever is ready"
    if np.any(route != NO_ROUTE):
        return "transfers share links"
    if any(conditions.slowdowns().values()):
        return "communication slows compute"
    return ""


def _transfer_times(graph: Graph, costs: Costs, conditions: Conditions, flat: Flat):
    """Return (fixed seconds, bytes, route) of each transfer with noise applied; without shared links, all of its time
    is fixed."""
    fixed_s, moved_bytes, rate = costs.transfer_fixed_s, costs.transfer_bytes, costs.transfer_bytes_per_s
    if conditions.comm_jitter:
        sigma = float(np.sqrt(np.log1p(conditions.comm_jitter**2)))
        factor = noises(flat.seed, len(graph.transfers), sigma)
        fixed_s, moved_bytes = fixed_s * factor, moved_bytes * factor
    if not conditions.share_links:
        rate = np.minimum(rate, _narrowest(costs)[costs.transfer_route])
    elif np.any(costs.transfer_route != NO_ROUTE):
        route = np.where(moved_bytes > 0, costs.transfer_route, NO_ROUTE)  # transfers without bytes share nothing
        return np.where(route == NO_ROUTE, fixed_s + moved_bytes / rate, fixed_s), moved_bytes, route
    return fixed_s + moved_bytes / rate, moved_bytes, no_routes(len(graph.transfers))


def _narrowest(costs: Costs) -> np.ndarray:
    """Return the bytes/s of each route for a transfer that has it to itself, float64 (routes + 1,); inf in the last
    place, which NO_ROUTE indexes."""
    links = costs.links
    rates = np.full(len(links.start), np.inf)
    with np.errstate(divide="ignore"):
        by_hop = links.link_bytes_per_s[links.link] / links.share
    hops = np.diff(links.start)
    np.minimum.at(rates, np.repeat(np.arange(len(hops)), hops), by_hop)
    return rates


class _Sweep:
    """The sweep engine behind the interface that `_drive` uses."""

    def __init__(self, graph: Graph, costs: Costs, flat: Flat, transfer_s: np.ndarray) -> None:
        self.state = sweep.begin(graph, flat)
        ops = graph.ops
        columns = (ops.op_type, ops.stream, ops.transfer, ops.dep_start, ops.deps, graph.streams.rank)
        self.arguments: tuple[Any, ...] = (*columns, costs.op_type_s, transfer_s, flat, self.state)
        self.start_s, self.end_s = self.state.start_s, self.state.end_s
        self.transfer_start_s, self.transfer_last = self.state.transfer_start_s, self.state.transfer_last
        self.ended = 0

    def go(self, budget: int) -> tuple[int, int]:
        """Run for about `budget` more events; return the total numbers of events and completed ops."""
        self.ended += sweep.run(budget, *self.arguments)
        return self.ended, self.ended

    def now_s(self) -> float:
        """Current simulated time."""
        return float(np.nanmax(self.end_s, initial=0.0))


class _Calendar:
    """The calendar engine behind the interface that `_drive` uses."""

    def __init__(self, graph: Graph, costs: Costs, flat: Flat, fixed_s, route, moved_bytes) -> None:
        self.world, self.sharing = calendar.begin(graph, costs, flat, fixed_s, route, moved_bytes)
        self.flat = flat
        self.start_s, self.end_s = self.world.ops["start_s"][:-1], self.world.ops["end_s"][:-1]
        self.transfer_start_s, self.transfer_last = (self.world.transfers[name][:-1] for name in ("start_s", "last"))

    def go(self, budget: int) -> tuple[int, int]:
        """Run for about `budget` more events; return the total numbers of events and completed ops."""
        calendar.run(budget, self.world, self.flat, self.sharing)
        return int(self.world.counts[calendar.EVENTS]), int(self.world.counts[calendar.ENDED])

    def now_s(self) -> float:
        """Current simulated time."""
        return float(self.world.now_s[0])


def _drive(play, ops, began_s, event_budget, time_budget_s, progress) -> tuple[int, int]:
    """Run `play` in slices until nothing happens any more; return (events, completed ops)."""
    events = ended = 0
    slice_events = min(FIRST_SLICE, SLICE)
    while True:
        before, slice_s = events, time.perf_counter()
        events, ended = play.go(slice_events if event_budget is None else min(slice_events, event_budget - events))
        if time.perf_counter() - slice_s < SHORT_S:
            slice_events = min(2 * slice_events, SLICE)
        if progress:
            progress(ended, ops)
        if ended == ops or events == before:
            return events, ended
        spent_s = time.perf_counter() - began_s
        budget = ""
        if event_budget is not None and events >= event_budget:
            budget = f"{event_budget} events"
        elif time_budget_s is not None and spent_s > time_budget_s:
            budget = f"{time_budget_s:g} s of wall-clock time"
        if budget:
            raise BudgetSpent(
                f"the replay was not over after {budget}: {ended} of {ops} ops done, its clock at {play.now_s():.6g} "
                "s; allow more, fold equal ranks, or emulate fewer of them",
                events,
                play.now_s(),
            )


def explain(graph: Graph, start_s: np.ndarray, end_s: np.ndarray) -> list[str]:
    """Explain a deadlock: one line for each of the first SHOWN transfers or ops that are being waited for; `start_s`
    and `end_s` as in `Replayed`, NaN for what did not happen."""
    ops, rank_of = graph.ops, graph.op_rank()
    is_here = ~np.isnan(start_s) & np.isnan(end_s) & (ops.transfer != NO_TRANSFER)
    lines = []
    for transfer in np.unique(ops.transfer[is_here]):
        members = np.flatnonzero(ops.transfer == transfer)
        here, missing = members[is_here[members]], members[~is_here[members]]
        name = graph.op_types.name[graph.transfers.op_type[transfer]]
        line = f"{name} ({graph.groups.name[graph.transfers.group[transfer]]}) has {_ranks(rank_of[here])}"
        if len(missing):
            first = f"rank {rank_of[missing[0]]} {_is_at(graph, missing[0], is_here, end_s)}"
            line += f" and waits for {_ranks(rank_of[missing])}: {first}"
        lines.append(line)
        if len(lines) == SHOWN:
            return lines
    if not lines:
        unfinished = np.isnan(end_s)
        heads = (op for op in np.flatnonzero(unfinished).tolist() if any(unfinished[graph.ops.before(op)]))
        for op in islice(heads, SHOWN):
            other = next(int(dep) for dep in graph.ops.before(op) if unfinished[dep])
            lines.append(f"{graph.op_name(op)} waits for {graph.op_name(other)}")
    return lines


def _is_at(graph: Graph, op: int, is_here: np.ndarray, end_s: np.ndarray) -> str:
    """Describe what blocks `op`: `is in X` or `has still to do X`."""
    seen: set[int] = set()
    while op not in seen and len(seen) < FOLLOWED:
        seen.add(op)
        before = [int(dep) for dep in graph.ops.before(op) if np.isnan(end_s[dep])]
        stream = graph.ops.stream[op]
        if graph.streams.order[stream] == Order.PROGRAM:
            same = np.flatnonzero(graph.ops.stream[:op] == stream)
            before += [int(same[-1])] if len(same) and np.isnan(end_s[same[-1]]) else []
        if not before:
            break
        op = before[-1]
        if is_here[op]:
            return f"is in {graph.op_name(op)}"
    return f"has still to do {graph.op_name(op)}"


def _ranks(ranks: np.ndarray) -> str:
    names = [str(rank) for rank in np.unique(ranks)]
    rest = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ("rank " if len(names) == 1 else "ranks ") + ", ".join(names[:SHOWN]) + rest
