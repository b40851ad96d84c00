"""The parent's side of `switchml bench allreduce`: an aggregator and the ranks as processes, repeat after repeat.

Switchml and Gloo take turns in the same processes, and all ranks stand ready before each repeat, so that the two times
of a pair saw much the same machine: the ratio of each pair is worth something where a time alone is not.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from statistics import median

import numpy as np
import psutil

from emulator.bench import rank as ranks
from emulator.bench.rank import (
    CHECK,
    DENSE,
    GLOO,
    GO,
    STRIDE,
    SWITCHML,
    Failure,
    Joined,
    Prepare,
    Run,
    Sample,
    Settings,
    Target,
)
from emulator.bench.sizes import ITEM_BYTES, LEAST_REPEATS, Case, text_of
from emulator.bench.sparsity import Sparsity
from host_agent.forking import fork_server
from host_agent.pytorch.aggregator import ChildAggregator, command_of
from switchml.errors import AggregatorLost, ConfigError, JobError, JoinError, PeerLost, RanksDisagree, SwitchMLError

ANSWER_S = 300.0
"""How long a rank may take for anything; the first start on a machine compiles."""
ROOT_CAUSE_S = 2.0
"""After a first failure, how long to look for its cause."""
REACHABLE_S = 5.0
LANE_BITS = {"int32": 32, "int16": 16, "int8": 8}
AGGREGATORS = ("software", "p4", "bmv2", "p4-lanes", "bmv2-lanes")
"""What we can start: the software aggregator, our P4 switch and BMv2's simple_switch, each with the program that adds
64 lanes at once, or with the one that has a register for each lane."""
_LANES_PAYLOAD_BYTES = 256
_GRID_BITS = 4
"""Exponents of blocks are at most this many bits above what their values need (docs/protocol.md, section 4)."""


@dataclass(frozen=True)
class Measurement:
    """One case. Lists have an entry for each repeat, warm-up left out; seconds: one call on the slowest rank."""

    case: Case
    seconds: dict[str, list[float]]
    error: dict[str, float]
    """Largest absolute difference of an element to the exact sum, over all ranks and repeats."""
    largest: float
    """Largest magnitude of an exact sum: what `error` is relative to."""
    usage: dict[str, dict[str, float]]
    """Backend → means over the ranks and repeats, for one repeat: user_s, system_s, voluntary, involuntary."""
    aggregator: dict[str, float]
    """The same of the aggregator's process in switchml's repeats; empty if it is not ours."""
    packets: dict[str, int] = field(default_factory=dict)
    """Of all ranks in all of switchml's repeats."""

    @property
    def ratios(self) -> list[float]:
        """Gloo's time over switchml's, pair by pair: above 1, switchml is faster."""
        return self.ratios_to(GLOO)

    def ratios_to(self, backend: str) -> list[float]:
        """Another one's time over switchml's, pair by pair; empty if it was not measured."""
        pairs = zip(self.seconds[SWITCHML], self.seconds.get(backend, []), strict=False)
        return [theirs / ours for ours, theirs in pairs]

    def elements_per_s(self, backend: str) -> float:
        """From the median time."""
        return self.case.size_bytes / ITEM_BYTES / median(self.seconds[backend])

    def gigabytes_per_s(self, backend: str) -> float:
        """nccl-tests' algbw: bytes of the tensor over time, in 10^9 bytes a second."""
        return self.case.size_bytes / median(self.seconds[backend]) / 1e9


@dataclass(frozen=True)
class Report:
    """A whole run. `transport`: what the agents chose."""

    workers: int
    transport: str
    wire: str
    backends: tuple[str, ...]
    measurements: list[Measurement]
    aggregator: str = "software"
    sparsity: Sparsity | None = None

    longest: int = 0
    """Elements of the longest tensor; shorter ones are its beginning."""

    def union_density(self, measurement: Measurement) -> float:
        """Share of blocks that some rank has, in a tensor of this case; 1 without sparsity."""
        return union_of_case(self.sparsity, self.workers, self.longest, measurement.case)


