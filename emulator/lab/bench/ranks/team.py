"""The parent's side of the rank processes: teams that all-reduce or train."""

import contextlib
import itertools
import math
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import context
from operator import methodcaller
from pathlib import Path
from statistics import mean
from typing import Any

from emulator.lab.bench.ranks.inputs import shared_tensors
from emulator.lab.bench.ranks.process import CallableRank, RankPlace, start_at
from emulator.lab.bench.ranks.reducing import (
    AGENTS,
    GLOO,
    PEER_TIMEOUT_S,
    Calls,
    ReducingJob,
    ReducingRank,
    Sample,
    Target,
)
from emulator.lab.bench.ranks.training import (
    AllReduces,
    DigitsModel,
    LayerStack,
    Steps,
    Times,
    TrainingJob,
    TrainingRank,
)
from emulator.lab.bench.sizes import Case
from emulator.lab.bench.sparsity import Sparsity
from emulator.networks.testbed.namespaces import Lab
from emulator.networks.testbed.star import INTERFACE, LinkOptions, Star
from host_agent import ranks
from host_agent.pytorch.aggregator import SOFTWARE, ChildAggregator
from switchml.errors import JobError, RanksDisagree
from switchml.net.ports import free_port
from switchml.protocol.sizes import LANE_BYTES, lanes_of
from switchml.runtime.folders import TemporaryFolder
from switchml.runtime.pool import fork_server

_ROUNDING = {"float32": 2.0**-23, "float64": 2.0**-50, "float16": 2.0**-10, "bfloat16": 2.0**-7, "int32": 0, "int64": 0}
"""Rounding error of one addition, relative to the largest sum: Gloo rounds each."""
STORE_PORT = 29500
"""First port of a process group's rendezvous at rank 0, whose namespace has no other user. Each new group takes the
next port."""
_GRID_BITS = 4
"""Exponents of blocks are at most this many bits above what their values need (docs/protocol.md, section 4)."""


def reducing_context(backends: Sequence[str], calls: Calls = AGENTS) -> context.ForkServerContext:
    """Fork server for ranks that measure `backends`; it starts to import what they need."""
    torch = ("emulator.lab.bench.ranks.groups",) if calls.needs_torch(backends) else ()
    return _context("emulator.lab.bench.ranks.preload", *torch)


def training_context() -> context.ForkServerContext:
    """Fork server for ranks that train."""
    return _context("host_agent.training.preload", "emulator.lab.bench.ranks.training")


def _context(*preload: str) -> context.ForkServerContext:
    # Read when torch is imported. Hosts in namespaces have no names, which torch would warn about.
    os.environ |= {"TORCH_CPP_LOG_LEVEL": "ERROR", "KINETO_LOG_LEVEL": "99"}
    return fork_server(*preload)


def places(hosts: Sequence[Any], ranks_per_host: int = 1) -> list[RankPlace]:
    """`ranks_per_host` ranks in each of the hosts of a testbed; neighboring ranks share a host."""
    names = [host.name for host in hosts for _ in range(ranks_per_host)]
    return [RankPlace(rank, len(names), name, INTERFACE) for rank, name in enumerate(names)]


def local_places(world_size: int) -> list[RankPlace]:
    """All ranks in the parent's own network."""
    return [RankPlace(rank, world_size) for rank in range(world_size)]


@contextlib.contextmanager
def star_with_aggregator(
    hosts: int, link: LinkOptions, tcp: str | None = None
) -> Iterator[tuple[Star, ChildAggregator]]:
    """Hosts around a switch, each in a network namespace, and `switchml aggregate` in the switch's namespace. Raises
    ConfigError without root or iproute2."""
    with Lab() as lab, contextlib.closing(Star(lab, hosts, link, tcp)) as star:
        aggregator = aggregator_at(star)
        try:
            yield star, aggregator
        finally:
            aggregator.stop()


def measured_aggregator(bind: str, command: Sequence[str] = SOFTWARE) -> ChildAggregator:
    """The aggregator of an emulated network: `switchml aggregate` or another control plane."""
    return ChildAggregator(bind, ("--peer-timeout", f"{PEER_TIMEOUT_S:g}s"), command)


def aggregator_at(star: Star) -> ChildAggregator:
    """`switchml aggregate` in the switch's namespace, at the switch's address."""
    return star.switch.call(lambda: measured_aggregator(star.switch_address))


class Team(ranks.Team):
    """The processes of a job's ranks, one for each place. `kind` creates the object that answers
    requests in a process."""

    def __init__(
        self, processes: context.ForkServerContext, kind: Callable[[RankPlace], ranks.Rank], places: Sequence[RankPlace]
    ):
        super().__init__(processes, [partial(start_at, place, kind) for place in places])
        self.places = list(places)


@dataclass(frozen=True)
class Repeat:
    """One all-reduce repeat of one backend on all ranks."""

    samples: list[Sample]

    @property
    def seconds(self) -> float:
        """Seconds of the slowest rank."""
        return max(sample.seconds for sample in self.samples)

    @property
    def error(self) -> float:
        """The largest absolute difference from an exact sum; infinite if a result is NaN."""
        return max(sample.error if sample.error == sample.error else float("inf") for sample in self.samples)


