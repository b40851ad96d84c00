"""Controls of the page. A control is an option of `switchml emulate`, parsed as on the command line; only names that
come with switchml can be chosen, so that users of the page can neither read files nor run code here.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click

from emulator import datafile
from emulator.cluster import cluster, codecs
from emulator.cluster.algorithms import ALGORITHMS
from emulator.jobs.sweep import Axis, parse_axis, points
from emulator.jobs.workload import job, models
from emulator.surface.job_options import BY_NAME, DEFAULTS, type_of, with_options
from switchml.errors import ConfigError

MAX_POINTS = 64
"""Maximum jobs of a sweep in the browser; the command line has no such limit."""
MAX_CHARACTERS = 40
"""Maximum length of a value."""
MAX_SHOWN = 18
"""Maximum characters of a placeholder."""


@dataclass(frozen=True)
class Control:
    """A control of the page: a choice of names, or a number if there are no choices."""

    name: str
    label: str
    choices: tuple[tuple[str, str], ...] = ()
    """(value, text)."""
    default: str = ""
    group: str = "Job"

    @property
    def option(self) -> str:
        """The option's name on the command line, without dashes."""
        return _option(self.name)

    @property
    def unset(self) -> str:
        """The default's description, shown where nothing is chosen."""
        return DEFAULTS[self.option]

    @property
    def placeholder(self) -> str:
        """The default's description in a word or two."""
        text = re.split(r"[:;,] | \(", self.unset)[0]
        return text if len(text) <= MAX_SHOWN else "default"

    def value(self, text: str) -> Any:
        """Parse the text that the browser sent. Raises ConfigError."""
        if self.choices:
            datafile.check_name(self.option, text, [value for value, _ in self.choices])
        if len(text) > MAX_CHARACTERS:
            raise ConfigError(f"{self.option} has {len(text):,} characters; expected at most {MAX_CHARACTERS}")
        try:
            return click.types.convert_type(type_of(*BY_NAME[self.name])).convert(text, None, None)
        except click.UsageError as error:
            raise ConfigError(f"{self.option}: {error.message}") from None


def _option(name: str) -> str:
    return name.replace("_", "-")


def _named(names: Any) -> tuple[tuple[str, str], ...]:
    return tuple((name, name) for name in names)


def controls() -> list[Control]:
    """All controls, in their order on the page."""
    titles = tuple((name, models.load(name).title) for name in models.models())
    return [
        Control("model", "Model", titles, "gpt3-13b"),
        Control("cluster", "Cluster", _named(cluster.clusters()), "a100-dgx"),
        Control("gpus", "Accelerators", default="64"),
        Control("batch", "Global batch", default="64"),
        Control("micro_batch", "Micro-batch"),
        Control("sequence", "Sequence"),
        Control("split", "Split", (("auto", "search all"),), group="Parallelism"),
        Control("tp", "Tensor parallel", group="Parallelism"),
        Control("pp", "Pipeline stages", group="Parallelism"),
        Control("cp", "Context parallel", group="Parallelism"),
        Control("ep", "Expert parallel", group="Parallelism"),
        Control("zero", "ZeRO stage", _named("0123"), group="Parallelism"),
        Control("schedule", "Schedule", _named(job.SCHEDULES), group="Parallelism"),
        Control("virtual_stages", "Virtual stages", group="Parallelism"),
        Control("recompute", "Recomputation", _named(job.RECOMPUTE), group="Memory and communication"),
        Control("precision", "Precision", _named(job.PRECISIONS), group="Memory and communication"),
        Control("allreduce", "All-reduce", _named(ALGORITHMS), group="Memory and communication"),
        Control("codec", "Compression", _named(codecs.codecs()), group="Memory and communication"),
        Control("stragglers", "Share of stragglers", group="Stragglers and failures"),
        Control("slowness", "Their slowness", group="Stragglers and failures"),
        Control("steps", "Iterations to train", group="Stragglers and failures"),
        Control("mtbf_hours", "Hours to a failure", group="Stragglers and failures"),
    ]


def options(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Parse the texts that the browser sent, by name, empty for a default. Returns values by name.
    Raises ConfigError."""
    known = {control.name: control for control in controls()}
    found: dict[str, Any] = {}
    for name, text in chosen.items():
        datafile.check_name("option", name, known)
        if text := str(text).strip():
            found[name] = known[name].value(text)
    return found


def tables(options: Mapping[str, Any]) -> dict[str, Any]:
    """Tables of a job file with these values. Raises ConfigError."""
    return with_options({}, dict(options))


def axes(texts: Mapping[str, Any]) -> list[Axis]:
    """Axes of a sweep, from name → values in the syntax of `--sweep`. Raises ConfigError."""
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
    if len(points(found)) > MAX_POINTS:
        raise ConfigError(f"a sweep of more than {MAX_POINTS} jobs: use the command below")
    return found


def command(chosen: Mapping[str, Any], swept: Mapping[str, Any] | None = None) -> str:
    """The equivalent command line."""
    words = ["switchml", "emulate"]
    for name, value in chosen.items():
        if name not in (swept or {}):
            words += [f"--{_option(name)}", f"{value:.12g}" if isinstance(value, float) else str(value)]
    for name, text in (swept or {}).items():
        words += ["--sweep", f"{_option(name)}={text}"]
    return shlex.join(words)
