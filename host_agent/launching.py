"""Resolving and running a user's training command."""

import contextlib
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO

from switchml.errors import ConfigError
from switchml.runtime.children import dying_with_us, end
from switchml.runtime.folders import TemporaryFolder

END_S = 10.0
"""Seconds that a command may take to terminate before it is killed."""


def runnable(command: Sequence[str]) -> list[str]:
    """`command` as a list of arguments that can be executed; torchrun works even if it is not on PATH. Raises
    ConfigError if there is no such program."""
    if shutil.which(command[0]):
        return list(command)
    if command[0] == "torchrun":
        return [sys.executable, "-m", "torch.distributed.run", *command[1:]]
    if command[0].endswith(".py"):
        return [sys.executable, *command]
    raise ConfigError(f"{command[0]}: no such program; expected a command like: torchrun --nproc-per-node 2 script.py")


def run_command(
    command: Sequence[str], environment: Mapping[str, str], *, stdout: IO[str] | None = None, interrupted_s: float = 3.0
) -> int:
    """Run `command`, which is terminated with this process, and return its exit code. `interrupted_s`: seconds that it
    may take to terminate after Ctrl-C, which it receives, too. Raises ConfigError if there is no such program."""
    with TemporaryFolder("torchrun") as logs:
        # torchrun creates a folder for its workers' logs in any case, and leaves it behind when a signal ends it.
        return _run(command, {"PET_LOG_DIR": logs, **environment}, stdout, interrupted_s)


def _run(command: Sequence[str], environment: Mapping[str, str], stdout: IO[str] | None, interrupted_s: float) -> int:
    process = subprocess.Popen(dying_with_us(runnable(command), signal.SIGTERM), env=environment, stdout=stdout)
    try:
        return process.wait()
    except KeyboardInterrupt:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(interrupted_s)
        raise
    finally:
        end(process, END_S)
