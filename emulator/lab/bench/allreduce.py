"""Measurement of `switchml bench allreduce`: an aggregator and the ranks as processes of this machine, over several
repeats.

Switchml and Gloo alternate in the same processes, and all ranks are ready before each repeat. The two times of a pair
are therefore measured under similar machine load, and their ratio is more meaningful than either time.
"""

import contextlib
import importlib.util
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

import psutil

from emulator.lab.bench.background import busy_processes
from emulator.lab.bench.ranks.reducing import AGENTS, DENSE, GLOO, INT32, PLAIN, SWITCHML, Calls, Target
from emulator.lab.bench.ranks.team import joined_ranks, local_places
from emulator.lab.bench.sizes import ITEM_BYTES, Case, text_of
from emulator.lab.bench.sparsity import Sparsity
from emulator.lab.bench.tally import Survey, Tally, ratios, take_turns
from host_agent.pytorch.aggregator import ChildAggregator, command_of, options_for
from host_agent.reach import TRANSPORTS
from switchml.errors import AggregatorLost, ConfigError, JoinError
from switchml.protocol.sizes import AGENT_WIRES, EXACT

REACHABLE_S = 5.0
AGGREGATORS = ("software", "p4", "bmv2", "p4-lanes", "bmv2-lanes")
"""Aggregators that can be started: the software aggregator, the project's P4 switch and BMv2's simple_switch, each of
the two switches with the program that adds 64 lanes at once or with the one that has a register for each lane."""
_LANES_PAYLOAD_BYTES = 256
COUNTERS = ("sent", "received", "retransmitted", "spurious", "waits", "refused", "repeats")


@dataclass(frozen=True)
class Measurement:
    """Measurements of one case, by backend."""

    case: Case
    tallies: dict[str, Tally]

    @property
    def aggregator(self) -> dict[str, float]:
        """Resources that the aggregator process used in a repeat of switchml, on average, as in `Tally.usage`; empty if
        the aggregator was not started by this run."""
        tally = self.tallies[SWITCHML]
        return {name: total / len(tally.seconds) for name, total in tally.surveyed.get("aggregator", {}).items()}

    def seconds(self, backend: str) -> list[float]:
        """Seconds per call on the slowest rank, for each repeat."""
        return [seconds / self.case.calls for seconds in self.tallies[backend].seconds]

    def median_s(self, backend: str) -> float:
        return median(self.seconds(backend))

    def ratios_to(self, backend: str) -> list[float]:
        """Another backend's time over switchml's, pair by pair; empty if it was not measured."""
        return ratios(self.tallies[backend], self.tallies[SWITCHML]) if backend in self.tallies else []

    def elements_per_s(self, backend: str) -> float:
        """Elements per second, from the median time."""
        return self.case.size_bytes / self.case.item / self.median_s(backend)

    def gigabytes_per_s(self, backend: str) -> float:
        """nccl-tests' algbw: bytes of the tensor over the median time, in 10^9 bytes/s."""
        return self.case.size_bytes / self.median_s(backend) / 1e9

    @property
    def packets(self) -> dict[str, int]:
        """Packet counters, summed over all ranks and all of switchml's repeats."""
        return self.tallies[SWITCHML].packets(*COUNTERS)

    def processor_s(self, backend: str) -> float:
        """User plus system CPU seconds of one rank in one repeat."""
        usage = self.tallies[backend].mean_usage
        return usage["user_s"] + usage["system_s"]

    @property
    def packets_to_int32(self) -> float:
        """Ratio of packets sent for exact sums to packets sent with the int32 wire, retransmissions excluded."""
        sent = [tally.packets("sent", "retransmitted") for tally in (self.tallies[SWITCHML], self.tallies[INT32])]
        exact, int32 = (counts["sent"] - counts["retransmitted"] for counts in sent)
        return exact / int32


@dataclass(frozen=True)
class Report:
    """Result of a whole run. `transport`: the one that the agents chose. `longest`: elements of the longest tensor;
    shorter tensors are prefixes of it. `background`: number of busy processes that ran during the measurement."""

    workers: int
    transport: str
    wire: str
    backends: tuple[str, ...]
    measurements: list[Measurement]
    aggregator: str = "software"
    sparsity: Sparsity | None = None
    longest: int = 0
    background: int = 0
    calls: Calls = AGENTS

    def union_density(self, measurement: Measurement) -> float:
        """Share of blocks that are non-zero on at least one rank, in a tensor of this case; 1 without sparsity."""
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
    authenticate: bool = False,
    background: int = 0,
    calls: Calls = AGENTS,
    on_start: Callable[[str], None] = lambda transport: None,
    on_result: Callable[[Measurement], None] = lambda measurement: None,
) -> Report:
    """Measure `cases` with `workers` ranks on this machine. `aggregator`: one of AGGREGATORS, which is started, or
    HOST:PORT of a running one. `sparsity`: blocks of zeros in the tensors, which are reduced sparse and, alternating
    with that, dense. `authenticate`: packets carry authentication tags and, alternating with that, none. With the wire
    "exact", int32 is measured too, alternating. `background`: number of busy-looping processes while the ranks reduce.
    `calls`: torch supports only dense sums without tags.

    `on_start(transport)` is called when all ranks have joined. Raises ConfigError for what cannot work, PeerLost or
    AggregatorLost if a process dies, RanksDisagree or JobError if a result is wrong.
    """
    check_choice(transport, wire)
    backends = backends_of(sparsity, against, authenticate, wire)
    if calls.api == "torch" and set(backends) - {SWITCHML, GLOO}:
        raise ConfigError("torch calls are measured only without zero blocks, packet tags and exact sums")
    check_torch(backends, calls)
    longest = max(case.elements for case in cases)
    _check_memory(longest, workers)
    with contextlib.ExitStack() as stack:
        child, target = start_aggregator(aggregator, workers, transport, stack)
        targets = {SWITCHML: lambda: replace(target(), authenticate=authenticate)}
        targets |= {PLAIN: target} if PLAIN in backends else {}
        ranks = local_places(workers)
        with joined_ranks(ranks, backends, longest, targets, sparsity=sparsity, wire=wire, calls=calls) as (
            team,
            transports,
        ):
            on_start(transports[SWITCHML])
            stack.enter_context(busy_processes(background))
            survey: Callable[[], Survey] = partial(_usage, child.pid) if child else dict
            measurements = []
            for case in cases:
                measurements.append(Measurement(case, take_turns(team, case, backends, survey=survey)))
                on_result(measurements[-1])
    return Report(
        workers, transports[SWITCHML], wire, backends, measurements, aggregator, sparsity, longest, background, calls
    )