def measure(
    cases: Sequence[Case],
    *,
    workers: int,
    transport: str = "auto",
    wire: str = "int32",
    against: str | None = GLOO,
    aggregator: str = "software",
    sparsity: Sparsity | None = None,
    on_start: Callable[[str], None] = lambda transport: None,
    on_result: Callable[[Measurement], None] = lambda measurement: None,
) -> Report:
    """Measure `cases` with `workers` ranks on this machine. `aggregator`: one of AGGREGATORS, which is started, or
    HOST:PORT of a running one. `sparsity`: blocks of zeros in the tensors; they are reduced sparse and, in turn with
    that, dense.

    `on_start(transport)` is called when all ranks have joined. Raises ConfigError for what can't work, PeerLost or
    AggregatorLost if a process dies, RanksDisagree or JobError if a result is wrong.
    """
    ranks.check_choice(transport, wire)
    if against == GLOO and importlib.util.find_spec("torch") is None:
        raise ConfigError("measuring against gloo needs torch: pip install 'switchml[torch]', or say --against none")
    backends = backends_of(sparsity, against)
    most = max(case.elements for case in cases)
    _check_memory(most, workers)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="switchml-bench-"))
        ours, target = start_aggregator(aggregator, workers, transport, stack)
        context = context_of_ranks(backends)  # it imports while we make numbers
        inputs, sums = stack.enter_context(shared_tensors(most, workers, sparsity))
        settings = Settings(
            workers=workers,
            wire=wire,
            targets={SWITCHML: target()},
            job=f"bench-{os.getpid()}-{secrets.token_hex(3)}",
            backends=backends,
            inputs=inputs,
            sums=sums,
            store=str(Path(folder) / "gloo"),
            sparsity=sparsity,
        )
        team = Team(settings, context)
        stack.callback(team.stop)
        chosen = team.replies(Joined)[0].transports[SWITCHML]
        on_start(chosen)
        measurements = []
        for case in cases:
            measurements.append(_measure_case(team, case, settings, ours.pid if ours else None))
            on_result(measurements[-1])
        team.leave()
        return Report(workers, chosen, wire, backends, measurements, aggregator, sparsity, most)


def start_aggregator(
    aggregator: str, workers: int, transport: str, stack: contextlib.ExitStack
) -> tuple[ChildAggregator | None, Callable[[], Target]]:
    """Start one of AGGREGATORS, or find HOST:PORT. Gives the process, if it is ours, and a function that waits until it
    is ready. Raises ConfigError, JoinError."""
    if aggregator not in AGGREGATORS:
        _check_reachable(aggregator)
        return None, lambda: Target(aggregator, transport)
    ours = ChildAggregator(command=command_of(aggregator, workers))
    stack.callback(ours.stop)
    payload_bytes = _LANES_PAYLOAD_BYTES if aggregator.endswith("-lanes") else 1024
    return ours, lambda: Target(ours.address, transport, payload_bytes)


