"""What `switchml bench aggregators` measures: the same all-reduce through every aggregator there is, in one run.

All ranks have joined all aggregators, which take turns repeat after repeat; so the times of a round saw much the same
machine, and their ratios are worth something where a time alone is not. Idle aggregators cost nothing: they sleep.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from emulator.bench.allreduce import Team, check_samples, context_of_ranks, shared_tensors, start_aggregator
from emulator.bench.rank import GLOO, Joined, Settings
from emulator.bench.sizes import ITEM_BYTES, Case
from switchml.errors import ConfigError


@dataclass
class Turn:
    """One backend. `seconds`: of each repeat's slowest rank. `transport`: how its ranks reach it; "tcp" for Gloo."""

    backend: str
    transport: str
    payload_bytes: int
    seconds: list[float] = field(default_factory=list)
    packets: dict[str, int] = field(default_factory=dict)
    """Of all ranks in all repeats."""

    def gigabytes_per_s(self, size_bytes: int) -> float:
        """algbw: bytes of the tensor over the median time, in 10^9 bytes a second."""
        return size_bytes / median(self.seconds) / 1e9


def ratios(turn: Turn, other: Turn) -> list[float]:
    """How many times as long as `turn` `other` took, repeat by repeat."""
    return [theirs / ours for ours, theirs in zip(turn.seconds, other.seconds, strict=True)]


def measure(
    size_bytes: int,
    backends: Sequence[str],
    *,
    workers: int,
    repeats: int,
    warmup: int,
    wire: str = "int32",
    say: Callable[[str], None] = lambda text: None,
) -> list[Turn]:
    """All-reduce `size_bytes` through each of `backends`: GLOO and those of allreduce.AGGREGATORS. Raises ConfigError
    for one that can't be started, JobError or RanksDisagree if a result is wrong."""
    if len(set(backends)) < len(backends) or not backends:
        raise ConfigError(f"aggregators {', '.join(backends) or 'none'}: expected each of them once")
    case = Case((size_bytes // ITEM_BYTES,), False, repeats, warmup)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="switchml-bench-"))
        started = {name: start_aggregator(name, workers, "auto", stack)[1] for name in backends if name != GLOO}
        context = context_of_ranks(backends)
        inputs, sums = stack.enter_context(shared_tensors(case.elements, workers))
        targets = {name: target() for name, target in started.items()}
        settings = Settings(
            workers=workers,
            wire=wire,
            targets=targets,
            job=f"bench-{os.getpid()}-{secrets.token_hex(3)}",
            backends=tuple(backends),
            inputs=inputs,
            sums=sums,
            store=str(Path(folder) / "gloo"),
        )
        team = Team(settings, context)
        stack.callback(team.stop)
        transports = team.replies(Joined)[0].transports
        turns = [
            Turn(name, transports.get(name, "tcp"), targets[name].payload_bytes if name in targets else 0)
            for name in backends
        ]
        team.prepare(case)
        for repeat in range(-warmup, repeats):
            for turn in turns:
                samples = team.repeat(turn.backend)
                worst = max(sample.error if sample.error == sample.error else float("inf") for sample in samples)
                check_samples(turn.backend, samples, worst, settings)
                seconds = max(sample.seconds for sample in samples)
                say(f"{turn.backend}: {seconds:.3f} s ({'warm-up' if repeat < 0 else f'{repeat + 1} of {repeats}'})")
                if repeat < 0:
                    continue
                turn.seconds.append(seconds)
                for name in ("sent", "received", "retransmitted"):
                    counted = sum(int(sample.agent.get(name, 0)) for sample in samples)
                    turn.packets[name] = turn.packets.get(name, 0) + counted
        team.leave()
        return turns
