"""The parent process, without torch: starts aggregator and workers, runs both phases, and always ends all processes."""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from host_agent.ranks import Rank, Report, Team
from host_agent.training import batches, data
from host_agent.training.worker import BACKENDS, DigitsRank, Phase, PhaseResult, Step, TrainingSettings
from switchml.counters import MALFORMED
from switchml.errors import AggregatorLost, JoinError, RanksDisagree
from switchml.runtime.children import how_it_ended
from switchml.runtime.folders import TemporaryFolder
from switchml.runtime.pool import fork_server

if TYPE_CHECKING:
    from host_agent.pytorch.aggregator import ChildAggregator

ENDS_S = 5.0
"""Seconds that an aggregator lost by the ranks may take to end, before it counts as alive."""


@dataclass(frozen=True)
class Outcome:
    """Results of one phase over all ranks."""

    accuracy: float
    losses: list[float]
    """Loss per step, mean over the ranks."""
    seconds: float
    median_step_s: float
    params_sha256: str
    parameters: np.ndarray = field(repr=False)
    agents: list[dict[str, float]] = field(repr=False)
    codecs: list[dict[str, float]] = field(default_factory=list, repr=False)
    decisions: list[dict[str, Any]] = field(default_factory=list, repr=False)
    loading: list[dict[str, float]] = field(default_factory=list, repr=False)
    activations: list[dict[str, float]] = field(default_factory=list, repr=False)
    states: list[dict[str, float]] = field(default_factory=list, repr=False)


@dataclass(frozen=True)
class Comparison:
    """Results of both phases, and packet counts."""

    outcomes: dict[str, Outcome]
    refused_by_aggregator: int
    seconds_to_first_step: float

    @property
    def max_param_diff(self) -> float:
        """Largest difference of parameters between the two phases."""
        first, second = (self.outcomes[backend].parameters for backend in BACKENDS)
        return float(np.abs(first - second).max())

    @property
    def packets(self) -> dict[str, int]:
        """Totals over all ranks; `refused` includes packets that the aggregator refused."""
        agents = self.outcomes["switchml"].agents
        counts = {
            name: int(sum(agent[name] for agent in agents)) for name in ("sent", "received", "retransmitted", "refused")
        }
        counts["refused"] += self.refused_by_aggregator
        return counts

    @property
    def transport(self) -> str:
        """Transports between the ranks and the aggregator: shm, udp, or both."""
        return " and ".join(sorted({str(agent["transport"]) for agent in self.outcomes["switchml"].agents}))

    @property
    def goodput_bps(self) -> float:
        """Bits of gradient per second through a rank's all-reduces, mean over the ranks."""
        return float(np.mean([agent["goodput_bps"] for agent in self.outcomes["switchml"].agents]))


def compare(
    settings: TrainingSettings,
    aggregator_options: Sequence[str],
    on_step: Callable[[Step], None],
    aggregator_kind: str,
    standby: bool = False,
) -> Comparison:
    """Train over every backend of `settings`, `switchml` with an aggregator started for it, of a kind known to
    `command_of`, with `aggregator_options`, and compare the results. `standby`: also start a software aggregator as its
    standby. Raises PeerLost if a worker died, AggregatorLost if the aggregator did, RanksDisagree if parameters differ.
    """
    from host_agent.pytorch.aggregator import ChildAggregator, command_of, options_for

    with contextlib.ExitStack() as running:
        aggregators = [
            ChildAggregator(
                options=aggregator_options, command=command_of(aggregator_kind, settings.workers), lingers=False
            )
        ]
        running.callback(aggregators[0].stop)
        if standby:
            aggregators.append(ChildAggregator(options=options_for(settings.transport), lingers=False))
            running.callback(aggregators[1].stop)
        return compare_with(*aggregators, settings=settings, on_step=on_step)


