"""The parent's side: start aggregator and workers, follow both phases, and always end all processes."""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from host_agent.forking import fork_server
from host_agent.training import data
from host_agent.training.worker import BACKENDS, Failure, PhaseResult, Settings, Step
from host_agent.training.worker import main as worker_main
from switchml.errors import AggregatorLost, JobError, PeerLost, RanksDisagree, SwitchMLError

if TYPE_CHECKING:
    from host_agent.pytorch.aggregator import ChildAggregator

ROOT_CAUSE_S = 3.0
"""How long to wait for the cause after a first failure: other ranks may report a lost peer before its death is seen."""
WATCH_EVERY_S = 0.5
JOIN_S = 10.0
"""How long workers may take to end after they have delivered everything."""


@dataclass(frozen=True)
class Outcome:
    """Results of one phase over all ranks."""

    accuracy: float
    losses: list[float]
    """Mean over the ranks, per step."""
    seconds: float
    median_step_s: float
    params_sha256: str
    parameters: np.ndarray = field(repr=False)
    agents: list[dict[str, float]] = field(repr=False)
    codecs: list[dict[str, float]] = field(default_factory=list, repr=False)
    decisions: list[dict[str, Any]] = field(default_factory=list, repr=False)


@dataclass(frozen=True)
class Comparison:
    """Results of both phases, and packet counts."""

    outcomes: dict[str, Outcome]
    refused_by_aggregator: int
    seconds_to_first_step: float

    @property
    def max_param_diff(self) -> float:
        """Between the two phases, if there were two."""
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
        """How the ranks reached the aggregator: shm, udp, or both."""
        return " and ".join(sorted({str(agent["transport"]) for agent in self.outcomes["switchml"].agents}))

    @property
    def goodput_bps(self) -> float:
        """Bits of gradient a second through a rank's all-reduces, mean over the ranks."""
        return float(np.mean([agent["goodput_bps"] for agent in self.outcomes["switchml"].agents]))


def compare(
    settings: Settings, aggregator_options: Sequence[str], on_step: Callable[[Step], None], aggregator_kind: str
) -> Comparison:
    """Train over every backend of `settings`, `switchml` with an aggregator of its own, of a kind that `command_of`
    knows and started with `aggregator_options`, and compare.

    Raises PeerLost if a worker died, AggregatorLost if the aggregator did, RanksDisagree if parameters differ."""
    from host_agent.pytorch.aggregator import ChildAggregator, command_of

    aggregator = ChildAggregator(options=aggregator_options, command=command_of(aggregator_kind, settings.workers))
    try:
        return compare_with(aggregator, Workers(), settings, on_step)
    finally:
        aggregator.stop()


def compare_with(
    aggregator: ChildAggregator, workers: Workers, settings: Settings, on_step: Callable[[Step], None]
) -> Comparison:
    """`compare`, with an aggregator that runs or starts, and workers that have not started."""
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="switchml-train-")))
        stack.callback(workers.stop)
        workers.start(settings, folder)
        # The aggregator starts while the workers train over Gloo; waiting for it must not keep us from following them.
        threading.Thread(target=workers.send_address, args=(aggregator,), daemon=True).start()
        results: dict[str, list[PhaseResult]] = {backend: [] for backend in settings.backends}
        seconds_to_first_step = 0.0
        for message in workers.messages(watch=lambda: _check_alive(aggregator)):
            if isinstance(message, Step):
                seconds_to_first_step = seconds_to_first_step or time.monotonic() - started
                on_step(message)
            else:
                results[message.backend].append(message)
        outcomes = {backend: _combine(backend, results[backend]) for backend in settings.backends}
        return Comparison(outcomes, _refused(aggregator.address), seconds_to_first_step)


