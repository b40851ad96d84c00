"""Starts the real ranks of an emulated world like torchrun, with RANK, WORLD_SIZE etc. in their environment set as on
the cluster. Only the real ranks are started.
"""

import dataclasses
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from emulator.peers.settings import PREFIX, PeerSettings
from switchml.errors import ConfigError, JobError
from switchml.runtime.children import dying_with_us, how_it_ended, reap
from switchml.runtime.folders import TemporaryFolder

_STDERR = 2
LOOK_EVERY_S = 0.05
END_S = 10.0
"""Time limit for the other ranks to end after one has failed."""


def launch(script: Sequence[str], settings: PeerSettings, *, quiet_script: bool = False) -> dict[str, Any]:
    """Run `script` (a path, or "-m" and a module, and its arguments) on every real rank, and return the first one's
    report. `quiet_script`: redirect its output to stderr. Raises JobError if a rank fails."""
    if script[0] != "-m" and not Path(script[0]).is_file():
        raise ConfigError(f"no script {script[0]}")
    # The ranks rendezvous in a store created here, which does not wait for the absent ranks. They may connect while
    # this process still imports torch.
    door = socket.create_server(("127.0.0.1", 0), backlog=len(settings.real) + 8)
    port = door.getsockname()[1]
    with TemporaryFolder("peers") as folder:
        report = Path(folder) / "report.json"
        settings = dataclasses.replace(settings, report=settings.report or str(report), quiet=True)
        ranks = [_start(script, settings, rank, port, quiet_script) for rank in settings.real]
        try:
            from torch.distributed import TCPStore

            store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=door.detach())
            _await(ranks, settings.real)
            del store
        finally:
            _stop(ranks)
        path = Path(settings.report)
        if not path.is_file():
            raise JobError(f"{script[0]} created no process group: nothing to report")
        summary: dict[str, Any] = json.loads(path.read_text())
        return summary


def _start(script: Sequence[str], settings: PeerSettings, rank: int, port: int, quiet: bool) -> subprocess.Popen[bytes]:
    per_node = settings.machine().accelerators_per_node
    own = torchrun_environment(rank, settings.world, per_node, port) | {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    inherited = {name: text for name, text in os.environ.items() if not name.startswith(PREFIX)}
    inherited.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does
    environment = inherited | own | settings.environment()
    command = [sys.executable, "-m", "emulator.peers.run", *script]
    return subprocess.Popen(dying_with_us(command), env=environment, stdout=_STDERR if quiet else None)


def torchrun_environment(rank: int, world: int, per_node: int, port: int) -> dict[str, str]:
    """Return torchrun's environment variables for a rank of a world on nodes of `per_node`."""
    variables = {
        "RANK": rank,
        "WORLD_SIZE": world,
        "LOCAL_RANK": rank % per_node,
        "LOCAL_WORLD_SIZE": min(per_node, world),
        "GROUP_RANK": rank // per_node,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    return {name: str(value) for name, value in variables.items()}


def _await(ranks: list[subprocess.Popen[bytes]], numbers: Sequence[int]) -> None:
    while True:
        codes = [process.poll() for process in ranks]
        for rank, code in zip(numbers, codes, strict=True):
            if code:
                raise JobError(f"rank {rank} {how_it_ended(code)}")
        if None not in codes:
            return
        time.sleep(LOOK_EVERY_S)


def _stop(ranks: list[subprocess.Popen[bytes]]) -> None:
    for process in ranks:
        process.terminate()
    for process in ranks:
        reap(process, END_S)
