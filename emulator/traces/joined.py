"""All ranks' traces of one iteration as a graph on a common clock, for replay, what-if analysis, diagnosis and
optimization. Each op refers to its event, or is a gap of the host.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from emulator.jobs.workload.costs import Costs
from emulator.jobs.workload.graph import Graph
from emulator.traces.events import RankTrace
from emulator.traces.network import Network

GAP = -1

Identity = tuple[int, int, int]
"""Identifies an op across changes of the graph: rank, event (for a gap: the next op's), index among ops of that event.
"""


@dataclass(frozen=True)
class Contention:
    """Slowdown of operators by concurrent communication."""

    share: dict[Identity, float]
    """For disturbed ops: undisturbed share of their traced duration."""
    factor: dict[int, float]
    """Rank → factor on the duration of all its disturbed ops."""


@dataclass(frozen=True)
class Joined:
    """A traced iteration. Graph ranks are `traces` in order; untraced ranks are represented by the rank they copy."""

    graph: Graph
    """Host gaps are ops of kind DELAY on their thread's stream; a collective is an op on each rank and one transfer."""
    costs: Costs
    """Traced costs: durations without waiting; a transfer's duration starts with its last member's arrival."""
    traces: list[RankTrace]
    event: np.ndarray
    """int64 (ops,): index into its rank's trace, GAP for a gap."""
    start_s: np.ndarray
    """float64 (ops,): traced start on the common clock; 0 is the start of the iteration on the rank that began first.
    """
    end_s: np.ndarray
    """float64 (ops,): traced end."""
    offset_s: np.ndarray
    """float64 (ranks,): offset added to each trace's clock."""
    iteration: int
    """Number of the traced iteration, or -1 for the mean of several."""
    iteration_s: float
    """Traced duration: from its start to the start of the next, mean over ranks."""
    gradients: list[tuple[int, int, float]] = field(default_factory=list)
    """(op, bucket's transfer or -1, bytes) of each gradient in the traces, in the order in which they became final."""
    assumptions: list[str] = field(default_factory=list)
    """Assumptions of the join, for reports."""
    origin_s: np.ndarray = field(default_factory=lambda: np.empty(0))
    """float64 (ranks,): time of a trace's own clock at 0 of the common one, in the typical iteration."""
    main: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    """int64 (ranks,): stream of each rank's main thread, on which the next iteration begins."""
    earlier: np.ndarray = field(default_factory=lambda: np.empty((0, 2), np.int64))
    """int64 (waits, 2): ops, and the events of earlier iterations that they wait for; for `iterations.chain`."""
    scatter_s: float = 0.0
    """Usual variation of an all-reduce's duration between iterations; 0 for a single iteration."""
    job_s: float = 0.0
    """Mean length of all iterations after the warm-up, similar or not; 0: there is only this one."""
    network: Network | None = None
    """Network model assumed by changes; None: fitted to the iteration's own all-reduces."""
    contention: Contention | None = None
    """None: operators keep their traced durations, regardless of concurrent communication."""

    @property
    def traced_s(self) -> float:
        """Traced iteration time for reports, so that all agree for a job."""
        return self.job_s or self.iteration_s

    def __repr__(self) -> str:
        return f"<Joined {len(self.traces)} traces, {len(self.graph.ops):,} ops: {self.iteration_s:.4g} s>"

    def of_events(self, column: Callable[[RankTrace], np.ndarray]) -> np.ndarray:
        """Return the values of `column`, an array (events,) of each rank's trace, for each op's event, int64 (ops,); -1
        for gaps."""
        values, rank = np.full(len(self.graph.ops), -1, np.int64), self.graph.op_rank()
        for number, trace in enumerate(self.traces):
            if len(trace.events):
                ops = np.flatnonzero((rank == number) & (self.event != GAP))
                values[ops] = column(trace)[self.event[ops]]
        return values

    def lane_kinds(self) -> np.ndarray:
        """Return the `LaneKind` of the lane of each op's event, int64 (ops,); -1 for gaps."""
        return self.of_events(lambda trace: trace.lane_kind)
