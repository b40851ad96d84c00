"""A claim of a paper, as its file in `claims/` states it: where the claim stands, the commands that show it here, which
of their numbers are figures of the paper, and how far ours may be off.

    system = "SwitchML"
    title = "The rate does not depend on the number of workers"
    source = "Sapio et al., NSDI 2021, figure 4"
    how = "emulator"                    # or "simulation" (packets in virtual time), or "here" (measured)
    minutes = 0.1                       # about, on two cores
    says = "What the paper claims, in a sentence."
    differs = "What is different here, and why."

    [files]                             # what its commands read, by name
    "job.toml" = "..."

    [lines.ring]                        # a command's --json, and where in it a curve is, as JMESPath
    name = "ring"
    run = "emulate --model vgg19 --sweep gpus=2:16:2x --processes 1"
    x = "rows[].gpus"
    y = "rows[].samples_per_s"

    [lines.nccl]                        # or the paper's own points, to draw and to compare with
    name = "NCCL (paper)"
    paper = {4 = 1380, 8 = 1250}

    [[figures]]
    name = "speed-up with 8 GPUs"
    value = "switchml[8] / ring[8]"     # of lines' points by their x; a line without x is a number
    paper = 1.7
    within = 0.1                        # a share of `paper`; or `least = 1.5`, or `most = 2`; without `paper` if it
                                        # says only which is larger
    how = "model"                       # if it follows from a formula or an assumption of ours: shown, not counted

    [plot]
    title = "VGG-19"
    x = "GPUs"
    y = "samples/s"
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from emulator import datafile
from switchml.errors import ConfigError

FOLDER = Path(__file__).parent / "claims"
SCRIPTS = "scripts/"
MODEL = "model"
HOW = {"here": "measured", "simulation": "simulated", "emulator": "emulated", MODEL: "modelled"}
"""Origin of a figure's value, and its word in tables. A modelled value follows from a formula or an assumption made
here and could not contradict the paper: it is neither met nor missed."""
TRUST = ("paper", "abstract", "derived", "unconfirmed")
"""How reliably the paper's figure is known: read in the paper or its public artifact, in its abstract, derived from
numbers there, or reported by others."""


@dataclass(frozen=True)
class Line:
    """Points from the output of one command. `run`: arguments of `switchml`, or a script of `scripts/`, optionally
    preceded by `torchrun` and its options. `x`, `y`: JMESPath expressions of equally long lists in its JSON; without
    `x`, `y` is one number. `files`: by name, the text of each file that the command reads besides the claim's. `scale`:
    a factor on y. `is_drawn`: whether the line is in the plot. Alternatively `paper`: y by x, as published."""

    run: str = ""
    y: str = ""
    x: str = ""
    name: str = ""
    scale: float = 1.0
    is_drawn: bool = True
    files: Mapping[str, str] = field(default_factory=dict)
    paper: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if bool(self.paper) == bool(self.run and self.y):
            raise ConfigError("a line has a command, `run`, and what to read from it, `y`; or points, `paper`")

    @property
    def words(self) -> tuple[str, ...]:
        """Words of the command, without `switchml`."""
        return tuple(shlex.split(self.run))

    @property
    def is_script(self) -> bool:
        """Whether it runs a script rather than a subcommand."""
        return any(word.startswith(SCRIPTS) for word in self.words)

    @property
    def command(self) -> str:
        """The command as typed in a shell."""
        if not self.is_script:
            return f"switchml {self.run}"
        return self.run if self.words[0] == "torchrun" else f"python {self.run}"


@dataclass(frozen=True)
class Figure:
    """A number of the paper and an expression over the claim's lines that gives this project's value. `within`:
    tolerance as a share of `paper`; or the value must be at least `least`, at most `most`. `paper` is None where the
    paper states only which of two values is larger, or the number could not be read. `how`: if different from the
    claim's; modelled figures have no tolerance."""

    name: str
    value: str
    paper: float | None = None
    within: float | None = None
    least: float | None = None
    most: float | None = None
    unit: str = ""
    trust: str = "paper"
    how: str = ""

    def __post_init__(self) -> None:
        datafile.check_name("trust", self.trust, TRUST)
        bounds = [bound for bound in (self.least, self.most) if bound is not None]
        if self.how:
            datafile.check_name("how", self.how, HOW)
        if self.how == MODEL:
            if self.within is not None or bounds:
                raise ConfigError(f"figure {self.name!r} is modelled, so neither met nor missed: expected no tolerance")
        elif (self.within is None) == (not bounds):
            raise ConfigError(f"figure {self.name!r}: expected `within`, or `least` and `most`, or one of these two")
        if self.within is not None and self.paper is None:
            raise ConfigError(f"figure {self.name!r}: `within` is a share of the paper's figure: expected `paper`")

    def is_met(self, ours: float) -> bool | None:
        """Whether `ours` is within the tolerance; None for modelled figures."""
        if self.how == MODEL:
            return None
        if self.within is not None and self.paper is not None:
            return abs(ours - self.paper) <= self.within * abs(self.paper)
        return (self.least is None or ours >= self.least) and (self.most is None or ours <= self.most)


@dataclass(frozen=True)
class Plot:
    """Plot in the paper's form: curves, or bars where x are names. `x_log`: base of a logarithmic axis. `bars`: lines
    that are single numbers, drawn as bars labeled with the lines' names."""

    title: str
    y: str
    x: str = ""
    x_log: int = 0
    y_log: bool = False
    bars: tuple[str, ...] = ()


@dataclass(frozen=True)
class Claim:
    """A paper's claim. `needs_root`: runs in network namespaces. `minutes`: approximate duration on two cores. `files`:
    by name, the text of each file that its commands read."""

    system: str
    title: str
    source: str
    how: str
    minutes: float
    says: str
    lines: Mapping[str, Line]
    figures: tuple[Figure, ...]
    differs: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    plot: Plot | None = None
    needs_root: bool = False
    id: str = ""

    def __post_init__(self) -> None:
        datafile.check_name("how", self.how, tuple(how for how in HOW if how != MODEL))
        if not self.figures or not self.lines:
            raise ConfigError("expected at least one line and one figure")
        for line in self.plot.bars if self.plot else ():
            datafile.check_name("line in bars", line, self.lines)
            if self.lines[line].x or self.lines[line].paper:
                raise ConfigError(f"plot, bars: line {line} has points, not one number")


def names() -> list[str]:
    """Names of the claims shipped with the package, ordered by system."""
    return sorted(datafile.names(FOLDER), key=lambda name: (order(name.partition("-")[0]), name))


def order(system: str) -> int:
    """Sort key of a system: in-network aggregation first, then compression, emulation, memory and loading."""
    known = (
        "switchml", "omnireduce", "atp", "trio", "khalilov", "fsdp", "grace", "dc2", "szx", "comet", "dlrm",
        "neuronabox", "dpro", "phantora", "axonn", "samo", "solar",
    )  # fmt: skip
    return known.index(system) if system in known else len(known)


def load(name: str) -> Claim:
    """Load a claim by name, or from a user's file. Raises ConfigError for an unknown name and for an invalid file."""
    path = datafile.find("claim", name, FOLDER)
    table = datafile.load(path)
    return datafile.build(Claim, {**table, "id": path.stem}, path.name)


def load_all(chosen: Sequence[str]) -> list[Claim]:
    """Load the chosen claims; all if none are chosen."""
    return [load(name) for name in chosen or names()]
