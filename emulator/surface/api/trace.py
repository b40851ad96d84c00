"""`switchml.trace`: reading, replay and diagnosis of traces of real jobs.

traces = switchml.trace.read("traces/")
traces.replay(bandwidth_factor=2)
traces.diagnose().report("diagnosis.html")
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from emulator.surface.api import replaying
from emulator.surface.api.replaying import Changes, Replay
from emulator.surface.api.summarized import Library, Summarized, frame
from emulator.traces.diagnosis import checks
from emulator.traces.events import RankTrace, What
from emulator.traces.join import join
from emulator.traces.readers.read import read as read_ranks
from switchml.units import time_text

if TYPE_CHECKING:
    import pandas

__all__ = ["Changes", "Diagnosed", "Replay", "Traces", "read"]


class Traces(Summarized):
    """The traces of a job, one per rank."""

    def __init__(self, ranks: list[RankTrace], path: Path) -> None:
        self.ranks = ranks
        """In the order of ranks; each has arrays of events."""
        self.path = path

    def __len__(self) -> int:
        return len(self.ranks)

    def __iter__(self) -> Iterator[RankTrace]:
        return iter(self.ranks)

    @property
    def title(self) -> str:
        """Number of traces and their path."""
        return f"{len(self.ranks)} traces in {self.path}"

    def facts(self) -> Iterable[tuple[str, str]]:
        """Properties of the job, and totals over all traces."""
        first = self.ranks[0]
        steps_s = np.diff(first.steps, axis=1)[:, 0]
        yield "job", f"{first.world_size} ranks, {first.backend or 'unknown backend'}, format {first.format}"
        yield "events", f"{sum(len(trace.events) for trace in self.ranks):,}"
        yield "iterations", f"{len(steps_s)} of {time_text(float(steps_s.mean()) if len(steps_s) else 0.0)}"

    def replay(self, *, iteration: int | None = None, **changes: Any) -> Replay:
        """Replay the job, `iteration` or all of them, with `changes` (the fields of `Changes`): predicts the time with
        other links, ranks, buckets, codecs. Raises ConfigError or TraceError."""
        return replaying.replay(self.ranks, iteration, _changes(changes))

    def diagnose(
        self, *, iteration: int | None = None, least: float = 0.01, codecs: Iterable[str] = ("fp16",)
    ) -> Diagnosed:
        """Diagnose why the job is slow. Findings whose gain is below the share `least` of an iteration are left out;
        `codecs` may be recommended, and their speed is measured on this machine if needed."""
        from emulator.traces.whatif.codec_costs import measure

        joined = join(self.ranks, iteration=iteration)
        names = tuple(codecs)
        return Diagnosed(checks.diagnose(joined, least, lambda: measure(names, len(joined.graph.ranks))), self.path)

    def to_frame(self, library: Library | None = None) -> pandas.DataFrame:
        """A row for each event: rank, name, kind, lane, start and duration in seconds, bytes."""
        rows = []
        for trace in self.ranks:
            events = trace.events
            columns = (events.name, events.what, events.lane, events.start_s, events.duration_s, events.bytes)
            for name, what, lane, start_s, duration_s, size in zip(*(c.tolist() for c in columns), strict=True):
                rows.append(
                    {
                        "rank": trace.rank,
                        "name": trace.names[name],
                        "kind": What(what).name.lower(),
                        "lane": trace.lanes[lane].name,
                        "start_s": start_s,
                        "duration_s": duration_s,
                        "bytes": size,
                    }
                )
        return frame(rows, library)


class Diagnosed(Summarized):
    """Diagnosis of a traced job: `diagnosis` has the findings and their evidence."""

    def __init__(self, diagnosis: checks.Diagnosis, path: Path) -> None:
        self.diagnosis = diagnosis
        self.path = path

    @property
    def findings(self) -> list[checks.Finding]:
        """The findings, largest gain first; empty if there is nothing to improve."""
        return self.diagnosis.findings

    @property
    def title(self) -> str:
        """Iteration time and number of findings."""
        count = len(self.findings)
        duration = time_text(self.diagnosis.context.joined.traced_s)
        return f"{self.path}: {duration} an iteration, {count} finding{'s' if count != 1 else ''}"

    def facts(self) -> Iterable[tuple[str, str]]:
        """Each finding and its gain."""
        for number, one in enumerate(self.findings, 1):
            gain = f"{'up to ' if one.is_bound else ''}−{time_text(one.gain_s)} ({one.share:.1%})"
            yield str(number), f"{one.title}: {gain}"

    def to_json(self) -> dict[str, Any]:
        """The same JSON object as `switchml trace diagnose --json`."""
        return self.diagnosis.to_json()

    def to_frame(self, library: Library | None = None) -> pandas.DataFrame:
        """A row for each finding."""
        return frame([one.to_json() for one in self.findings], library)

    def report(self, path: str | Path) -> None:
        """Write the same HTML page as `switchml trace diagnose --report`."""
        from emulator.surface.report.diagnosis import write_page

        write_page(self.diagnosis, path, title=f"Diagnosis of {self.path.resolve().name}")


def read(path: str | Path, *, rank: int | None = None, salvage: bool = False) -> Traces:
    """Read the traces in `path`, a file or a directory with one per rank, in any format listed in
    docs/trace-formats.md.

    `rank`: of the trace, for a single file without it. `salvage`: read truncated files as far as possible. Raises
    TraceError if there are none.
    """
    return Traces(read_ranks(path, rank=rank, salvage=salvage), Path(path))


def _changes(given: dict[str, Any]) -> Changes:
    from emulator import datafile

    for name in given:
        datafile.check_name("change", name, list(Changes.__dataclass_fields__))
    return Changes(**given)
