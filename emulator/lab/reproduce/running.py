"""Run a claim's commands with --json and evaluate its figures from their output."""

import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulator.lab.reproduce.claims import SCRIPTS, Claim, Figure, Line
from host_agent import launching
from switchml import share
from switchml.errors import ConfigError, SwitchMLError
from switchml.runtime.children import dying_with_us, end
from switchml.runtime.folders import TemporaryFolder
from switchml.text import last_line

Points = Mapping[Any, float]
"""y by x, in the order of x in the command's output."""
Value = Points | float

LIMIT_S = 900
"""Timeout of one command, so that a hanging one does not block the others."""


class ReproductionFailed(SwitchMLError):
    """A claim's command failed, or its output lacks the values that the claim reads."""


@dataclass(frozen=True)
class Outcome:
    """Results of a claim. `lines`: values of each line; `ours`: this project's value of each figure."""

    claim: Claim
    lines: Mapping[str, Value]
    ours: tuple[float, ...]
    seconds: float

    @property
    def rows(self) -> list[tuple[Figure, float, bool | None]]:
        """(figure, this project's value, whether it is within tolerance; None: modelled)."""
        return [(one, ours, one.is_met(ours)) for one, ours in zip(self.claim.figures, self.ours, strict=True)]

    def to_json(self) -> dict[str, Any]:
        """The outcome as plain data."""
        claim = self.claim
        figures = [
            {
                "name": one.name, "paper": one.paper, "ours": ours, "unit": one.unit, "met": is_met,
                "within": one.within, "least": one.least, "most": one.most, "trust": one.trust,
                "how": one.how or claim.how,
            }
            for one, ours, is_met in self.rows
        ]  # fmt: skip
        lines = {
            name: list(map(list, points.items())) if isinstance(points, Mapping) else points
            for name, points in self.lines.items()
        }
        about = {name: getattr(claim, name) for name in ("id", "system", "title", "source", "how", "says", "differs")}
        commands = {name: line.command for name, line in claim.lines.items() if line.run}
        return about | {"figures": figures, "lines": lines, "commands": commands, "seconds": self.seconds}


def reproduce(claim: Claim, say: Callable[[str], None] = lambda line: None) -> Outcome:
    """Run a claim's commands, each once, and evaluate its figures. `say` is called with each command. Raises
    ReproductionFailed."""
    started = time.monotonic()
    printed: dict[tuple[str, str], Any] = {}
    found: dict[str, Value] = {}
    with TemporaryFolder("reproduce") as folder:
        for name, line in claim.lines.items():
            if line.paper:
                found[name] = _published(line.paper)
                continue
            key = (line.run, repr(sorted(line.files.items())))
            if key not in printed:
                say(line.command)
                printed[key] = _printed(line, Path(folder), claim)
            found[name] = _points(line, printed[key], f"{claim.id}: line {name}")
    ours = tuple(_figure(figure, found, claim.id) for figure in claim.figures)
    return Outcome(claim, found, ours, time.monotonic() - started)


def _published(points: Mapping[str, float]) -> Points:
    """Published points; x as numbers if all are numeric."""
    if all(x.replace(".", "", 1).isdecimal() for x in points):
        return {float(x): y for x, y in points.items()}
    return points


