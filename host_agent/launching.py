"""A user's training command in a form that can be run."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

from switchml.errors import ConfigError


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
