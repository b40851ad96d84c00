"""Replaces `torch.multiprocessing.spawn` and `Process`: of the ranks that a script starts, this process runs one."""

import multiprocessing.process
import sys
from collections.abc import Callable
from typing import Any

import torch.multiprocessing

from emulator.peers.script.cuda import replace
from switchml.errors import EmulationError

_Process = multiprocessing.process.BaseProcess


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
    if world > 1:
        _play_processes(rank % here)


def _play_processes(rank: int) -> None:
    """Run this rank's Process in place when the script starts it, and skip those of other ranks. The n-th Process of a
    script is rank n's if n is among its arguments; any other runs as usual, as do workers of data loaders and pools."""
    start, join, is_alive, exitcode = _Process.start, _Process.join, _Process.is_alive, _Process.exitcode
    played: set[_Process] = set()

    def play(process: Any) -> None:
        given, module = (*process._args, *process._kwargs.values()), str(getattr(process._target, "__module__", ""))
        is_library = module.split(".")[0] in ("torch", "multiprocessing", "concurrent")
        if is_library or not any(type(one) is int and one == len(played) for one in given):
            start(process)
            return
        played.add(process)
        if len(played) - 1 == rank:
            process.run()

    replace(
        _Process,
        {
            "start": play,
            "join": lambda process, timeout=None: None if process in played else join(process, timeout),
            "is_alive": lambda process: process not in played and is_alive(process),
            "exitcode": property(lambda process: 0 if process in played else exitcode.__get__(process)),
        },
    )


class _Joined:
    """Ended processes, with the interface of `torch.multiprocessing.ProcessContext`."""

    def join(self, *_: Any, **__: Any) -> bool:
        return True
