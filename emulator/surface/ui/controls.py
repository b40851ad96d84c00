"""What can be chosen in the browser. A control is called like the option of `switchml emulate`; only names that come
with switchml can be chosen: whoever may use the page reads no file and runs no code here.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from emulator import datafile
from emulator.cluster import cluster, codecs
from emulator.cluster.algorithms import ALGORITHMS
from emulator.jobs.sweep import Axis, parse_axis, points
from emulator.jobs.workload import job, models
from emulator.ranges import Range, range_of
from switchml.errors import ConfigError

MOST_POINTS = 64
"""Of a sweep in the browser; the command line has no such limit."""


@dataclass(frozen=True)
class Control:
    """A choice of names, or a number where there are none."""

    name: str
    label: str
    choices: tuple[tuple[str, str], ...] = ()
    """(value, text)."""
    default: str = ""
    group: str = "Job"

    @property
    def range(self) -> Range | None:
        """Of a number: its field's in a job."""
        return None if self.choices else range_of(job.Job, self.name)

    def value(self, text: str) -> str | int:
        """Of what the browser sent. Raises ConfigError."""
        if self.choices:
            datafile.check_name(self.name.replace("_", "-"), text, [value for value, _ in self.choices])
            return text
        try:
            return int(text)
        except ValueError:
            raise ConfigError(f"{self.name.replace('_', '-')} is {text[:40]!r}; expected a whole number") from None


def _named(names: Any) -> tuple[tuple[str, str], ...]:
    return tuple((name, name) for name in names)


def controls() -> list[Control]:
    """All of them, in their order on the page."""
    titles = tuple((name, models.load(name).title) for name in models.models())
    return [
        Control("model", "Model", titles, "gpt3-13b"),
        Control("cluster", "Cluster", _named(cluster.clusters()), "a100-dgx"),
        Control("gpus", "Accelerators", default="64"),
        Control("batch", "Global batch", default="64"),
        Control("micro_batch", "Micro-batch", default="1"),
        Control("sequence", "Sequence"),
        Control("tp", "Tensor parallel", default="8", group="Parallelism"),
        Control("pp", "Pipeline stages", default="4", group="Parallelism"),
        Control("cp", "Context parallel", group="Parallelism"),
        Control("ep", "Expert parallel", group="Parallelism"),
        Control("zero", "ZeRO stage", _named("0123"), group="Parallelism"),
        Control("schedule", "Schedule", _named(job.SCHEDULES), group="Parallelism"),
        Control("virtual_stages", "Virtual stages", group="Parallelism"),
        Control("recompute", "Recomputation", _named(job.RECOMPUTE), "selective", group="Memory and communication"),
        Control("precision", "Precision", _named(job.PRECISIONS), group="Memory and communication"),
        Control("allreduce", "All-reduce", _named(ALGORITHMS), group="Memory and communication"),
        Control("codec", "Compression", _named(codecs.codecs()), group="Memory and communication"),
    ]


def options(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Options as `switchml.emulate` takes them, from what the browser sent: texts by name, empty for a default. Raises
    ConfigError."""
    known = {control.name: control for control in controls()}
    found: dict[str, Any] = {}
    for name, text in chosen.items():
        datafile.check_name("option", name, known)
        if text := str(text).strip():
            found[name] = known[name].value(text)
    if "zero" in found:
        found["zero"] = int(found["zero"])
    return found


def axes(texts: Mapping[str, Any]) -> list[Axis]:
    """Of a sweep: name → values as `--sweep` takes them. Raises ConfigError."""
    known = {control.name: control for control in controls()}
    found = []
    for name, text in texts.items():
        datafile.check_name("option", name, known)
        axis = parse_axis(f"{name}={text}")
        for value in axis.values:
            known[name].value(str(value))
        found.append(axis)
    if not found:
        raise ConfigError("nothing to sweep: give values, such as 8:64:2x or 8,16,32")
    if len(points(found)) > MOST_POINTS:
        raise ConfigError(f"a sweep of more than {MOST_POINTS} jobs: let the command below run it")
    return found


def command(chosen: Mapping[str, Any], swept: Mapping[str, Any] | None = None) -> str:
    """The command line that gives the same."""
    words = ["switchml", "emulate"]
    for name, value in chosen.items():
        if name not in (swept or {}):
            words += [f"--{name.replace('_', '-')}", str(value)]
    for name, text in (swept or {}).items():
        words += ["--sweep", f"{name.replace('_', '-')}={text}"]
    return shlex.join(words)
