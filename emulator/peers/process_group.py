"""The process group of the backend `switchml-emulated`: a collective's values are handled by `exchange.py`, its timing
by `world.py`. Sub-groups share the world of the default group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from emulator.peers.collectives import Collectives, size_of
from emulator.peers.exchange import Exchange, Gloo, Tensors, receive, reduction
from emulator.peers.shared import GroupOptions, Shared, begin, current, gloo_of, more_gloo
from emulator.peers.work import PeersWork, PeersWorks
from emulator.peers.world import Communicator, World
from switchml.errors import UnsupportedTensor

_STAMP, _STAMP_BACK, _DATA = range(3)
"""Message kinds between two real ranks for one send: tags 3t + these."""


def create(options: GroupOptions) -> EmulatedProcessGroup:
    """Create the group described by torch's _DistributedBackendOptions."""
    ranks = tuple(options.global_ranks_in_group)
    if not ranks:
        shared, gloo, wrapper = begin(options)
        ranks = tuple(range(shared.world.settings.world))
        return EmulatedProcessGroup(shared, ranks, gloo, wrapper, options, is_default=True)
    shared = current()
    members = tuple(rank for rank in ranks if rank in shared.world.real)
    gloo, wrapper = gloo_of(options, members, members.index(shared.world.rank))
    return EmulatedProcessGroup(shared, ranks, gloo, wrapper, options, is_default=False)


class _Queue:
    """Sequential collectives of a group. `gloo`: a group of the real members, used only for these, since they are in
    the same order on all ranks."""

    def __init__(self, shared: Shared, ranks: tuple[int, ...], me: int, real: tuple[int, ...], gloo: Gloo | None):
        self.exchange = Exchange(ranks, me, real, gloo, shared.values, shared.reader, shared.writer)
        self.line = shared.line(ranks, partial(_latest, gloo) if gloo is not None else None)


def _latest(gloo: Gloo, last_s: float) -> float:
    """Return the last arrival of all real ranks."""
    last = torch.tensor([last_s], dtype=torch.float64)
    gloo.allreduce([last], reduction(dist.ReduceOp.MAX)).wait()
    return float(last)