def compare_with(
    *aggregators: ChildAggregator,
    settings: TrainingSettings,
    on_step: Callable[[Step], None],
    make: Callable[[int, TrainingSettings, Path, Report], Rank] = DigitsRank,
) -> Comparison:
    """`compare` with an aggregator that runs or starts, and its standbys. `make`: factory of the rank in a worker's
    process."""
    started = time.monotonic()
    seconds_to_first_step = 0.0

    def report(step: Step) -> None:
        nonlocal seconds_to_first_step
        seconds_to_first_step = seconds_to_first_step or time.monotonic() - started
        on_step(step)

    with TemporaryFolder("train") as name:
        folder, outcomes = Path(name), {}
        processes = fork_server("host_agent.training.preload")
        # Through a file, since data in the pipe to a new process would block once it exceeds the pipe's buffer.
        digits = data.load()
        digits.save(folder / "digits.npz")
        if settings.loader == "planned":
            batches.save(digits, folder)
        with Team(processes, [partial(make, rank, settings, folder) for rank in range(settings.workers)]) as workers:
            for backend in settings.backends:
                # The aggregator starts while the workers train over Gloo.
                phase = Phase(backend, _listed(aggregators) if backend == "switchml" else "")
                watch = partial(_check_alive, aggregators)
                try:
                    results = workers.ask(phase, timeout_s=math.inf, on_report=report, watch=watch)
                except AggregatorLost:
                    # A rank's connection breaks slightly before the process at its other end has terminated.
                    aggregators[-1].wait(ENDS_S)
                    watch()
                    raise
                outcomes[backend] = _combine(backend, results)
        return Comparison(outcomes, _refused(aggregators), seconds_to_first_step)


def _listed(aggregators: Sequence[ChildAggregator]) -> str:
    """Value of SWITCHML_AGGREGATOR: the first aggregator, and its standbys."""
    first, *standbys = (aggregator.address for aggregator in aggregators)
    return ",".join([first, *(f"standby={address}" for address in standbys)])


def _check_alive(aggregators: Sequence[ChildAggregator]) -> None:
    """Raises AggregatorLost if all have ended."""
    if all(aggregator.returncode is not None for aggregator in aggregators):
        aggregator = aggregators[-1]
        assert aggregator.returncode is not None
        last_line = f": {aggregator.last_line()}" if aggregator.returncode > 0 else ""
        raise AggregatorLost(f"the aggregator (pid {aggregator.pid}) {how_it_ended(aggregator.returncode)}{last_line}")


def _combine(backend: str, results: list[PhaseResult]) -> Outcome:
    """Combine the ranks' results. Raises RanksDisagree unless all ranks have bitwise identical parameters."""
    first = results[0]
    odd = [rank for rank, result in enumerate(results) if result.params_sha256 != first.params_sha256]
    if odd:
        raise RanksDisagree(
            f"after training over {backend}, the parameters of ranks {odd} differ from those of rank 0: every rank "
            "must get the same sums, bit for bit"
        )
    assert first.parameters is not None and first.accuracy is not None
    assert hashlib.sha256(first.parameters.tobytes()).hexdigest() == first.params_sha256
    return Outcome(
        accuracy=first.accuracy,
        losses=np.mean([result.losses for result in results], axis=0).tolist(),
        seconds=max(result.seconds for result in results),
        median_step_s=float(np.median(np.concatenate([result.step_seconds for result in results]))),
        params_sha256=first.params_sha256,
        parameters=first.parameters,
        agents=[result.agent for result in results],
        codecs=[result.codec for result in results if result.codec],
        loading=[result.loading for result in results if result.loading],
        activations=[result.activations for result in results if result.activations],
        states=[result.states for result in results if result.states],
        decisions=first.decisions,
    )


def _refused(aggregators: Sequence[ChildAggregator]) -> int:
    """Number of packets that the aggregators have refused since their start, as far as they still respond."""
    from switchml.control import client

    refused = 0
    for aggregator in aggregators:
        with contextlib.suppress(JoinError):
            reply = client.status(aggregator.address)
            totals = (count for name, count in reply.totals.items() if name.startswith("refused"))
            refused += sum(count for name, count in reply.refused.items() if name != MALFORMED) + sum(totals)
    return refused
