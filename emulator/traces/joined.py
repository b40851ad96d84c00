"""All ranks' traces as one graph of one iteration on one clock, for replay, what-if, diagnosis and optimization. Each
op knows its event, or is a gap of the host.
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
"""Of an op, however the graph changes: rank, event (of a gap: the next op's), number among these."""


@dataclass(frozen=True)
class Contention:
    """How much longer operators take beside communication."""

    share: dict[Identity, float]
    """Of ops that were disturbed: of what they took, what they take undisturbed."""
    factor: dict[int, float]
    """Rank → how many times as long all its disturbed ops take."""


@dataclass(frozen=True)
class Joined:
    """A traced iteration. Graph ranks are `traces` in order; untraced ranks' ops are those of the rank they copy."""

    graph: Graph
    """Host gaps are ops of kind DELAY on their thread's stream; a collective is an op on each rank and one transfer."""
    costs: Costs
    """As traced: durations without waiting; a transfer's is what was left after the last member had come."""
    traces: list[RankTrace]
    event: np.ndarray
    """int64 (ops,): index into its rank's trace, GAP for a gap."""
    start_s: np.ndarray
    """float64 (ops,): as traced, on the common clock; 0 is the start of the iteration on the rank that began first."""
    end_s: np.ndarray
    """float64 (ops,)."""
    offset_s: np.ndarray
    """float64 (ranks,): what was added to each trace's clock."""
    iteration: int
    """Which of the traced iterations this is, or -1 for the mean of several."""
    iteration_s: float
    """How long it took as traced: from its start to the start of the next, mean over ranks."""
    gradients: list[tuple[int, int, float]] = field(default_factory=list)
    """(op, bucket's transfer or -1, bytes) of each gradient that the traces name, in the order they became final."""
    assumptions: list[str] = field(default_factory=list)
    """What the join had to guess, for reports."""
    origin_s: np.ndarray = field(default_factory=lambda: np.empty(0))
    """float64 (ranks,): what a trace's own clock says at 0 of the common one, in the typical iteration."""
    main: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    """int64 (ranks,): the stream of each rank's main thread, on which the next iteration begins."""
    earlier: np.ndarray = field(default_factory=lambda: np.empty((0, 2), np.int64))
    """int64 (waits, 2): ops, and the events of earlier iterations that they wait for; for `iterations.chain`."""
    scatter_s: float = 0.0
    """By how much an all-reduce's duration usually differs from iteration to iteration; 0 where there is but one."""
    job_s: float = 0.0
    """Mean length of all iterations after the warm-up, alike or not; 0: this is the only one in question."""
    network: Network | None = None
    """What changes assume of it; None: as fitted to the iteration's own all-reduces."""
    contention: Contention | None = None
    """None: operators take what they took, whatever communication runs beside them."""

    @property
    def traced_s(self) -> float:
        """What an iteration took as traced, for reports: all of them say the same of a job."""
        return self.job_s or self.iteration_s

    def __repr__(self) -> str:
        return f"<Joined {len(self.traces)} traces, {len(self.graph.ops):,} ops: {self.iteration_s:.4g} s>"

    def of_events(self, column: Callable[[RankTrace], np.ndarray]) -> np.ndarray:
        """int64 (ops,): what `column` has for each op's event, an array (events,) of its rank's trace; -1 for gaps."""
        values, rank = np.full(len(self.graph.ops), -1, np.int64), self.graph.op_rank()
        for number, trace in enumerate(self.traces):
            if len(trace.events):
                ops = np.flatnonzero((rank == number) & (self.event != GAP))
                values[ops] = column(trace)[self.event[ops]]
        return values

    def lane_kinds(self) -> np.ndarray:
        """int64 (ops,): the `LaneKind` of the lane of each op's event; -1 for gaps."""
        return self.of_events(lambda trace: trace.lane_kind)
