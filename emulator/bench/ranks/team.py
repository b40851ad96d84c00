"""The parent's side of the rank program: processes are started, asked, and ended; what goes wrong in one of them is
raised here.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import connection, context
from statistics import mean
from typing import Any

from emulator.bench.ranks.inputs import SharedTensors
from emulator.bench.ranks.process import Failure, Place, Rank, main
from emulator.bench.ranks.reducing import (
    GLOO,
    Check,
    Fill,
    Prepare,
    Reduce,
    ReducingJob,
    ReducingRank,
    Sample,
    Target,
)
from emulator.bench.ranks.training import AllReduces, DigitsModel, LayerStack, Steps, Times, TrainingJob, TrainingRank
from emulator.bench.sizes import Case
from emulator.testbed.namespaces import Lab
from emulator.testbed.star import INTERFACE, LinkOptions, Star
from host_agent.forking import fork_server
from host_agent.pytorch.aggregator import ChildAggregator
from switchml.errors import AggregatorLost, ConfigError, JobError, PeerLost, RanksDisagree, SwitchMLError
from switchml.protocol.sizes import LANE_BYTES

ANSWER_S = 300.0
"""How long a rank may take for anything; the first start on a machine compiles."""
ROOT_CAUSE_S = 2.0
"""After a first failure, how long to look for its cause."""
STORE_PORT = 29500
"""Where rank 0 keeps a process group's rendezvous; its namespace has no other user. Each new group takes the next."""
_GRID_BITS = 4
"""Exponents of blocks are at most this many bits above what their values need (docs/protocol.md, section 4)."""


def reducing_context(backends: Sequence[str]) -> context.ForkServerContext:
    """Where processes come from that can measure `backends`; it begins to import what they need."""
    torch = ("torch", "torch.distributed") if GLOO in backends else ()
    return _context("emulator.bench.ranks.preload", *torch)


def training_context() -> context.ForkServerContext:
    """Where processes come from that train."""
    return _context("host_agent.training.preload", "emulator.bench.ranks.training")


def _context(*preload: str) -> context.ForkServerContext:
    # Read when torch is imported. Hosts in namespaces have no names, which torch would warn of.
    os.environ |= {"TORCH_CPP_LOG_LEVEL": "ERROR", "KINETO_LOG_LEVEL": "99"}
    return fork_server(*preload)


def places(hosts: Sequence[Any], ranks_per_host: int = 1) -> list[Place]:
    """So many ranks in each of the hosts of a testbed; neighbouring ranks share a host."""
    names = [host.name for host in hosts for _ in range(ranks_per_host)]
    return [Place(rank, len(names), name, INTERFACE) for rank, name in enumerate(names)]


def local_places(world_size: int) -> list[Place]:
    """All ranks in the parent's own network."""
    return [Place(rank, world_size) for rank in range(world_size)]


@contextlib.contextmanager
def star_with_aggregator(
    hosts: int, link: LinkOptions, tcp: str | None = None
) -> Iterator[tuple[Star, ChildAggregator]]:
    """Hosts around a switch, each in a network namespace, and `switchml aggregate` in the switch's place. Raises
    ConfigError without root or iproute2."""
    with Lab() as lab, contextlib.closing(Star(lab, hosts, link, tcp)) as star:
        aggregator = aggregator_at(star)
        try:
            yield star, aggregator
        finally:
            aggregator.stop()


def aggregator_at(star: Star) -> ChildAggregator:
    """`switchml aggregate` in the switch's namespace, at the switch's address."""
    return star.switch.call(lambda: ChildAggregator(bind=star.switch_address))


