"""State shared by all groups of this process while there is a default group: the world, values, threads. Also its
set-up: this process's rank, the real ranks, and the origin of their common clock.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from emulator.peers import report
from emulator.peers.exchange import Gloo
from emulator.peers.recording import Reader, Writer
from emulator.peers.settings import PREFIX, PeerSettings, from_environment
from emulator.peers.values import Values
from emulator.peers.world import Communicator, World
from host_agent.pytorch.store import own_part
from host_agent.pytorch.work import CallbackThreads
from switchml.errors import ConfigError

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Identifies the running machine: equal for all processes on it."""

_shared: Shared | None = None


class GroupOptions(Protocol):
    """The used fields of torch's _DistributedBackendOptions."""

    store: dist.Store
    group_rank: int
    group_size: int
    timeout: timedelta
    group_id: str
    global_ranks_in_group: list[int]


class Shared:
    """The world and other state that all groups share."""

    def __init__(self, settings: PeerSettings, rank: int, real: tuple[int, ...], origin_s: float | None):
        self.world = World(settings, rank, real, origin_s)
        self.callbacks = CallbackThreads(f"switchml-emulated-{rank}")
        self.values = Values("own" if settings.values == "recorded" else settings.values, settings.noise, settings.seed)
        self.reader = Reader(Path(settings.recording), rank) if settings.values == "recorded" else None
        self.writer: Writer | None = None
        if settings.record:
            if len(real) != settings.world:
                raise ConfigError(
                    f"recording needs all {settings.world} ranks real, but {len(real)} are; start that many processes"
                )
            self.writer = Writer(Path(settings.record), rank)
        self.lines: list[Communicator] = []
        self._first_optimizer: object | None = None
        self._hook = register_optimizer_step_post_hook(self._stepped)
        self._owner = os.getpid()
        atexit.register(self.close)  # for scripts that never destroy their group

    def line(self, ranks: tuple[int, ...], agree: Callable[[float], float] | None) -> Communicator:
        """Return a new communicator of these ranks of the world."""
        self.lines.append(Communicator(self.world, ranks, agree, number=len(self.lines)))
        return self.lines[-1]

    def _stepped(self, optimizer: object, *_: object) -> None:
        # A script may have several optimizers; an iteration ends whenever the one that stepped first steps again.
        if self._first_optimizer is None:
            self._first_optimizer = optimizer
        if optimizer is self._first_optimizer:
            self.world.step()

    def close(self) -> None:
        """End the job and write the report. Safe to call twice."""
        global _shared
        if _shared is not self or os.getpid() != self._owner:
            return
        _shared = None
        self._hook.remove()
        for line in self.lines:
            line.close()
        if self.writer is not None:
            self.writer.close()
        self.callbacks.close()
        if self.world.rank == self.world.real[0]:
            report.deliver(self.world)


def begin(options: GroupOptions) -> tuple[Shared, Gloo | None, dist.ProcessGroup]:
    """Create the world of a default group from torch's _DistributedBackendOptions; return it and the result of
    `gloo_of`."""
    global _shared
    if _shared is not None:
        raise ConfigError("there is an emulated world already; destroy its process group first")
    settings = from_environment()
    rank, real = _who_is_real(settings, options.group_rank, options.group_size)
    gloo, wrapper = gloo_of(options, real, real.index(rank))
    origin_s = _agree_on_origin(gloo, settings) if gloo is not None else None
    _shared = Shared(settings, rank, real, origin_s)
    return _shared, gloo, wrapper


def current() -> Shared:
    """Return the state of the current default group. Raises ConfigError if it was destroyed."""
    if _shared is None:
        raise ConfigError("a sub-group of an emulated world that was destroyed")
    return _shared


def _who_is_real(settings: PeerSettings, rank: int, size: int) -> tuple[int, tuple[int, ...]]:
    """Return this process's rank in the world, and all real ranks. `size`: torch's world size, either the number of
    processes (torchrun) or that of the world's ranks (`launch.py`)."""
    real = settings.real or tuple(range(min(size, settings.world)))
    if size == settings.world and rank in real:
        return rank, real
    if len(real) != size:
        raise ConfigError(
            f"{size} processes for {len(real)} real ranks of a world of {settings.world}; expected one process for each"
        )
    return real[rank], real


def gloo_of(options: GroupOptions, real: tuple[int, ...], place: int) -> tuple[Gloo | None, dist.ProcessGroup]:
    """Return a Gloo group of the real ranks, None for a single one; and an ordinary group around it, which torch
    queries for names."""
    store = options.store if len(real) > 1 else dist.HashStore()
    store = own_part(store, place, len(real), options.timeout).unsealed()
    wrapper = dist.ProcessGroup(store, place, len(real))
    gloo = _gloo(dist.PrefixStore("gloo/", store), place, len(real), options.timeout)
    wrapper._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    wrapper._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
    return gloo if len(real) > 1 else None, wrapper


def more_gloo(options: GroupOptions, real: int, place: int) -> Gloo | None:
    """Return another Gloo group of a group's real ranks, for collectives with an independent order."""
    if real == 1:
        return None
    store = own_part(dist.PrefixStore("copies/", options.store), place, real, options.timeout).unsealed()
    gloo: Gloo = _gloo(store, place, real, options.timeout)
    return gloo


def _gloo(store: dist.Store, place: int, real: int, timeout: timedelta) -> Any:
    """Return torch's Gloo group of `real` ranks; its stub lacks the interface of `Gloo`."""
    gloo = dist.ProcessGroupGloo(store, place, real, timeout)
    gloo._set_sequence_number_for_group()
    return gloo


def _agree_on_origin(gloo: Gloo, settings: PeerSettings) -> float:
    """Return the origin of the common clock, in this machine's time. Raises ConfigError if the real ranks share no
    clock."""
    boot = int(_BOOT_ID.read_text()[:8], 16)
    mine = torch.tensor([time.monotonic(), float(boot)], dtype=torch.float64)
    first = mine.clone()
    gloo.broadcast([first], dist.BroadcastOptions()).wait()
    if settings.clock == "wall" and float(first[1]) != boot:
        raise ConfigError(
            "real ranks on several machines share no clock; run them on one, or use the virtual clock "
            f"({PREFIX}CLOCK=virtual)"
        )
    return float(first[0])
