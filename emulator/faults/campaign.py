"""Many seeds on all cores, and planted bugs to check that seeds find them.

A planted bug is a copy of the three packages with one line changed, run in a separate process. Once a line of the table
below is no longer in its file, planting that bug is an error, so that the table cannot rot.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from emulator.faults.world import Outcome, play
from switchml.errors import ConfigError
from switchml.runtime.jit import cache_root
from switchml.runtime.pool import spread

PACKAGES = ("switchml", "host_agent", "emulator")


@dataclass(frozen=True)
class Bug:
    """`file` of the packages in which `line` (as it stands there, once) becomes `wrong`."""

    file: str
    line: str
    wrong: str
    what: str


BUGS: dict[str, Bug] = {
    "version-bit": Bug(
        "switchml/protocol/pool_v2.py",
        "row = seq & (2 * job.slots - 1)  # version times S, plus the slot",
        "row = seq & (job.slots - 1)",
        "the aggregator ignores the version of a slot",
    ),
    "shadow-answer": Bug(
        "switchml/protocol/pool_v2.py",
        "reply[0] |= wire_format.R_FLAG\n        return UNICAST, row",
        "return DROP, row",
        "the aggregator does not answer retransmissions of a complete round",
    ),
    "counted-twice": Bug(
        "switchml/protocol/pool_v2.py",
        "seen[row, word] |= bit",
        "pass",
        "the aggregator adds a contribution that it has added already",
    ),
    "any-round": Bug(
        "switchml/protocol/results.py",
        "if distance != 0 or not slot.busy:",
        "if not slot.busy:",
        "a worker takes the result of any round of a slot for the one it waits for",
    ),
    "never-again": Bug(
        "switchml/protocol/timers.py",
        "if lost or ((slot.redo or probed < probes) and due <= now):",
        "if lost:",
        "a worker resends what later packets have overtaken, and has no timer",
    ),
    "early-end": Bug(
        "switchml/control/jobs.py",
        "if not job.present:",
        "if True:",
        "job control ends a job with the first rank that leaves",
    ),
    "deaf": Bug(
        "host_agent/core.py",
        "self.fail(lost(self.job, event.ranks, event.reason))",
        "pass",
        "an agent does not act on the loss of a peer",
    ),
    "no-redo": Bug(
        "switchml/protocol/handover.py",
        "redo = ahead == 1",
        "redo = ahead == 2",
        "who is ahead does not repeat its last round at another aggregator (--failover)",
    ),
    "first-report": Bug(
        "switchml/protocol/handover.py",
        "least: bytes = (rounds[0] - behind)",
        "least: bytes = rounds[0]",
        "a job goes on from the rounds of its first rank, not the least (--failover)",
    ),
    "old-tag": Bug(
        "switchml/protocol/handover.py",
        'here[2:8] = np.frombuffer(((start + number * count) & 0xFFFFFFFF).to_bytes(4, "big") + tag, np.uint8)',
        "pass",
        "packets go to another aggregator with the tag and number of the former epoch (--failover)",
    ),
    "leaves-politely": Bug(
        "emulator/faults/failover.py",
        "self._session.vanish()",
        "self._session.leave()",
        "a rank that moves says that it leaves, so the others do not follow (--failover)",
    ),
}


def outcomes(seeds: Iterable[int], processes: int, failover: bool = False) -> Iterator[Outcome]:
    """Play seeds, in their order; with `failover` those that only aggregators die in."""
    with quiet_agents():
        if processes == 1:
            for seed in seeds:
                yield play(seed, failover=failover)
            return
        play(0)  # fills the compilation cache once, before the processes start
        played = functools.partial(_play_quietly, failover=failover)
        early: dict[int, Outcome] = {}
        due = 0
        for number, outcome in spread(played, seeds, processes, "emulator.faults.campaign"):
            early[number] = outcome
            while due in early:
                yield early.pop(due)
                due += 1


@contextmanager
def quiet_agents() -> Iterator[None]:
    """Silence the agents' warnings of stalls, which are all intended here."""
    level = logging.getLogger("host_agent").level
    _quiet()
    try:
        yield
    finally:
        logging.getLogger("host_agent").setLevel(level)


def _play_quietly(seed: int, failover: bool) -> Outcome:
    _quiet()
    return play(seed, failover=failover)


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


def campaign(
    seeds: Iterable[int],
    processes: int,
    say: Callable[[Outcome], None] = lambda outcome: None,
    most_failures: int = 10,
    failover: bool = False,
) -> Tally:
    """Play seeds until all are done or `most_failures` have failed. `say` gets each outcome."""
    tally, trace = Tally(), hashlib.blake2b(digest_size=8)
    for outcome in outcomes(seeds, processes, failover):
        tally.seeds += 1
        for name in ("events", "packets", "sums", "errors"):
            setattr(tally, name, getattr(tally, name) + getattr(outcome, name))
        tally.virtual_s += outcome.seconds
        trace.update(outcome.trace.encode())
        say(outcome)
        if outcome.problem:
            tally.failures.append(outcome)
            if len(tally.failures) >= most_failures:
                break
    tally.trace = trace.hexdigest()
    return tally


def plant(name: str) -> Path:
    """A copy of our packages with bug `name` in it. Raises ConfigError if the bug or its line does not exist."""
    if name not in BUGS:
        raise ConfigError(f"no bug {name!r}: expected one of {', '.join(BUGS)}")
    bug, source = BUGS[name], Path(__file__).resolve().parents[2]
    original = (source / bug.file).read_text()
    if original.count(bug.line) != 1:
        raise ConfigError(f"bug {name}: {bug.file} has {original.count(bug.line)} lines {bug.line!r}, expected one")
    target = cache_root() / "planted" / name
    for package in PACKAGES:
        shutil.rmtree(target / package, ignore_errors=True)
        shutil.copytree(source / package, target / package, ignore=shutil.ignore_patterns("__pycache__"))
    (target / bug.file).write_text(original.replace(bug.line, bug.wrong))
    return target


def run_planted(name: str, arguments: list[str]) -> subprocess.CompletedProcess:
    """`switchml simulate` with `arguments`, by the copy with bug `name`."""
    target = plant(name)
    command = [sys.executable, "-m", "switchml", "simulate", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(target)}
    return subprocess.run(command, env=environment, cwd=target, capture_output=True, text=True)
