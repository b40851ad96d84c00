"""Replaces `torch.multiprocessing.spawn`: of the ranks that a script spawns, this process runs one."""

import sys
from collections.abc import Callable
from typing import Any

import torch.multiprocessing

from emulator.peers.script.cuda import replace
from switchml.errors import EmulationError


def install(rank: int, world: int, per_node: int) -> None:
    """Run functions that a script spawns for each GPU, or each rank, once in this process, as its rank."""
    here = min(world, per_node)

    def spawn(
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        nprocs: int = 1,
        join: bool = True,
        daemon: bool = False,
        start_method: str = "spawn",
    ) -> _Joined | None:
        if nprocs not in (here, world):
            raise EmulationError(f"the script spawns {nprocs} processes, expected one for each of {here} GPUs (--gpus)")
        fn(rank % nprocs, *args)
        return None if join else _Joined()

    for module in (torch.multiprocessing, sys.modules["torch.multiprocessing.spawn"]):
        replace(module, {"spawn": spawn, "start_processes": spawn})


class _Joined:
    """Ended processes, with the interface of `torch.multiprocessing.ProcessContext`."""

    def join(self, *_: Any, **__: Any) -> bool:
        return True