def check_choice(transport: str, wire: str) -> None:
    """Raises ConfigError if the agent does not support this transport or wire format."""
    for name, value, offered in (("transport", transport, TRANSPORTS), ("wire", wire, AGENT_WIRES)):
        if value not in offered:
            raise ConfigError(f"--{name} {value}: the agent offers {', '.join(offered)}")


def check_torch(backends: Sequence[str], calls: Calls = AGENTS) -> None:
    """Raises ConfigError if torch is to be measured but torch or its GPU is missing."""
    if calls.needs_torch(backends) and importlib.util.find_spec("torch") is None:
        otherwise = "" if calls.api == "torch" else ", or say --against none"
        raise ConfigError(f"--api torch needs torch: pip install 'switchml[torch]'{otherwise}")
    if calls.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise ConfigError(f"--device cuda: torch {torch.__version__} finds no GPU")


def start_aggregator(
    aggregator: str, workers: int, transport: str, stack: contextlib.ExitStack
) -> tuple[ChildAggregator | None, Callable[[], Target]]:
    """Start one of AGGREGATORS, or check that HOST:PORT accepts connections. Returns the process, or None if it was not
    started here, and a function that waits until the aggregator is ready. Raises ConfigError, JoinError."""
    if aggregator not in AGGREGATORS:
        _check_reachable(aggregator)
        return None, lambda: Target(aggregator, transport)
    child = ChildAggregator(options=options_for(transport), command=command_of(aggregator, workers))
    stack.callback(child.stop)
    payload_bytes = _LANES_PAYLOAD_BYTES if aggregator.endswith("-lanes") else 1024
    return child, lambda: Target(child.address, transport, payload_bytes)


def union_of_case(sparsity: Sparsity | None, workers: int, longest: int, case: Case) -> float:
    """Share of blocks that are non-zero on at least one rank, in a case's part of a tensor of `longest` elements; 1
    without sparsity."""
    return sparsity.union_density(workers, longest, case.elements) if sparsity else 1.0


def backends_of(
    sparsity: Sparsity | None, against: str | None, authenticate: bool = False, wire: str = INT32
) -> tuple[str, ...]:
    """The backends that alternate in each repeat."""
    others = (DENSE,) if sparsity else (PLAIN,) if authenticate else (INT32,) if wire == EXACT else ()
    return (SWITCHML, *others, *((against,) if against else ()))


def _usage(pid: int) -> Survey:
    """user_s, system_s and context switches of the aggregator process since its start. Raises AggregatorLost."""
    try:
        process = psutil.Process(pid)
        times, switches = process.cpu_times(), [0, 0]
        for task in Path(f"/proc/{pid}/task").iterdir():  # /proc/PID/status counts the first thread only
            for line in (task / "status").read_text().splitlines()[-2:]:
                switches["nonvoluntary" in line] += int(line.split()[1])
    except (psutil.Error, OSError):
        raise AggregatorLost(f"the aggregator (pid {pid}) has ended") from None
    usage = {"user_s": times.user, "system_s": times.system, "voluntary": switches[0], "involuntary": switches[1]}
    return {"aggregator": usage}


def _check_reachable(address: str) -> None:
    # Ranks retry while an aggregator starts; here it must already be running, or its address is mistyped.
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACHABLE_S).close()
    except (OSError, OverflowError) as error:
        raise JoinError(f"no aggregator at {address}: {getattr(error, 'strerror', None) or error}") from None


def _check_memory(elements: int, workers: int) -> None:
    # Inputs and exact sums once; each rank's tensor, and as much again for Gloo's buffers.
    needed, available = (12 + 8 * workers) * elements, psutil.virtual_memory().available
    if needed > available:
        raise ConfigError(
            f"{text_of(elements * ITEM_BYTES)} with {workers} ranks needs {needed / 2**30:.1f} GiB of memory, "
            f"and {available / 2**30:.1f} GiB are free; take a smaller size or fewer ranks"
        )