class ReducingTeam(Team):
    """Ranks that run all-reduces or other collectives."""

    def __init__(self, processes: context.ForkServerContext, places: Sequence[RankPlace]):
        super().__init__(processes, ReducingRank, places)

    def join(self, job: ReducingJob) -> dict[str, str]:
        """Have all ranks join. Returns the transports that rank 0's agents chose, by backend."""
        self._wire = job.wire
        transports: dict[str, str] = self.ask(methodcaller("join", job))[0]
        return transports

    def prepare(self, case: Case) -> None:
        """Have all ranks prepare a case."""
        self._case = case
        self.ask(methodcaller("prepare", case))

    def repeat(self, backend: str) -> Repeat:
        """Run one repeat of the case. Raises RanksDisagree or JobError if a result cannot be right."""
        self.ask(methodcaller("fill"))
        self.ask(methodcaller("reduce", backend))
        repeat = Repeat(self.ask(methodcaller("check")))
        if len({sample.checksum for sample in repeat.samples}) > 1:
            raise RanksDisagree(f"{backend}: the ranks' results differ; every rank must get the same bits")
        if self._case.moves_bytes and repeat.error:
            raise JobError(f"{backend}: a result is off by {repeat.error:.3g} where bytes are only copied")
        n, largest = len(self.places), max(sample.largest for sample in repeat.samples)
        dtype = self._case.dtype
        bits = 8 * LANE_BYTES[lanes_of(self._wire)] - (n - 1).bit_length() - _GRID_BITS - 1
        is_wide = backend == GLOO or dtype == "float64" or dtype.startswith("int")
        steps = 0.0 if is_wide else 2.0**-bits
        if repeat.error > n * largest * (steps + _ROUNDING[dtype]):
            raise JobError(f"{backend}: a result is off by {repeat.error:.3g} where sums are at most {largest:.3g}")
        return repeat


@contextlib.contextmanager
def joined_ranks(
    places: Sequence[RankPlace],
    backends: Sequence[str],
    elements: int,
    targets: Mapping[str, Callable[[], Target]],
    *,
    sparsity: Sparsity | None = None,
    wire: str = "int32",
    rendezvous: str = "",
    calls: Calls = AGENTS,
) -> Iterator[tuple[ReducingTeam, dict[str, str]]]:
    """Ranks that have joined all `backends`, ready for cases of at most `elements` elements, and the transports that
    their agents chose. `targets`: by backend, a function that waits until the aggregator is ready. `rendezvous`: of
    Gloo, "" for a file."""
    processes = reducing_context(backends, calls)  # imports in the background while the tensors are created
    with TemporaryFolder("bench") as folder, shared_tensors(elements, len(places), sparsity) as tensors:
        ready = {name: target() for name, target in targets.items()}
        job = ReducingJob(
            name=f"bench-{os.getpid()}-{secrets.token_hex(3)}",
            wire=wire,
            backends=tuple(backends),
            targets=ready,
            tensors=tensors,
            rendezvous=rendezvous or f"file://{Path(folder) / 'gloo'}",
            calls=calls,
        )
        with ReducingTeam(processes, places) as team:
            yield team, team.join(job)


class TrainingTeam(Team):
    """Ranks that train. `store`: rank 0's address in an emulated network, "" for this machine's loopback.
    `environment`: variables of all its jobs."""

    def __init__(
        self,
        processes: context.ForkServerContext,
        places: Sequence[RankPlace],
        store: str = "",
        environment: Mapping[str, str] | None = None,
    ):
        super().__init__(processes, TrainingRank, places)
        self._store, self._ports = store, itertools.count(STORE_PORT)
        self._environment = dict(environment or {})

    def join(self, backend: str, models: DigitsModel | LayerStack | Sequence[LayerStack], **environment: str) -> None:
        """Create a new process group and model, or one model for each rank. `environment`: further variables."""
        rendezvous = f"tcp://{self._store}:{next(self._ports)}" if self._store else f"tcp://127.0.0.1:{free_port()}"
        each = models if isinstance(models, Sequence) else [models] * len(self.places)
        variables = self._environment | environment
        self.ask_each([TrainingJob(backend, rendezvous, model, variables) for model in each])

    def run(self, request: Steps | AllReduces) -> list[Times]:
        """Run the request on all ranks. Returns the times of each."""
        return self.ask(request)


@contextlib.contextmanager
def training_on_star(hosts: int, link: LinkOptions, ranks_per_host: int = 1) -> Iterator[tuple[Star, TrainingTeam]]:
    """Training ranks in the hosts of a star, whose agents reach the aggregator over its links."""
    processes = training_context()  # imports in the background while the network is built
    with star_with_aggregator(hosts, link) as (star, aggregator):
        environment = {"SWITCHML_AGGREGATOR": aggregator.address, "SWITCHML_TRANSPORT": "udp"}
        with TrainingTeam(processes, places(star.hosts, ranks_per_host), star.address(0), environment) as team:
            yield star, team


class _HostRank(CallableRank):
    """A rank in a host, configured to reach the aggregator by UDP."""

    def __init__(self, aggregator: str, place: RankPlace):
        os.environ |= {"RANK": str(place.rank), "SWITCHML_AGGREGATOR": aggregator, "SWITCHML_TRANSPORT": "udp"}

    def run(self, work: Callable[[Any], Any], request: Any) -> Any:
        return work(request)


def at_hosts(star: Star, aggregator: str, work: Callable[[Any], Any], request: Any) -> list[Any]:
    """Run `work(request)` on all hosts at once and return the results. Each host is a rank (RANK in its environment)
    configured with that aggregator address. Raises JobError or PeerLost if a rank fails."""
    with Team(training_context(), partial(_HostRank, aggregator), places(star.hosts)) as team:
        return team.ask(methodcaller("run", work, request), timeout_s=math.inf)


def step_seconds(times: Sequence[Times]) -> list[float]:
    """Seconds of each step, as the mean over ranks. Ranks finish each step together, so a mean does not count the
    waiting for an occasional straggler twice."""
    return [mean(step) for step in zip(*(one.seconds for one in times), strict=True)]
