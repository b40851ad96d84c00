"""Commands where something is lacking: a home, a cache that can be written, room on the disk, descriptors, memory. Each
works nevertheless, or says in one sentence what is lacking, without a traceback and with nothing half-written."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

import pytest

from switchml.runtime.cache import cache_root
from tests.attacks.conftest import Attempts
from tests.support.launch import Aggregator, until
from tests.support.ranks import environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.needs("unshare", "prlimit"),
    pytest.mark.timeout(6 * 3600),
]

SWITCHML = (sys.executable, "-m", "switchml")
JOIN = """
import sys
import numpy as np
from host_agent.agent import HostAgent
from switchml.errors import SwitchMLError
try:
    with HostAgent.join(sys.argv[1], job=sys.argv[2], rank=0, world_size=1) as agent:
        assert (agent.allreduce(np.ones(100_000, np.float32)) == 1).all()
except SwitchMLError as error:
    sys.exit(f"switchml: error: {error}")
"""
SCRIPT = """
import torch
from torch.nn.parallel import DistributedDataParallel
torch.distributed.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    optimizer.zero_grad()
    model(torch.ones(8, 64)).sum().backward()
    optimizer.step()
torch.distributed.destroy_process_group()
"""
TRAIN = (*SWITCHML, "train", "--ranks", "2", "--steps", "3", "--plot", "report.html", "--aggregator")
ANY_PORTS = ("--control-port", "0", "--events-port", "0")

COMMANDS: dict[str, tuple[str, ...]] = {
    "emulate": (*SWITCHML, "emulate", "--model", "gpt2-124m", "--gpus", "8", "--report", "report.html"),
    "join": (sys.executable, "-c", JOIN, "{address}", "{job}"),
    "bench": (*SWITCHML, "bench", "allreduce", "--ranks", "2", "--size", "64K", "--repeats", "3", "--json"),
    "train, software": (*TRAIN, "software"),
    "train, p4": (*TRAIN, "p4"),
    "capture": (
        *SWITCHML, "trace", "capture", "--out", "report", "--steps", "3:5", "--",
        "torchrun", "--standalone", "--nproc-per-node", "2", "{script}",
    ),
    "aggregate": (*SWITCHML, "aggregate", "--data-port", "0", *ANY_PORTS, "--tunnel"),
    "switch": (*SWITCHML, "switch", "--no-p4", "--thrift-socket", "{folder}/thrift", "--log-console"),
}  # fmt: skip
ENDLESS = {"aggregate": "switchml aggregator ready", "switch": "Thrift server was started"}
"""What the commands say that a signal has to end."""

LACKING: dict[str, str] = {
    "room on the disk": "mount -t tmpfs -o size=4k none {folder}",
    "descriptors": "ulimit -n 64",
    "room in /dev/shm": "mount -t tmpfs -o size=4k none /dev/shm",
    "a cache to write": "mount --bind {cache} {cache}; mount -o remount,bind,ro {cache}; export HOME=/proc",
    "a home": "unset HOME",
    "memory": "ulimit -v 8388608",
    "room on stdout": "exec > /dev/full",
}
"""What to do in a shell of its own namespace before the command starts."""
TRACEBACK = re.compile(r"Traceback|Exception ignored|Fatal Python error|terminate called")


def run(command: str, lacking: str, folder: Path, address: str) -> subprocess.CompletedProcess[str]:
    """Run a command where something is lacking. What it leaves in its folder comes into `folder`/kept."""
    work, kept, script = folder / "work", folder / "kept", folder / "script.py"
    work.mkdir()
    script.write_text(SCRIPT)
    values = {
        "folder": work, "cache": cache_root(), "address": address, "script": script,
        "device": random.randrange(1 << 30, 1 << 31), "job": random.randbytes(6).hex(),
    }  # fmt: skip
    words = [word if word == JOIN else word.format(**values) for word in COMMANDS[command]]
    if lacking == "a home":  # for a user whom nobody knows
        words = ["unshare", "-U", "--map-user=54321", "--map-group=54321", *words]
    lines = [f"cd {work}", LACKING[lacking].format(**values)]
    if lacking == "room on the disk":
        lines.append(f"cd {work}")  # the new one
    if command in ENDLESS:
        lines.append(f"exec {shlex.join(words)}")
    else:
        lines += [shlex.join(words), "code=$?", f"exec > /dev/null; cp -a {work} {kept}", "exit $code"]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", "\n".join(lines)],
            env=environment(TMPDIR=str(work), SWITCHML_CACHE_DIR=str(cache_root())),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        try:
            if command in ENDLESS:
                until(lambda: ENDLESS[command] in _text(out) + _text(err) or process.poll() is not None)
                process.send_signal(signal.SIGTERM)
            process.wait(300)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return subprocess.CompletedProcess(words, process.returncode, _text(out), _text(err))


def _text(file: IO[str]) -> str:
    return os.pread(file.fileno(), 1 << 20, 0).decode(errors="replace")


def check(command: str, done: subprocess.CompletedProcess[str], folder: Path) -> None:
    """Either it has done what it should, or it says why not."""
    assert not TRACEBACK.search(done.stderr + done.stdout), done.stderr + done.stdout
    files = {path.name: path for path in (folder / "kept").rglob("*") if path.is_file()}
    for name, path in files.items():
        if name.endswith(".html"):
            assert path.read_text().rstrip().endswith("</html>"), name
        elif name.endswith(".json"):
            json.loads(path.read_text())
        else:
            assert name.startswith("rank-") and not name.endswith(".tmp"), name
    if done.returncode == 0 or (command in ENDLESS and done.returncode == -signal.SIGTERM):
        assert "report.html" in files or "report.html" not in done.args
    else:
        assert done.returncode == 1, done
        assert re.search(r"^switchml: error: .+\.?$", done.stderr.splitlines()[-1]), done.stderr


def test_what_may_be_lacking(attempts: Attempts) -> None:
    tried = attempts.scaled(2)
    cases = [(lacking, command) for command in COMMANDS for lacking in LACKING]
    with contextlib.ExitStack() as stack:
        address = ""
        for lacking, command in itertools.islice(itertools.cycle(cases), tried):
            if command == "join" and not address:
                aggregator = Aggregator()
                stack.callback(aggregator.kill)
                address = aggregator.address
            with tempfile.TemporaryDirectory(prefix="lack-") as folder:  # tmp_path is too long for Unix sockets
                done = run(command, lacking, Path(folder), address)
                try:
                    check(command, done, Path(folder))
                except AssertionError as error:
                    raise AssertionError(f"{command} without {lacking}: {error}") from None
    attempts.record("commands that lack memory, descriptors, room, …", tried)
