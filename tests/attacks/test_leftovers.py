"""Commands that signals end at any moment: no process, no file in /tmp or /dev/shm, no traceback is left of them."""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from emulator.p4switch.notifications import default_address
from host_agent.agent import HostAgent
from switchml.errors import JoinError
from switchml.runtime.folders import TemporaryFolder
from tests.attacks.conftest import FIRST_SEED, Attempts
from tests.support import shared_files
from tests.support.launch import Aggregator, on_all, until
from tests.support.ranks import environment

MARK = "TEST_OF_LEFTOVERS"
"""The variable by which the processes of an attempt are known, whoever their parent is by then."""
ANY_PORTS = ("--control-port", "0", "--events-port", "0")
TRAIN = ("train", "--ranks", "2", "--steps", "20", "--aggregator")
COMMANDS: dict[str, tuple[float, tuple[str, ...]]] = {
    "aggregate": (3.0, ("aggregate", "--data-port", "0", *ANY_PORTS, "--tunnel")),
    "switch": (
        3.0,
        ("switch", "--no-p4", "--thrift-socket", "{folder}/thrift", "--device-id", "{device}", "-L", "off"),
    ),
    "control": (3.0, ("control", "--switch", "p4", *ANY_PORTS)),
    "emulate, sweep": (
        6.0,
        ("emulate", "--model", "gpt2-124m", "--sweep", "gpus=1:64:2x", "--sweep", "micro-batch=1,2", "--json"),
    ),
    "simulate": (6.0, ("simulate", "--seeds", "2000", "--processes", "2")),
    "train, software, shm": (15.0, (*TRAIN, "software", "--transport", "shm")),
    "train, software, zmq": (15.0, (*TRAIN, "software", "--transport", "zmq")),
    "train, p4": (20.0, (*TRAIN, "p4")),
}
"""What is started, and within how many seconds it is hit: its start, its work and, for most, its end."""
TARGETS = {
    signal.SIGKILL: ("parent", "child", "group", "all"),
    signal.SIGTERM: ("parent", "child", "group", "all"),
    signal.SIGINT: ("parent", "group"),  # Ctrl-C in a terminal reaches the whole group, and no one else
}
OURS = re.compile(r'File ".*/(switchml|host_agent|emulator)/.*", line [0-9]+, in (?!<module>|attach)')
"""A frame of ours, but for those of the imports that come before Ctrl-C is looked after (and in switchml/lazy.py)."""
PARTS = re.compile(r"Traceback|Exception ignored|Fatal Python error")


class Attempt:
    """One command, started in a session of its own, with a folder of its own for temporary files."""

    def __init__(self, name: str, folder: Path, source: random.Random) -> None:
        self.within_s, words = COMMANDS[name]
        self.folder, self.source, self.mark = folder, source, uuid.uuid4().hex
        self.device = source.randrange(1 << 30, 1 << 31)
        command = [word.format(folder=folder, device=self.device) for word in words]
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.shared_before = shared_files.names()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "switchml", *command], env=environment(**{MARK: self.mark, "TMPDIR": str(folder)}),
            cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.errors, start_new_session=True,
        )  # fmt: skip

    def processes(self) -> list[int]:
        """Those that run."""
        return [pid for pid in psutil.pids() if self.mark.encode() in _read(f"/proc/{pid}/environ")]

    def hit(self, number: signal.Signals, target: str) -> None:
        """Send a signal at a random moment, and then end what such a command survives."""
        self._wait(self.source.uniform(0, self.within_s))
        children = [pid for pid in self.processes() if pid != self.process.pid]
        if target == "group":
            _signal_group(self.process.pid, number)
        else:
            chosen = {"parent": [self.process.pid], "child": children and [self.source.choice(children)]}
            for pid in chosen.get(target, [self.process.pid, *children]):
                _signal(pid, number)
        if target == "child":
            self._wait(self.source.uniform(0, 1))
            _signal(self.process.pid, signal.SIGTERM)
        self.process.wait(60)
        until(lambda: not self.processes())

    def _wait(self, seconds: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)

    def complaints(self) -> str:
        """Tracebacks through our code on stderr. (Python prints one if a signal comes in its first 50 ms.)"""
        self.errors.seek(0)
        text = self.errors.read()
        return text if PARTS.search(text) and OURS.search(text) else ""

    def left_files(self) -> list[str]:
        notifications = Path(f"/tmp/bmv2-{self.device}-notifications.ipc")
        files = [*self.folder.rglob("*"), *([notifications] if notifications.exists() else [])]
        # torch's own cache, of one name for all programs that import torch._dynamo
        return [str(path) for path in files if "torchinductor_" not in str(path)]

    def remove_as_the_next_would(self) -> None:
        """What such a command does when it starts a minute later."""
        for path in map(Path, self.left_files()):
            os.utime(path, (0, 0))
        tempfile.tempdir, before = str(self.folder), tempfile.tempdir
        try:
            TemporaryFolder("next").cleanup()
        finally:
            tempfile.tempdir = before
        default_address(self.device)
        (self.folder / "thrift").unlink(missing_ok=True)  # a path that the caller chose: a switch there replaces it

    def close(self) -> None:
        for pid in self.processes():
            _signal(pid, signal.SIGKILL)
        self.process.wait()
        self.errors.close()


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="left-") as name:  # tmp_path is too long for Unix sockets
        yield Path(name)


@pytest.mark.slow
@pytest.mark.timeout(6 * 3600)
def test_signals_at_any_moment(folder: Path, attempts: Attempts) -> None:
    tried = attempts.scaled(4)
    for number in range(FIRST_SEED, FIRST_SEED + tried):
        source = random.Random(number)
        name = list(COMMANDS)[number % len(COMMANDS)]
        sent = source.choice(list(TARGETS))
        target = source.choice(TARGETS[sent])
        attempt = Attempt(name, folder, source)
        what = f"{number}: {name}, {sent.name} to {target}"
        try:
            attempt.hit(sent, target)
            assert not attempt.complaints(), f"{what}: {attempt.complaints()}"
            shared_files.await_none_left(attempt.shared_before, what)
            if sent != signal.SIGKILL:
                assert not attempt.left_files(), f"{what}: {attempt.left_files()}"
            attempt.remove_as_the_next_would()
            assert not attempt.left_files(), f"{what}: {attempt.left_files()}"
        finally:
            attempt.close()
    attempts.record("commands ended by signals at random moments", tried)


def test_joins_that_no_one_completes(attempts: Attempts) -> None:
    """More than one client may have; those that are accepted run into their time-out."""
    tried = attempts.scaled(24)
    aggregator = Aggregator("--client-jobs", "16")
    try:
        victim = psutil.Process(aggregator.process.pid)
        aggregator.status()
        fds, threads = victim.num_fds(), victim.num_threads()
        here, alive = psutil.Process().num_fds(), threading.active_count()
        outcomes = on_all(range(tried), lambda number: join(aggregator.address, f"job-{number}"))
        assert all(isinstance(outcome, JoinError) for outcome in outcomes), outcomes
        assert any("job" in str(outcome) and "16" in str(outcome) for outcome in outcomes), outcomes
        until(lambda: all(job.state == "failed" for job in aggregator.status().jobs))
        until(lambda: victim.num_fds() <= fds + 2 and victim.num_threads() <= threads + 1)
        until(lambda: psutil.Process().num_fds() <= here + 2 and threading.active_count() <= alive)
    finally:
        aggregator.kill()
    attempts.record("joins of jobs that never fill, in a full queue", tried)


def join(address: str, job: str) -> HostAgent:
    return HostAgent.join(address, job=job, rank=0, world_size=2, timeout_s=2)
