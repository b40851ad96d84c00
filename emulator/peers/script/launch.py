"""Starts a script on emulated GPUs: parses the command line as used on the cluster, and runs the ranks that differ
(`processes.py`). All other ranks are assumed to do the same as these.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from emulator.cluster import cluster as clusters
from emulator.peers.launch import torchrun_environment
from emulator.peers.script.commands import read_command
from emulator.peers.script.processes import Processes
from emulator.peers.script.stages import together
from switchml.errors import ConfigError, JobError, OutOfMemory
from switchml.runtime.folders import TemporaryFolder

ITERATIONS = 3
"""Number of iterations run: the first creates the optimizer's state, the last is reported."""
PROFILED = 3
"""Additional iterations for a profile, which covers the last of them."""


def play(
    words: Sequence[str],
    cluster: str,
    gpus: int = 0,
    allreduce: str = "auto",
    *,
    accelerator: str = "",
    limit_s: float | None = None,
    profile: Path | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Run a script on `gpus` accelerators of `cluster`, by default as many as its launcher starts, and return a
    `ScriptResult` in JSON. `accelerator`: replaces the cluster's, unless empty. `profile`: file (.json or .json.gz) for
    the emulated iterations in the format of PyTorch's profiler. `quiet`: redirect the script's output to stderr. Raises
    OutOfMemory, and JobError if it fails."""
    machine = clusters.equipped(cluster, accelerator)
    command = read_command(words, machine.accelerators_per_node)
    world = gpus or command.processes or 1
    if command.script[0] != "-m" and not Path(command.script[0]).is_file():
        raise ConfigError(f"no script {command.script[0]}")
    iterations = ITERATIONS if profile is None else ITERATIONS - 1 + PROFILED
    environments = [command.environment | {"CUDA_VISIBLE_DEVICES": ""} for _ in range(world)]
    if command.processes or world > 1:
        for rank, environment in enumerate(environments):
            environment |= torchrun_environment(rank, world, machine.accelerators_per_node, 29500)
    request = {
        "cluster": cluster,
        "accelerator": accelerator,
        "world": world,
        "allreduce": allreduce,
        "iterations": iterations,
        "profile": str(profile.absolute()) if profile else "",
    }
    with TemporaryFolder("script") as folder:
        try:
            outcomes = Processes(command.script, request, environments, Path(folder), quiet).run(limit_s)
        except TimeoutError:
            raise JobError(
                f"{command.script[0]} did not make its {iterations} optimizer steps (one more with torch.compile) in "
                f"{limit_s:.0f} s (--time-limit)"
            ) from None
    for rank, outcome in outcomes.items():
        of = f"rank {rank}: " if rank or len(outcomes) > 1 else ""
        at = f" at {outcome['where']}" if outcome.get("where") else ""
        if "full" in outcome:
            raise OutOfMemory(f"{of}out of memory{at}: {outcome['full']}", parts=outcome["memory"])
        if "error" in outcome:
            raise JobError(f"{of}{outcome['error']}{at}")
    return together({rank: outcome["result"] for rank, outcome in outcomes.items()})
