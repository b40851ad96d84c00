"""A user's training command: in a form that can be run, and run."""

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
"""How long a command may take to end once it should, before it is killed."""


def runnable(command: Sequence[str]) -> list[str]:
    """`command` in a form that can be run; torchrun works even if it is not on PATH. Raises ConfigError where there is
    no such program."""
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
    """The exit code of `command`, which does not outlive this process. `interrupted_s`: how long it may take to end
    after Ctrl-C, which reaches it, too. Raises ConfigError where there is no such program."""
    with TemporaryFolder("torchrun") as logs:
        # torchrun makes a folder for its workers' logs in any case, and leaves it behind when a signal ends it.
        return _run(command, {"PET_LOG_DIR": logs, **environment}, stdout, interrupted_s)


def _run(command: Sequence[str], environment: Mapping[str, str], stdout: IO[str] | None, interrupted_s: float) -> int:
    process = subprocess.Popen(
        runnable(command), env=environment, stdout=stdout, preexec_fn=dying_with_us(signal.SIGTERM)
    )
    try:
        return process.wait()
    except KeyboardInterrupt:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(interrupted_s)
        raise
    finally:
        end(process, END_S)