def _printed(line: Line, folder: Path, claim: Claim) -> Any:
    for name, text in {**claim.files, **line.files}.items():
        (folder / name).write_text(text, encoding="utf-8")
    done = subprocess.Popen(
        dying_with_us(_command(line), signal.SIGTERM),
        cwd=folder,
        env={"PET_LOG_DIR": str(folder / "logs"), **os.environ},  # torchrun leaves its logs behind if it is signaled
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        printed, said = done.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        raise ReproductionFailed(f"{claim.id}: `{line.command}` was not done after {LIMIT_S / 60:g} min") from None
    finally:
        end(done, launching.END_S)
    if done.returncode:
        last = last_line(said, f"exit code {done.returncode}")
        raise ReproductionFailed(f"{claim.id}: `{line.command}` failed: {last}")
    try:
        return json.loads(printed)
    except ValueError:
        raise ReproductionFailed(f"{claim.id}: `{line.command} --json` printed no JSON object") from None


def _command(line: Line) -> list[str]:
    """Command line of the process that runs it."""
    if not line.is_script:
        return [sys.executable, "-m", "switchml", *line.words, "--json", "--quiet"]
    words = [str(share.HERE / word) if word.startswith(SCRIPTS) else word for word in line.words]
    if words[0] == "torchrun":
        words[:1] = ["-m", "torch.distributed.run", "--standalone"]
    return [sys.executable, *words, "--json"]


def _points(line: Line, printed: Any, where: str) -> Value:
    import jmespath

    try:
        y, x = jmespath.search(line.y, printed), jmespath.search(line.x, printed) if line.x else None
    except jmespath.exceptions.JMESPathError as error:
        raise ConfigError(f"{where}: {error}") from None
    if not line.x:
        if not _is_number(y):
            raise ReproductionFailed(f"{where}: {line.y!r} is {y!r} in what `{line.command} --json` prints")
        return float(y) * line.scale
    if not (isinstance(x, list) and isinstance(y, list) and x and len(x) == len(y) and all(map(_is_number, y))):
        raise ReproductionFailed(f"{where}: {line.x!r} and {line.y!r} are {x!r} and {y!r}: expected as many of each")
    return {at: float(value) * line.scale for at, value in zip(x, y, strict=True)}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _figure(figure: Figure, found: Mapping[str, Value], claim: str) -> float:
    import simpleeval

    try:
        value = simpleeval.EvalWithCompoundTypes(names=dict(found), functions=FUNCTIONS).eval(figure.value)
    except (simpleeval.InvalidExpression, KeyError, TypeError, ValueError, ZeroDivisionError, SyntaxError) as error:
        raise ConfigError(f"{claim}: figure {figure.name!r}: {figure.value!r}: {error!r}") from None
    if not _is_number(value):
        raise ConfigError(f"{claim}: figure {figure.name!r}: {figure.value!r} is {value!r}, not a number")
    return float(value)


def _of(line: Points, name: str) -> float:
    """The point whose x begins with `name`, ignoring case."""
    (value,) = (y for x, y in line.items() if str(x).lower().startswith(name.lower()))
    return value


def _ranking(one: Points, other: Points) -> float:
    """Rank correlation over common x: 1 for the same order, 0 unrelated, -1 opposite; equal values share their mean
    rank."""
    both = [x for x in one if x in other]
    if len(both) < 2:
        raise ValueError(f"{len(both)} common points: expected two or more to rank")
    ranks = [_ranks([line[x] for x in both]) for line in (one, other)]
    return statistics.correlation(*ranks)


def _ranks(values: Sequence[float]) -> list[float]:
    return [sum(other < value for other in values) + (values.count(value) + 1) / 2 for value in values]


FULL = 0.99
"""Share of a line's largest y that counts as saturated."""
FUNCTIONS: dict[str, Callable[..., float]] = {
    "abs": abs,
    "min": min,
    "max": max,
    "of": _of,
    "largest": lambda over, under: max(over[x] / under[x] for x in over),
    "furthest": lambda line: max(map(abs, line.values())),
    "best": lambda line: max(line.values()),
    "worst": lambda line: min(line.values()),
    "near": lambda line, name, by, among: sum(line[x] >= line[name] - by for x in among if x != name),
    "slower": lambda line, among, than: sum(line[x] < than for x in among),
    "knee": lambda line: min(x for x, y in line.items() if y >= FULL * max(line.values())),
    "ranking": _ranking,
}
"""Functions available in a figure's expression, of numbers or lines. `largest`: largest ratio of two lines at any x;
`furthest`: the largest absolute value; `best`, `worst`: the largest and the smallest value; `near`: number of points,
among those of another line, at most `by` below the named one; `slower`: number of those points below a value; `knee`:
the smallest x that reaches 99 % of the largest y; `ranking`: Spearman's rank correlation of two lines over their common
x; `of`: the point whose x begins with a name."""
