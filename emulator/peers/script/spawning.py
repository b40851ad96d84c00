"""Ranks that a script starts itself, by `torch.multiprocessing.spawn`: this process is one of them."""

import sys
from collections.abc import Callable
from typing import Any

import torch.multiprocessing

from emulator.peers.script.cuda import replace
from switchml.errors import EmulationError


def install(rank: int, world: int, per_node: int) -> None:
    """What a script spawns for each GPU, or each rank, is run here, once, as this process's rank."""
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
    """Processes that have ended, as `torch.multiprocessing.ProcessContext` has them."""

    def join(self, *_: Any, **__: Any) -> bool:
        return True
