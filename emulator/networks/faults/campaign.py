"""Runs of many seeds on all cores, and mutation tests: planted bugs that seeds should find.

A planted bug is a copy of the three packages with one of bugs.py's bugs, run in a separate process.
"""

import contextlib
import functools
import hashlib
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from emulator.networks.faults.bugs import BUGS
from emulator.networks.faults.world import Outcome, play
from switchml.errors import ConfigError
from switchml.runtime.cache import cache_root
from switchml.runtime.pool import spread
from switchml.runtime.raising import acknowledge

PACKAGES = ("switchml", "host_agent", "emulator")


def outcomes(seeds: Iterable[int], processes: int, kind: str = "") -> Generator[Outcome, None, None]:
    """Run seeds of a kind (a key of world.DRAWS). Yields the outcomes in the order of the seeds."""
    with quiet_agents():
        if processes == 1:
            for seed in seeds:
                yield play(seed, kind=kind)
            return
        play(0, kind=kind)  # fills the compilation cache once, before the processes start
        played = functools.partial(_play_quietly, kind=kind)
        early: dict[int, Outcome] = {}
        due = 0
        for number, outcome in spread(played, seeds, processes, "emulator.networks.faults.campaign"):
            early[number] = outcome
            while due in early:
                yield early.pop(due)
                due += 1


@contextlib.contextmanager
def quiet_agents() -> Iterator[None]:
    """Silence the agents' warnings of stalls, which are expected here."""
    level = logging.getLogger("host_agent").level
    _quiet()
    try:
        yield
    finally:
        logging.getLogger("host_agent").setLevel(level)


def _play_quietly(seed: int, kind: str) -> Outcome:
    _quiet()
    return play(seed, kind=kind)


def _quiet() -> None:
    logging.getLogger("host_agent").setLevel(logging.ERROR)


@dataclass
class Tally:
    """Totals of a campaign."""

    seeds: int = 0
    events: int = 0
    packets: int = 0
    sums: int = 0
    errors: int = 0
    virtual_s: float = 0.0
    trace: str = ""
    """Hash over the traces of all seeds."""
    failures: list[Outcome] = field(default_factory=list)
    interrupted: bool = False
    """Whether it was ended by Ctrl-C."""

    def add(self, outcome: Outcome) -> None:
        """Add the outcome of a run."""
        self.seeds += 1
        for name in ("events", "packets", "sums", "errors"):
            setattr(self, name, getattr(self, name) + getattr(outcome, name))
        self.virtual_s += outcome.seconds
        if outcome.problem:
            self.failures.append(outcome)


def campaign(
    seeds: Iterable[int],
    processes: int,
    say: Callable[[Outcome], None] = lambda outcome: None,
    most_failures: int = 10,
    kind: str = "",
) -> Tally:
    """Run seeds of a kind until all are done, `most_failures` have failed, or Ctrl-C. `say` is called with each
    outcome."""
    tally, trace = Tally(), hashlib.blake2b(digest_size=8)
    with contextlib.closing(outcomes(seeds, processes, kind)) as played:
        try:
            for outcome in played:
                say(outcome)
                trace.update(outcome.trace.encode())
                tally.add(outcome)
                if len(tally.failures) >= most_failures:
                    break
        except KeyboardInterrupt:
            acknowledge()
            tally.interrupted = True
    tally.trace = trace.hexdigest()
    return tally


def plant(name: str) -> Path:
    """Create a copy of the packages with bug `name`. Raises ConfigError if the bug or its place does not exist."""
    if name not in BUGS:
        raise ConfigError(f"no bug {name!r}: expected one of {', '.join(BUGS)}")
    bug, source = BUGS[name], Path(__file__).resolve().parents[3]
    wrong = bug.planted((source / bug.file).read_text())
    target = cache_root() / "planted" / name
    for package in PACKAGES:
        shutil.rmtree(target / package, ignore_errors=True)
        shutil.copytree(source / package, target / package, ignore=shutil.ignore_patterns("__pycache__"))
    (target / bug.file).write_text(wrong)
    return target


def run_planted(name: str, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Run `switchml simulate` with `arguments` from the copy with bug `name`."""
    target = plant(name)
    command = [sys.executable, "-m", "switchml", "simulate", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(target)}
    return subprocess.run(command, env=environment, cwd=target, capture_output=True, text=True)
