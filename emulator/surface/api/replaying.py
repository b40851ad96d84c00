"""Replay of traced iterations, unchanged and with what-if changes: the implementation of `switchml trace replay` and
`switchml.trace.replay`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emulator.jobs.replay.engine import replay as play
from emulator.jobs.replay.parts import PARTS
from emulator.surface.api.summarized import Library, Summarized, frame
from emulator.traces.events import RankTrace
from emulator.traces.join import join, join_each
from emulator.traces.joined import Joined
from emulator.traces.plan import Job
from emulator.traces.whatif import changes, codec_costs, contention, network
from emulator.traces.whatif.predict import Played, predicted, traced
from emulator.traces.whatif.speeds import CARRIED, Speeds, speeds
from switchml.units import time_text

if TYPE_CHECKING:
    import pandas

Change = Callable[[Joined], Joined]


@dataclass(frozen=True)
class Changes:
    """What-if changes; by default none. Rates in bits/s, as in `switchml trace replay`."""

    link_bps: float | None = None
    """Rate of each host's link in the traced run, if known."""
    ranks_per_host: int = 0
    """Number of ranks that share a link; 0: as traced."""
    bandwidth_bps: float | None = None
    bandwidth_factor: float | None = None
    """Factor on the traced rate, instead of `bandwidth_bps`."""
    latency_s: float | None = None
    """Latency in seconds of each step of a collective."""
    latency_factor: float | None = None
    allreduce: str = ""
    hierarchy: str = ""
    cluster: str = ""
    """Network of a built-in cluster or .toml file, whose nodes are filled with the ranks."""
    ranks: int | None = None
    """Number of data-parallel ranks."""
    bucket_bytes: Sequence[float] = ()
    """Cap of DDP's buckets; with two values, of the first and of the others."""
    codec: str = ""
    """A codec, whose speed is measured on this machine."""
    accelerator: str = ""
    """x2 for twice as fast, or a built-in accelerator such as h100."""
    without_straggler: int | None = None
    """A rank that becomes as fast as the others."""
    slow: Mapping[int, float] | None = None
    """Rank → factor on its compute time."""

    def of(self, mean: Joined, iterations: Sequence[Joined]) -> list[tuple[str, Change]]:
        """(title, change) in the order of application, each for iterations passed through `prepare`."""
        rates = _given(bps=self.bandwidth_bps, factor=self.bandwidth_factor)
        delays = _given(seconds=self.latency_s, factor=self.latency_factor)
        slow = dict(self.slow or {})
        slowed = ", ".join(f"rank {rank} {factor:g} times as slow" for rank, factor in slow.items())
        reduced = " by ".join(filter(None, (f"all-reduce {self.allreduce or 'as traced'}", self.hierarchy)))
        caps = ", ".join(map(_size, self.bucket_bytes))
        faster = _speeds(self.accelerator, mean) if self.accelerator else None
        cost = codec_costs.measure([self.codec], network.world_size(mean))[self.codec] if self.codec else None
        possible: list[tuple[Any, str, Change]] = [
            (self.without_straggler is not None, f"rank {self.without_straggler} no straggler",
             _with(changes.without_straggler, self.without_straggler)),
            (slow, slowed, _with(changes.slow, slow)),
            (self.accelerator, f"accelerator {self.accelerator}", _with(changes.accelerator_of, faster)),
            (self.cluster, f"network of {self.cluster}", _with(changes.cluster, self.cluster)),
            (self.allreduce or self.hierarchy, reduced, _with(changes.allreduce, self.allreduce, self.hierarchy)),
            (rates, f"links {_new(rates, 1e6, 'Mbit/s')}", _with(changes.bandwidth, **rates)),
            (delays, f"latency {_new(delays, 1e-6, 'µs')}", _with(changes.latency, **delays)),
            (self.ranks, f"{self.ranks} ranks", _with(changes.ranks, self.ranks)),
            (self.bucket_bytes, f"buckets of {caps}", _with(changes.buckets, tuple(self.bucket_bytes))),
            (self.codec, f"codec {self.codec}", _with(changes.codec, cost, self.codec)),
        ]  # fmt: skip
        return [(title, change) for is_chosen, title, change in possible if is_chosen]

    def prepare(self, iterations: Sequence[Joined]) -> Change:
        """A function that prepares an iteration for the changes: it adds a model of the traced network if that is
        changed."""
        networks = (self.cluster, self.allreduce, self.hierarchy, self.bandwidth_bps, self.bandwidth_factor,
                    self.latency_s, self.latency_factor, self.ranks, self.bucket_bytes, self.codec)  # fmt: skip
        is_fitted = any(networks)
        model = network.fit(iterations, self.link_bps, self.ranks_per_host) if is_fitted else None
        measured = contention.measure(iterations) if self.bucket_bytes else None
        return lambda one: dataclasses.replace(one, network=model, contention=measured)


def _with(change: Callable[..., Joined], *arguments: Any, **options: Any) -> Change:
    return lambda one: change(one, *arguments, **options)


def _given(**values: float | None) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}


def _new(change: dict[str, float], unit: float, unit_name: str) -> str:
    if "factor" in change:
        return f"x{change['factor']:g}"
    return "".join(f"{value / unit:g} {unit_name}" for value in change.values())


def _size(size_bytes: float) -> str:
    """A size in its likely original unit: 25 MB, 25 MiB."""
    whole = next((unit for unit in ((2**20, "MiB"), (1e6, "MB"), (2**10, "KiB")) if not size_bytes % unit[0]), None)
    return f"{size_bytes / whole[0]:g} {whole[1]}" if whole else f"{size_bytes:g} B"