class Workers:
    """The worker processes, forked from one that has imported torch for all of them. The parent needs no torch.
    `main`: what they run in place of worker.py's, with the same arguments."""

    def __init__(self, main: Callable[..., None] = worker_main) -> None:
        self._main = main
        self._pipes: list[Connection] = []
        self._processes: list[multiprocessing.process.BaseProcess] = []

    def start(self, settings: Settings, folder: Path) -> None:
        """Start them all; `folder` is where they find the digits and each other."""
        context = fork_server("host_agent.training.preload")
        # Through a file, since data in the pipe to a new process would block once it exceeds the pipe's buffer.
        data.load().save(folder / "digits.npz")
        for rank in range(settings.workers):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=self._main, args=(rank, settings, folder, theirs), name=f"rank {rank}", daemon=True
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def send_address(self, aggregator: ChildAggregator) -> None:
        """Wait for the aggregator and send its address to the workers."""
        # If it does not start or a worker has died, `messages` notices it too, and closes the files that are read here
        # (ValueError).
        with contextlib.suppress(SwitchMLError, OSError, ValueError):
            address = aggregator.address
            for pipe in self._pipes:
                pipe.send(address)

    def messages(self, watch: Callable[[], None]) -> Iterator[Step | PhaseResult]:
        """The workers' reports, until all have ended. Raises as `compare` does; `watch` is called often."""
        ranks: dict[Any, int] = {pipe: rank for rank, pipe in enumerate(self._pipes)}
        failures: list[Failure] = []
        give_up_at = float("inf")
        while ranks and time.monotonic() < give_up_at:
            for pipe in wait(list(ranks), WATCH_EVERY_S):
                try:
                    message = cast(Any, pipe).recv()
                except (EOFError, OSError):
                    rank = ranks.pop(pipe)
                    self._processes[rank].join(JOIN_S)
                    if self._processes[rank].exitcode != 0 and rank not in [failure.rank for failure in failures]:
                        raise self._death(rank) from None
                    continue
                if isinstance(message, Failure):
                    failures.append(message)
                    give_up_at = min(give_up_at, time.monotonic() + (ROOT_CAUSE_S if message.is_consequence else 0.0))
                else:
                    yield message
            watch()
        if failures:
            cause = next((failure for failure in failures if not failure.is_consequence), failures[0])
            raise JobError(f"the worker of rank {cause.rank} failed: {cause.kind}: {cause.message}")

    def stop(self) -> None:
        """Kill the workers that still run."""
        for process in self._processes:
            if process.is_alive():
                process.kill()
        for process in self._processes:
            process.join()
            process.close()
        for pipe in self._pipes:
            pipe.close()

    def _death(self, rank: int) -> PeerLost:
        process = self._processes[rank]
        return PeerLost(f"the worker of rank {rank} (pid {process.pid}) {_how_it_ended(process.exitcode)}", (rank,))


def _how_it_ended(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"was killed by {signal.Signals(-exit_code).name}"
    return f"ended with exit code {exit_code}"


def _check_alive(aggregator: ChildAggregator) -> None:
    """Raises AggregatorLost if it has ended."""
    if aggregator.returncode is not None:
        last_line = f": {aggregator.last_line()}" if aggregator.returncode > 0 else ""
        raise AggregatorLost(f"the aggregator (pid {aggregator.pid}) {_how_it_ended(aggregator.returncode)}{last_line}")


def _combine(backend: str, results: list[PhaseResult]) -> Outcome:
    """Raises RanksDisagree if the ranks have not ended with the same parameters, bit for bit."""
    ranks = sorted(results, key=lambda result: result.rank)
    first = ranks[0]
    odd = [result.rank for result in ranks if result.params_sha256 != first.params_sha256]
    if odd:
        raise RanksDisagree(
            f"after training over {backend}, the parameters of ranks {odd} differ from those of rank 0: every rank "
            "must get the same sums, bit for bit"
        )
    assert first.parameters is not None and first.accuracy is not None
    assert hashlib.sha256(first.parameters.tobytes()).hexdigest() == first.params_sha256
    return Outcome(
        accuracy=first.accuracy,
        losses=np.mean([result.losses for result in ranks], axis=0).tolist(),
        seconds=max(result.seconds for result in ranks),
        median_step_s=float(np.median(np.concatenate([result.step_seconds for result in ranks]))),
        params_sha256=first.params_sha256,
        parameters=first.parameters,
        agents=[result.agent for result in ranks],
        codecs=[result.codec for result in ranks if result.codec],
        decisions=first.decisions,
    )


def _refused(address: str) -> int:
    """Packets that the aggregator has refused since its start."""
    from switchml.control import client

    reply = client.status(address)
    return sum(reply.refused.values()) + sum(
        count for name, count in reply.totals.items() if name.startswith("refused")
    )