def union_of_case(sparsity: Sparsity | None, workers: int, longest: int, case: Case) -> float:
    """Share of blocks that some rank has in the first elements of a tensor of `longest`; 1 without sparsity."""
    if sparsity is None:
        return 1.0
    owned = sparsity.owned(workers, longest)[:, : -(-case.elements // sparsity.block)]
    return float(owned.any(0).mean())


def backends_of(sparsity: Sparsity | None, against: str | None) -> tuple[str, ...]:
    """What takes turns."""
    return (SWITCHML, *((DENSE,) if sparsity else ()), *((against,) if against else ()))


def context_of_ranks(backends: Sequence[str], *preload: str):
    """Where ranks' processes come from that `backends` can be measured in: a multiprocessing context that begins to
    import what they need, and `preload`."""
    torch = ("torch", "torch.distributed") if GLOO in backends else ()
    return fork_server("emulator.bench.preload", *preload, *torch)


class Team:
    """The ranks' processes."""

    def __init__(self, settings: Settings, context):
        self._start(context, ranks.main, [(rank, settings) for rank in range(settings.workers)])

    def _start(self, context, main: Callable[..., None], arguments: Sequence[tuple]) -> None:
        """A process for each rank, in their order: `main` gets its arguments and a pipe."""
        self._pipes: list[connection.Connection] = []
        self._processes = []
        for rank, its_own in enumerate(arguments):
            ours, theirs = context.Pipe()
            process = context.Process(target=main, args=(*its_own, theirs), name=f"rank {rank}", daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def tell(self, message) -> None:
        for rank, pipe in enumerate(self._pipes):
            try:
                pipe.send(message)
            except OSError:
                raise self._death(rank) from None

    def replies(self, kind: type) -> list:
        """One answer of each rank, in the order of ranks. Raises what went wrong with one."""
        answers: dict[int, object] = {}
        failures: list[Failure] = []
        deadline = time.monotonic() + ANSWER_S
        waiting = {pipe: rank for rank, pipe in enumerate(self._pipes)}
        while waiting and (ready := connection.wait(list(waiting), max(0.0, deadline - time.monotonic()))):
            for pipe in ready:
                rank = waiting.pop(pipe)
                try:
                    message = pipe.recv()
                except (EOFError, OSError):
                    raise self._death(rank) from None
                if isinstance(message, Failure):
                    failures.append(message)
                    # Who merely misses a dead peer is often quicker to say so than the death is noticed.
                    deadline = min(deadline, time.monotonic() + (ROOT_CAUSE_S if message.is_consequence else 0.0))
                else:
                    assert isinstance(message, kind), message
                    answers[rank] = message
        if failures:
            cause = next((failure for failure in failures if not failure.is_consequence), failures[0])
            error = {"AggregatorLost": AggregatorLost, "ConfigError": ConfigError}.get(cause.kind, JobError)
            raise error(f"rank {cause.rank} failed: {cause.kind}: {cause.message}")
        if waiting:
            raise PeerLost(f"rank {sorted(waiting.values())} did not answer in {ANSWER_S:g} s", tuple(waiting.values()))
        return [answers[rank] for rank in sorted(answers)]

    def prepare(self, case: Case) -> None:
        """Have all ranks ready for a case."""
        self.tell(Prepare(case))
        self.replies(Prepare)

    def repeat(self, backend: str) -> list[Sample]:
        """One repeat; each rank's account of it."""
        self.tell(Run(backend))
        self.replies(Run)
        self.tell(GO)
        self.replies(Run)
        self.tell(CHECK)
        return self.replies(Sample)

    def leave(self) -> None:
        """Let the ranks leave their job in good order."""
        self.tell(None)
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

    def _death(self, rank: int) -> SwitchMLError:
        process = self._processes[rank]
        process.join(ROOT_CAUSE_S)
        code = process.exitcode
        how = f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"ended with exit code {code}"
        return PeerLost(f"rank {rank} (pid {process.pid}) {how}", (rank,))


def _measure_case(team: Team, case: Case, settings: Settings, aggregator_pid: int | None) -> Measurement:
    team.prepare(case)
    seconds: dict[str, list[float]] = {backend: [] for backend in settings.backends}
    kept: dict[str, list[Sample]] = {backend: [] for backend in settings.backends}
    error, largest = dict.fromkeys(settings.backends, 0.0), 0.0
    aggregator: dict[str, float] = {}
    started = time.monotonic()
    for repeat in range(-case.warmup, case.repeats):
        if repeat >= LEAST_REPEATS and time.monotonic() - started > case.budget_s:
            break
        for backend in settings.backends:
            before = _usage_of(aggregator_pid)
            samples = team.repeat(backend)
            after = _usage_of(aggregator_pid)
            largest = samples[0].largest
            worst = max(sample.error if sample.error == sample.error else float("inf") for sample in samples)
            check_samples(backend, samples, worst, settings)
            error[backend] = max(error[backend], worst)
            if repeat < 0:
                continue
            seconds[backend].append(max(sample.seconds for sample in samples) / case.calls)
            kept[backend] += samples
            if backend == SWITCHML:
                for name in after:
                    aggregator[name] = aggregator.get(name, 0.0) + after[name] - before[name]
    return Measurement(
        case=case,
        seconds=seconds,
        error=error,
        largest=largest,
        usage={backend: _mean([sample.usage for sample in kept[backend]]) for backend in settings.backends},
        aggregator={name: total / len(seconds[SWITCHML]) for name, total in aggregator.items()},
        packets={
            name: int(sum(sample.agent.get(name, 0) for sample in kept[SWITCHML]))
            for name in ("sent", "received", "retransmitted", "spurious", "waits", "refused", "repeats")
        },
    )


def check_samples(backend: str, samples: list[Sample], worst: float, settings: Settings) -> None:
    """Raises RanksDisagree or JobError if a result can't be right."""
    if len({sample.checksum for sample in samples}) > 1:
        raise RanksDisagree(f"{backend}: the ranks' results differ; every rank must get the same bits")
    n, largest = settings.workers, samples[0].largest
    bits = 24 if backend == GLOO else LANE_BITS[settings.wire] - (n - 1).bit_length() - _GRID_BITS - 1
    if worst > n * largest * 2.0**-bits + n * largest * 2.0**-23:
        raise JobError(f"{backend}: a result is off by {worst:.3g} where sums are at most {largest:.3g}")


def _mean(records: list[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([record[name] for record in records])) for name in records[0]} if records else {}


def _usage_of(pid: int | None) -> dict[str, float]:
    """user_s, system_s and context switches of a process since its start; empty if there is none (any more)."""
    if pid is None:
        return {}
    try:
        process = psutil.Process(pid)
        times, switches = process.cpu_times(), [0, 0]
        for task in Path(f"/proc/{pid}/task").iterdir():  # /proc/PID/status itself tells of the first thread only
            for line in (task / "status").read_text().splitlines()[-2:]:
                switches["nonvoluntary" in line] += int(line.split()[1])
    except (psutil.Error, OSError):
        raise AggregatorLost(f"the aggregator (pid {pid}) has ended") from None
    return {"user_s": times.user, "system_s": times.system, "voluntary": switches[0], "involuntary": switches[1]}


def _check_reachable(address: str) -> None:
    # The ranks would wait for an aggregator that is about to start; a benchmark's is there or is mistyped.
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACHABLE_S).close()
    except (OSError, OverflowError) as error:
        raise JoinError(f"no aggregator at {address}: {getattr(error, 'strerror', None) or error}") from None


def _check_memory(elements: int, workers: int) -> None:
    # Inputs and exact sums once; a rank's tensor, and as much again for what Gloo keeps of it.
    needed, available = (12 + 8 * workers) * elements, psutil.virtual_memory().available
    if needed > available:
        raise ConfigError(
            f"{text_of(elements * ITEM_BYTES)} with {workers} workers needs {needed / 2**30:.1f} GiB of memory, "
            f"and {available / 2**30:.1f} GiB are free; take a smaller size or fewer workers"
        )


@contextlib.contextmanager
def shared_tensors(elements: int, workers: int, sparsity: Sparsity | None = None) -> Iterator[tuple[str, str]]:
    """Paths of the inputs (float32) and of the exact sums (float64), in memory that goes when all processes have."""
    inputs_fd, sums_fd = os.memfd_create("switchml-bench-inputs"), os.memfd_create("switchml-bench-sums")
    try:
        paths = [f"/proc/{os.getpid()}/fd/{fd}" for fd in (inputs_fd, sums_fd)]
        inputs = np.memmap(paths[0], np.float32, "r+", shape=(elements + workers * STRIDE,))
        np.random.default_rng(1).standard_normal(out=inputs, dtype=np.float32)
        sums = np.memmap(paths[1], np.float64, "r+", shape=(elements,))
        owned = [None] * workers if sparsity is None else sparsity.owned(workers, elements)
        for rank, row in enumerate(owned):
            mine = True if row is None else sparsity.elements_of(row, elements)
            np.add(sums, inputs[rank * STRIDE : rank * STRIDE + elements], out=sums, where=mine)
        yield paths[0], paths[1]
    finally:
        os.close(inputs_fd)
        os.close(sums_fd)