class Team:
    """The processes of a job's ranks, one for each place. `with` ends them: in good order, or at once if there was an
    error. `kind` is what a process makes to answer requests."""

    def __init__(self, ranks: context.ForkServerContext, kind: Callable[[Place], Rank], places: Sequence[Place]):
        self.places = list(places)
        self._pipes: list[connection.Connection] = []
        self._processes = []
        for place in self.places:
            ours, theirs = ranks.Pipe()
            process = ranks.Process(target=main, args=(kind, place, theirs), name=f"rank {place.rank}", daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self):
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        try:
            if kind is None:
                self.leave()
        finally:
            self.stop()

    def ask(self, request: Any) -> list:
        """The answer of each rank, in the order of ranks. Raises what went wrong with one of them."""
        return self.ask_each([request] * len(self.places))

    def ask_each(self, requests: Sequence[Any]) -> list:
        """The same, with a request for each rank."""
        self._send(requests)
        answers: dict[int, Any] = {}
        failures: list[Failure] = []
        deadline = time.monotonic() + ANSWER_S
        waiting = {pipe: rank for rank, pipe in enumerate(self._pipes)}
        while waiting and (ready := connection.wait(list(waiting), max(0.0, deadline - time.monotonic()))):
            for pipe in ready:
                rank = waiting.pop(pipe)
                try:
                    answer = pipe.recv()
                except (EOFError, OSError):
                    raise self._death(rank) from None
                if isinstance(answer, Failure):
                    failures.append(answer)
                    # A rank that misses a dead peer often reports it before the death is noticed here.
                    deadline = min(deadline, time.monotonic() + (ROOT_CAUSE_S if answer.is_consequence else 0.0))
                else:
                    answers[rank] = answer
        if failures:
            cause = next((failure for failure in failures if not failure.is_consequence), failures[0])
            error = {"AggregatorLost": AggregatorLost, "ConfigError": ConfigError}.get(cause.kind, JobError)
            raise error(f"rank {cause.rank} failed: {cause.kind}: {cause.message}")
        if waiting:
            raise PeerLost(f"rank {sorted(waiting.values())} did not answer in {ANSWER_S:g} s", tuple(waiting.values()))
        return [answers[rank] for rank in sorted(answers)]

    def leave(self) -> None:
        """Let the ranks leave their job in good order."""
        self._send([None] * len(self.places))
        for process in self._processes:
            process.join(ROOT_CAUSE_S)

    def stop(self) -> None:
        """End whatever still runs."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
            process.close()
        for pipe in self._pipes:
            pipe.close()

    def _send(self, requests: Sequence[Any]) -> None:
        for rank, (pipe, request) in enumerate(zip(self._pipes, requests, strict=True)):
            try:
                pipe.send(request)
            except OSError:
                raise self._death(rank) from None

    def _death(self, rank: int) -> SwitchMLError:
        process = self._processes[rank]
        process.join(ROOT_CAUSE_S)
        code = process.exitcode
        how = f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"ended with exit code {code}"
        return PeerLost(f"rank {rank} (pid {process.pid}) {how}", (rank,))


@dataclass(frozen=True)
class Repeat:
    """One all-reduce repeat of one backend on all ranks."""

    samples: list[Sample]

    @property
    def seconds(self) -> float:
        """Of the slowest rank."""
        return max(sample.seconds for sample in self.samples)

    @property
    def error(self) -> float:
        """The largest absolute difference from an exact sum; infinite if a result is not a number."""
        return max(sample.error if sample.error == sample.error else float("inf") for sample in self.samples)


class ReducingTeam(Team):
    """Ranks that all-reduce."""

    def __init__(self, ranks: context.ForkServerContext, places: Sequence[Place]):
        super().__init__(ranks, ReducingRank, places)

    def join(
        self,
        *,
        backends: Sequence[str],
        targets: dict[str, Target],
        tensors: SharedTensors,
        rendezvous: str,
        wire: str = "int32",
    ) -> dict[str, str]:
        """Have all ranks join; the transports that their agents chose, by backend."""
        self._wire = wire
        name = f"bench-{os.getpid()}-{secrets.token_hex(3)}"
        job = ReducingJob(name, wire, tuple(backends), targets, tensors, rendezvous)
        return self.ask(job)[0].transports

    def prepare(self, case: Case) -> None:
        """Have all ranks ready for a case."""
        self.ask(Prepare(case))

    def repeat(self, backend: str) -> Repeat:
        """One repeat of the case. Raises RanksDisagree or JobError if a result cannot be right."""
        self.ask(Fill())
        self.ask(Reduce(backend))
        repeat = Repeat(self.ask(Check()))
        if len({sample.checksum for sample in repeat.samples}) > 1:
            raise RanksDisagree(f"{backend}: the ranks' results differ; every rank must get the same bits")
        n, largest = len(self.places), repeat.samples[0].largest
        bits = 24 if backend == GLOO else 8 * LANE_BYTES[self._wire] - (n - 1).bit_length() - _GRID_BITS - 1
        if repeat.error > n * largest * 2.0**-bits + n * largest * 2.0**-23:
            raise JobError(f"{backend}: a result is off by {repeat.error:.3g} where sums are at most {largest:.3g}")
        return repeat


class TrainingTeam(Team):
    """Ranks that train. `store`: rank 0's address in a network of its own, "" for this machine's loopback.
    `environment`: variables of all its jobs."""

    def __init__(
        self,
        ranks: context.ForkServerContext,
        places: Sequence[Place],
        store: str = "",
        environment: Mapping[str, str] | None = None,
    ):
        super().__init__(ranks, TrainingRank, places)
        self._store, self._ports = store, itertools.count(STORE_PORT)
        self._environment = dict(environment or {})

    def join(self, backend: str, models: DigitsModel | LayerStack | Sequence[LayerStack], **environment: str) -> None:
        """A new process group and model, or one model for each rank. `environment`: further variables."""
        rendezvous = f"tcp://{self._store}:{next(self._ports)}" if self._store else f"tcp://127.0.0.1:{_free_port()}"
        each = models if isinstance(models, Sequence) else [models] * len(self.places)
        variables = self._environment | environment
        self.ask_each([TrainingJob(backend, rendezvous, model, variables) for model in each])

    def run(self, request: Steps | AllReduces) -> list[Times]:
        """The times of each rank."""
        return self.ask(request)


@contextlib.contextmanager
def training_on_star(hosts: int, link: LinkOptions, ranks_per_host: int = 1) -> Iterator[tuple[Star, TrainingTeam]]:
    """Ranks that train in the hosts of a star, whose agents reach the aggregator over the links."""
    ranks = training_context()  # imports while the network is built
    with star_with_aggregator(hosts, link) as (star, aggregator):
        environment = {"SWITCHML_AGGREGATOR": aggregator.address, "SWITCHML_TRANSPORT": "udp"}
        with TrainingTeam(ranks, places(star.hosts, ranks_per_host), star.address(0), environment) as team:
            yield star, team


def step_seconds(times: Sequence[Times]) -> list[float]:
    """Of each step, the mean over ranks. They finish each step together: one that is late now and then is no reason to
    count its wait twice."""
    return [mean(step) for step in zip(*(one.seconds for one in times), strict=True)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