def _speeds(name: str, mean: Joined) -> Speeds:
    """Speed factors for `changes.accelerator_of`."""
    if match := re.fullmatch(r"x([0-9.]+)", name):
        return Speeds(*[float(match[1])] * 3)
    return speeds(mean, name)


class Replay(Summarized):
    """Mean iterations: as traced, as replayed and, with changes, as predicted."""

    def __init__(
        self,
        iterations: Sequence[Joined],
        mean: Joined,
        clock_error_s: float,
        changed: Sequence[Joined],
        changed_mean: Joined,
        titles: list[str],
        notes: list[str],
    ) -> None:
        self.traced: Played = traced(iterations)
        self.replayed: Played = predicted(iterations)
        self.changed: Played | None = predicted(changed) if titles else None
        self.changes = titles
        """Descriptions of the changes."""
        self.joined = changed_mean
        """The mean iteration with the changes, which `timeline` draws."""
        self.assumptions = [*mean.assumptions, *notes]
        self._mean, self._iterations, self._clock_error_s = mean, len(iterations), clock_error_s
        self._network = changed_mean.network if titles else None
        if (model := self._network) is not None:
            self.assumptions += [*model.assumptions, *changed_mean.assumptions[len(mean.assumptions) :]]

    @property
    def error(self) -> float:
        """Replayed over traced iteration time, less 1."""
        return self.replayed.iteration_s / self.traced.iteration_s - 1

    @property
    def speedup(self) -> float:
        """Speed-up of the job by the changes; 1 without any."""
        return self.replayed.iteration_s / self.changed.iteration_s if self.changed else 1.0

    @property
    def title(self) -> str:
        """Number of iterations and ranks, and the replay's error."""
        return f"{self._iterations} iterations of {len(self._mean.graph.ranks)} ranks, replayed {self.error:+.2%} off"

    def facts(self) -> Iterable[tuple[str, str]]:
        """Iteration times, and the speed-up by the changes."""
        yield "traced", time_text(self.traced.iteration_s)
        yield "replayed", time_text(self.replayed.iteration_s)
        if self.changed:
            yield "changed", f"{time_text(self.changed.iteration_s)} with {', '.join(self.changes)}"
            yield "speed-up", f"{self.speedup:.3g}"

    def to_json(self) -> dict[str, Any]:
        """The same JSON object as `switchml trace replay --json`."""
        ranks = self._mean.graph.ranks.device.tolist()
        report: dict[str, Any] = {
            "iterations": self._iterations,
            "ops": len(self._mean.graph.ops),
            "ranks": ranks,
            "clock_offset_s": [float(offset) for offset in self._mean.offset_s],
            "clock_error_s": self._clock_error_s,
            "traced": self.traced.as_json(ranks),
            "replayed": self.replayed.as_json(ranks),
            "error": self.error,
            "assumptions": self.assumptions,
        }
        if self.changed:
            report |= {"changes": self.changes, "changed": self.changed.as_json(ranks), "speedup": self.speedup}
            if (model := self._network) is not None:
                report["network"] = {
                    "allreduce": model.algorithm,
                    "hierarchy": model.hierarchy,
                    "link_bps": 8 * model.link_bytes_per_s,
                    "latency_s": model.latency_s,
                    "host_s_per_byte": model.host_s_per_byte,
                }
        return report

    def to_frame(self, library: Library | None = None) -> pandas.DataFrame:
        """A row for each part of the iteration and one for the total; a column of seconds for each of traced, replayed
        and changed."""
        columns = {"traced": self.traced, "replayed": self.replayed, "changed": self.changed}
        played = {name: one for name, one in columns.items() if one is not None}
        means = {name: one.mean() for name, one in played.items()}
        whole = {f"{name}_s": one.iteration_s for name, one in played.items()}
        rows: list[dict[str, Any]] = [{"part": "iteration", **whole}]
        for part in PARTS:
            if any(part in mean for mean in means.values()):
                rows.append({"part": part, **{f"{name}_s": mean.get(part, 0.0) for name, mean in means.items()}})
        return frame(rows, library)

    def timeline(self, path: str | Path) -> None:
        """Write a timeline of the mean iteration with the changes for ui.perfetto.dev: .json or .json.gz."""
        from emulator.jobs.replay.perfetto import write_timeline

        write_timeline(play(self.joined.graph, self.joined.costs), path)


def replay(traces: list[RankTrace], iteration: int | None = None, change: Changes | None = None) -> Replay:
    """Replay `iteration`, or all of them, one after the other. Raises TraceError, ConfigError."""
    change = change or Changes()
    job = Job(traces)
    mean = join(job, iteration=iteration)
    iterations = [mean] if iteration is not None else join_each(job)
    chosen = change.of(mean, iterations)
    prepare = change.prepare(iterations)

    def applied(one: Joined) -> Joined:
        one = prepare(one)
        for _, apply in chosen:
            one = apply(one)
        return one

    is_named = bool(change.accelerator) and not re.fullmatch(r"x[0-9.]+", change.accelerator)
    return Replay(
        iterations,
        mean,
        job.clocks.error_s,
        [applied(one) for one in iterations] if chosen else [],
        applied(mean) if chosen else mean,
        [title for title, _ in chosen],
        [CARRIED] if is_named and chosen else [],
    )