class EmulatedProcessGroup(Collectives):
    """An emulated process group. `ranks`: its members in the world; `gloo`: a group of the real ones."""

    def __init__(
        self,
        shared: Shared,
        ranks: tuple[int, ...],
        gloo: Gloo | None,
        wrapper: dist.ProcessGroup,
        options: GroupOptions,
        *,
        is_default: bool,
    ):
        world = shared.world
        self._me = ranks.index(world.rank)
        super().__init__(self._me, len(ranks))
        self._shared, self._ranks, self._gloo, self._wrapper = shared, ranks, gloo, wrapper
        self._is_default = is_default
        self._store, self._name, self._description = options.store, options.group_id, "undefined"
        self._real = tuple(place for place, rank in enumerate(ranks) if rank in world.real)
        self._queue = self._copies = _Queue(shared, ranks, self._me, self._real, gloo)
        if world.settings.network == "switchml":  # gathers may overtake reductions, as in an agent
            members = [ranks[place] for place in self._real]
            more = more_gloo(options, len(members), members.index(world.rank))
            self._copies = _Queue(shared, ranks, self._me, self._real, more)
        self._pairs: dict[tuple[int, int, int], Communicator] = {}
        self._sent: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        self._coalesced: list[PeersWork] | None = None
        self._number = 0

    # Group properties that torch queries

    def getBackendName(self) -> str:
        return "switchml-emulated"

    def setGroupName(self, name: str) -> None:
        super().setGroupName(name)
        self._wrapper._set_group_name(name)  # type: ignore[arg-type]  # a NewType of str

    def setGroupDesc(self, description: str) -> None:
        super().setGroupDesc(description)
        self._wrapper._set_group_desc(description)

    @property
    def world(self) -> World:
        """The emulated world."""
        return self._shared.world

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> Any:
        return self._wrapper._get_backend(device)

    def set_timeout(self, timeout: timedelta) -> None:
        self._wrapper.set_timeout(timeout)

    _set_default_timeout = set_timeout

    # Collectives

    def _queue_of(self, operation: str) -> _Queue:
        return self._copies if operation in ("all_gather", "broadcast") else self._queue

    def _exchange(self, operation: str) -> Exchange:
        return self._queue_of(operation).exchange

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: torch.device) -> PeersWorks:
        works, self._coalesced = self._coalesced or [], None
        return PeersWorks(works)

    def _call(
        self,
        name: str,
        size_bytes: float,
        outputs: list[torch.Tensor],
        acts: Sequence[Callable[[int], None]],
        inputs: Tensors = (),
        operation: str = "",
    ) -> PeersWork:
        """Run one collective; its values take several acts if it was coalesced."""
        for tensor in (*outputs, *inputs):
            _check(name, tensor)
        first, self._number = self._number, self._number + len(acts)

        def act() -> None:
            with torch.no_grad():
                for number, one in enumerate(acts, first):
                    one(number)

        operation = operation or name
        return self._submit(self._queue_of(operation).line, name, operation, size_bytes, outputs, act)

    def _submit(
        self,
        line: Communicator,
        name: str,
        operation: str,
        size_bytes: float,
        outputs: list[torch.Tensor],
        act: Callable[[], None],
    ) -> PeersWork:
        work = PeersWork(self.world, outputs, self._shared.callbacks)
        self.world.submit(line, name, operation, size_bytes, work, act)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    # Point-to-point

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> PeersWork:
        (tensor,) = tensors
        _check("send", tensor)
        line, gloo = self._pair(self._me, dst, tag), self._gloo

        def act() -> None:
            if gloo is not None and dst in self._real:
                gloo.send([tensor.contiguous()], self._real.index(dst), 3 * tag + _DATA).wait()
            else:
                self._sent[tensor.numel(), tensor.dtype] = tensor.detach().clone()

        return self._submit(line, "p2p", "p2p", size_of([tensor]), [tensor], act)

    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> PeersWork:
        (tensor,) = tensors
        _check("recv", tensor)
        line, gloo = self._pair(src, self._me, tag), self._gloo

        def act() -> None:
            if gloo is not None and src in self._real:
                receive(gloo, tensor, self._real.index(src), 3 * tag + _DATA)
            else:
                # The last tensor of that size that this rank sent represents the absent rank's; otherwise the value is
                # undefined.
                like = self._sent.get((tensor.numel(), tensor.dtype), torch.zeros(0, dtype=tensor.dtype))
                self._shared.values.instead_of(self._ranks[src], like, tensor, self._number)

        return self._submit(line, "p2p", "p2p", size_of([tensor]), [tensor], act)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> NoReturn:
        raise UnsupportedTensor(
            "emulated peers can't receive from just any rank: nobody knows which absent one would send; name the source"
        )

    def _pair(self, src: int, dst: int, tag: int) -> Communicator:
        """Return the communicator of transfers with one tag from one rank to another, which are sequential."""
        if (src, dst, tag) not in self._pairs:
            other = dst if src == self._me else src
            agree = None
            if self._gloo is not None and other in self._real and other != self._me:
                first, second = (_STAMP, _STAMP_BACK) if src == self._me else (_STAMP_BACK, _STAMP)
                agree = partial(_swap, self._gloo, self._real.index(other), 3 * tag + first, 3 * tag + second)
            self._pairs[src, dst, tag] = self._shared.line((self._ranks[src], self._ranks[dst]), agree)
        return self._pairs[src, dst, tag]

    # Shutdown

    def shutdown(self) -> None:
        """Leave the group; the end of the default group ends the world. Safe to call twice."""
        if self._is_default:
            self._shared.close()

    abort = shutdown


def _swap(gloo: Gloo, place: int, tag: int, tag_back: int, last_s: float) -> float:
    """Return the later arrival of this rank and another."""
    mine, theirs = (torch.tensor([last_s], dtype=torch.float64) for _ in range(2))
    sent = gloo.send([mine], place, tag)
    gloo.recv([theirs], place, tag_back).wait()
    sent.wait()
    return max(last_s, float(theirs))


def _check(name: str, tensor: torch.Tensor) -> None:
    if tensor.layout != torch.strided or tensor.device.type != "cpu":
        raise UnsupportedTensor(
            f"{name} of a tensor that is {tensor.layout} on {tensor.device}; emulated peers take dense tensors in the "
            "memory of the CPU"
        )
