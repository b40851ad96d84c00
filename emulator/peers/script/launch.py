"""Starts a script on an emulated GPU: reads the command line that one would type on the cluster, and plays its rank 0.
All other ranks are taken to do what it does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from emulator.cluster import cluster as clusters
from emulator.peers.launch import torchrun_environment
from emulator.peers.script.commands import read_command
from switchml.errors import ConfigError, JobError, OutOfMemory
from switchml.runtime.children import dying_with_us
from switchml.runtime.folders import TemporaryFolder

_STDERR = 2
ITERATIONS = 3
"""Played: the first makes the optimizer's state, the last is reported."""
PROFILED = 3
"""More that are played for a profile, which is of the last of them."""


def play(
    words: Sequence[str],
    cluster: str,
    gpus: int = 0,
    allreduce: str = "auto",
    *,
    limit_s: float | None = None,
    profile: Path | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """What a script takes on `gpus` accelerators of `cluster`, by default as many as its launcher starts, as
    `ScriptResult` in JSON. `profile`: a file for what was played, as PyTorch's profiler would have recorded it
    (.json or .json.gz). `quiet`: what the script prints goes to stderr. Raises OutOfMemory, JobError if it fails."""
    machine = clusters.load(cluster)
    command = read_command(words, machine.accelerators_per_node)
    world = gpus or command.processes or 1
    if command.script[0] != "-m" and not Path(command.script[0]).is_file():
        raise ConfigError(f"no script {command.script[0]}")
    iterations = ITERATIONS if profile is None else ITERATIONS - 1 + PROFILED
    ranks: dict[str, str] = {}
    if command.processes or world > 1:
        ranks = torchrun_environment(0, world, machine.accelerators_per_node, 29500)
    with TemporaryFolder("script") as folder:
        request, result = Path(folder) / "request.json", Path(folder) / "result.json"
        request.write_text(
            json.dumps(
                {
                    "cluster": cluster,
                    "world": world,
                    "allreduce": allreduce,
                    "iterations": iterations,
                    "result": str(result),
                    "profile": str(profile.absolute()) if profile else "",
                }
            )
        )
        try:
            process = subprocess.run(
                [sys.executable, "-m", "emulator.peers.script.program", str(request), *command.script],
                env=os.environ | command.environment | {"CUDA_VISIBLE_DEVICES": ""} | ranks,
                stdout=_STDERR if quiet else None,
                preexec_fn=dying_with_us(),
                timeout=limit_s,
            )
        except subprocess.TimeoutExpired:
            raise JobError(
                f"{command.script[0]} made no {iterations} optimizer steps in {limit_s:.0f} s (--time-limit)"
            ) from None
        if not result.is_file():
            raise JobError(f"{command.script[0]} ended with exit code {process.returncode} and nothing to report")
        outcome = json.loads(result.read_text())
    at = f" at {outcome['where']}" if outcome.get("where") else ""
    if "full" in outcome:
        raise OutOfMemory(f"out of memory{at}: {outcome['full']}", parts=outcome["memory"])
    if "error" in outcome:
        raise JobError(f"{outcome['error']}{at}")
    found: dict[str, Any] = outcome["result"]
    return found
