"""What `switchml bench aggregators` measures: the same all-reduce through every aggregator there is, in one run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from emulator.bench.allreduce import joined_ranks, start_aggregator
from emulator.bench.ranks.reducing import GLOO
from emulator.bench.sizes import ITEM_BYTES, Case
from emulator.bench.tally import Tally
from switchml.errors import ConfigError


@dataclass
class Turn:
    """One backend of `switchml bench aggregators`. `transport`: how its ranks reach it; "tcp" for Gloo."""

    backend: str
    transport: str
    payload_bytes: int
    tally: Tally

    def gigabytes_per_s(self, size_bytes: int) -> float:
        """algbw: bytes of the tensor over the median time, in 10^9 bytes a second."""
        return size_bytes / self.tally.median_s / 1e9


def measure(
    size_bytes: int,
    backends: Sequence[str],
    *,
    workers: int,
    repeats: int,
    warmup: int,
    wire: str = "int32",
    report: Callable[[str], None] = lambda text: None,
) -> list[Turn]:
    """All-reduce `size_bytes` through each of `backends` (GLOO and AGGREGATORS), in turns: all ranks have joined all of
    them, so the times of a round saw much the same machine. Idle aggregators cost nothing: they sleep.

    Raises ConfigError for one that cannot be started, JobError or RanksDisagree if a result is wrong."""
    if len(set(backends)) < len(backends) or not backends:
        raise ConfigError(f"aggregators {', '.join(backends) or 'none'}: expected each of them once")
    case = Case((size_bytes // ITEM_BYTES,), False, repeats, warmup)
    with contextlib.ExitStack() as stack:
        started = {name: start_aggregator(name, workers, "auto", stack)[1] for name in backends if name != GLOO}
        with joined_ranks(workers, backends, case.elements, None, started, wire) as (team, transports):
            targets = {name: target() for name, target in started.items()}
            turns = [
                Turn(name, transports.get(name, "tcp"), targets[name].payload_bytes if name in targets else 0, Tally())
                for name in backends
            ]
            team.prepare(case)
            for number in range(-warmup, repeats):
                for turn in turns:
                    repeat = team.repeat(turn.backend)
                    which = "warm-up" if number < 0 else f"{number + 1} of {repeats}"
                    report(f"{turn.backend}: {repeat.seconds:.3f} s ({which})")
                    if number >= 0:
                        turn.tally.add(repeat)
    return turns
