"""The process group of the backend `switchml-emulated`: each collective's values go to `exchange.py`, its time to
`world.py`. Sub-groups share the world of the default group.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from emulator.peers import report
from emulator.peers.exchange import Exchange
from emulator.peers.recording import Reader, Writer
from emulator.peers.settings import PREFIX, Settings, from_environment
from emulator.peers.values import Values
from emulator.peers.work import PeersWork
from emulator.peers.world import Communicator, World
from host_agent.torch_work import CallbackThreads
from switchml.errors import ConfigError, UnsupportedTensor

_STAMP, _STAMP_BACK, _DATA = range(3)
"""What goes between two real ranks for one send: tags 3t + these."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""The same for all processes on one running machine."""

_shared: Shared | None = None
"""What all groups of this process share, while there is a default group."""


class Shared:
    """The world and what all groups need of it."""

    def __init__(self, settings: Settings, rank: int, real: tuple[int, ...], origin_s: float | None):
        self.world = World(settings, rank, real, origin_s)
        self.callbacks = CallbackThreads(f"switchml-emulated-{rank}")
        self.values = Values("own" if settings.values == "recorded" else settings.values, settings.noise, settings.seed)
        self.reader = Reader(Path(settings.recording), rank) if settings.values == "recorded" else None
        self.writer = None
        if settings.record:
            if len(real) != settings.world:
                raise ConfigError(
                    f"recording needs all {settings.world} ranks real, but {len(real)} are; start that many processes"
                )
            self.writer = Writer(Path(settings.record), rank)
        self.lines: list[Communicator] = []
        self._first_optimizer: object | None = None
        self._hook = register_optimizer_step_post_hook(self._stepped)

    def line(self, ranks: tuple[int, ...], agree: Callable[[float], float] | None) -> Communicator:
        """A communicator of these ranks of the world."""
        self.lines.append(Communicator(self.world, ranks, agree, number=len(self.lines)))
        return self.lines[-1]

    def _stepped(self, optimizer, *_) -> None:
        # A script may have several optimizers; an iteration ends whenever the one that stepped first steps again.
        if self._first_optimizer is None:
            self._first_optimizer = optimizer
        if optimizer is self._first_optimizer:
            self.world.step()

    def close(self) -> None:
        """The end of the job: the report."""
        self._hook.remove()
        for line in self.lines:
            line.close()
        if self.writer is not None:
            self.writer.close()
        self.callbacks.close()
        if self.world.rank == self.world.real[0]:
            report.deliver(self.world)


def create(options) -> EmulatedProcessGroup:
    """The group that torch's _DistributedBackendOptions describe."""
    global _shared
    ranks = tuple(options.global_ranks_in_group)
    if not ranks:
        if _shared is not None:
            raise ConfigError("there is an emulated world already; destroy its process group first")
        settings = from_environment()
        rank, real = _who_is_real(settings, options.group_rank, options.group_size)
        gloo, wrapper = _gloo(options, real, real.index(rank))
        origin_s = _agree_on_origin(gloo, settings) if gloo is not None else None
        _shared = Shared(settings, rank, real, origin_s)
        group = EmulatedProcessGroup(_shared, tuple(range(settings.world)), gloo, wrapper, options, is_default=True)
    else:
        if _shared is None:
            raise ConfigError("a sub-group of an emulated world that was destroyed")
        members = tuple(other for other in ranks if other in _shared.world.real)
        gloo, wrapper = _gloo(options, members, members.index(_shared.world.rank))
        group = EmulatedProcessGroup(_shared, ranks, gloo, wrapper, options, is_default=False)
    return group


def _who_is_real(settings: Settings, rank: int, size: int) -> tuple[int, tuple[int, ...]]:
    """This process's rank in the world, and all real ones. `size`: what torch was told; either the number of processes
    (torchrun) or that of the world's ranks (our launcher)."""
    real = settings.real or tuple(range(min(size, settings.world)))
    if size == settings.world and rank in real:
        return rank, real
    if len(real) != size:
        raise ConfigError(
            f"{size} processes for {len(real)} real ranks of a world of {settings.world}; expected one process for each"
        )
    return real[rank], real


def _gloo(options, real: tuple[int, ...], place: int) -> tuple[dist.Backend | None, dist.ProcessGroup]:
    """Gloo among the real ranks, None for a single one; and an ordinary group around it, which torch asks for names."""
    store = options.store if len(real) > 1 else dist.HashStore()
    generation = (store.add("arrivals", 1) - 1) // len(real)  # torchrun's store outlives a script's first group
    store = dist.PrefixStore(f"{generation}/", store)
    wrapper = dist.ProcessGroup(store, place, len(real))
    gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo/", store), place, len(real), options.timeout)
    gloo._set_sequence_number_for_group()
    wrapper._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    wrapper._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
    return gloo if len(real) > 1 else None, wrapper


def _agree_on_origin(gloo, settings: Settings) -> float:
    """When the common clock began, by this machine's. Raises ConfigError where it could have no meaning."""
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


class EmulatedProcessGroup(dist.ProcessGroup):
    """`ranks`: its members in the world; `gloo`: among those that are real."""

    def __init__(self, shared: Shared, ranks: tuple[int, ...], gloo, wrapper, options, *, is_default: bool):
        world = shared.world
        self._me = ranks.index(world.rank)
        super().__init__(self._me, len(ranks))
        self._shared, self._ranks, self._gloo, self._wrapper = shared, ranks, gloo, wrapper
        self._is_default = is_default
        self._store, self._name, self._description = options.store, options.group_id, "undefined"
        self._real = tuple(place for place, rank in enumerate(ranks) if rank in world.real)
        self._exchange = Exchange(ranks, self._me, self._real, gloo, shared.values, shared.reader, shared.writer)
        self._line = shared.line(ranks, self._agree if gloo is not None else None)
        self._pairs: dict[tuple[int, int, int], Communicator] = {}
        self._sent: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        self._coalesced: list[Callable[[], None]] | None = None
        self._number = 0

    def _agree(self, last_s: float) -> float:
        last = torch.tensor([last_s], dtype=torch.float64)
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX
        self._gloo.allreduce([last], options).wait()
        return float(last)

    # What torch asks about the group

    def getBackendName(self) -> str:
        return "switchml-emulated"

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name
        self._wrapper._set_group_name(name)

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, description: str) -> None:
        self._description = description
        self._wrapper._set_group_desc(description)

    @property
    def world(self) -> World:
        """The emulated world."""
        return self._shared.world

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device):
        return self._wrapper._get_backend(device)

    def get_group_store(self) -> dist.Store:
        return self._store

    def set_timeout(self, timeout: timedelta) -> None:
        self._wrapper.set_timeout(timeout)

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        return self._number

    # Collectives

    def allreduce(self, tensors, *args, **kwargs):
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        op = _option(args, kwargs, "reduceOp", "op", dist.ReduceOp.SUM)
        return self._reduced(
            "all_reduce", tensors, lambda tensor, number: self._exchange.all_reduce(tensor, op, number)
        )

    def allreduce_coalesced(self, tensors, *args, **kwargs):
        return self.allreduce(tensors, *args, **kwargs)

    def reduce(self, tensors, *args, **kwargs):
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        root, op = _root(args, kwargs), _option(args[1:], kwargs, "reduceOp", "op", dist.ReduceOp.SUM)
        op = args[0].reduceOp if args and hasattr(args[0], "reduceOp") else op
        return self._reduced("reduce", tensors, lambda tensor, number: self._exchange.reduce(tensor, op, root, number))

    def _reduced(self, operation: str, tensors: list[torch.Tensor], act) -> PeersWork:
        return self._call(
            operation, _bytes(tensors), tensors, [lambda number, t=tensor: act(t, number) for tensor in tensors]
        )

    def broadcast(self, tensors, *args, **kwargs):
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        root = _root(args, kwargs)
        return self._reduced(
            "broadcast", tensors, lambda tensor, number: self._exchange.broadcast(tensor, root, number)
        )

    def allgather(self, outputs, inputs, *args, **kwargs):
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        size = sum(_bytes(outs) for outs in outputs)
        acts = [
            lambda number, o=outs, t=tensor: self._exchange.all_gather(o, t, number)
            for outs, tensor in zip(outputs, inputs, strict=True)
        ]
        return self._call("all_gather", size, [tensor for outs in outputs for tensor in outs], acts, list(inputs))

    def _allgather_base(self, output, input, *args, **kwargs):
        return self.all_gather_single_coalesced([output], [input])

    def all_gather_single(self, output, input, *args, **kwargs):
        return self.all_gather_single_coalesced([output], [input])

    def all_gather_single_coalesced(self, outputs, inputs, *args, **kwargs):
        return self.allgather([_chunks(output, self.size()) for output in outputs], list(inputs))

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather_coalesced(self, output_lists, inputs, *args, **kwargs):
        return self.allgather([[outs[i] for outs in output_lists] for i in range(len(inputs))], list(inputs))

    def gather(self, outputs, inputs, *args, **kwargs):
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs] if outputs else [], [inputs]
        root, (tensor,) = _root(args, kwargs), inputs
        outs = list(outputs[0]) if self._me == root else []
        size = _bytes([tensor]) * self.size()
        act = [lambda number: self._exchange.gather(outs, tensor, root, number)]
        return self._call("gather", size, outs, act, [tensor], "all_gather")

    def scatter(self, outputs, inputs, *args, **kwargs):
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs] if inputs else []
        root, (out,) = _root(args, kwargs), outputs
        chunks = list(inputs[0]) if self._me == root else []
        act = [lambda number: self._exchange.scatter(out, chunks, root, number)]
        return self._call("scatter", _bytes([out]) * self.size(), [out], act, chunks, "all_gather")

    def reduce_scatter(self, outputs, inputs, *args, **kwargs):
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        op = _option(args, kwargs, "reduceOp", "op", dist.ReduceOp.SUM)
        acts = [
            lambda number, o=out, c=chunks: self._exchange.reduce_scatter(o, c, op, number)
            for out, chunks in zip(outputs, inputs, strict=True)
        ]
        size = sum(_bytes(chunks) for chunks in inputs)
        return self._call("reduce_scatter", size, list(outputs), acts, [t for chunks in inputs for t in chunks])

    def _reduce_scatter_base(self, output, input, *args, **kwargs):
        return self.reduce_scatter_single_coalesced([output], [input], *args, **kwargs)

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter_single_coalesced(self, outputs, inputs, *args, **kwargs):
        return self.reduce_scatter(list(outputs), [_chunks(one, self.size()) for one in inputs], *args, **kwargs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(self, outputs, inputs, *args, **kwargs):
        act = [lambda number: self._exchange.all_to_all(outputs, inputs, number)]
        return self._call("all_to_all", _bytes(inputs), list(outputs), act, list(inputs))

    def alltoall_base(self, output, input, output_splits, input_splits, *args, **kwargs):
        outs, chunks = (
            _chunks(one, self.size(), splits) for one, splits in ((output, output_splits), (input, input_splits))
        )
        work = self.alltoall(outs, chunks)
        work.tensors = [output]
        return work

    all_to_all_single = alltoall_base

    def barrier(self, *args, **kwargs):
        work = self._call("barrier", 0.0, [], [lambda number: None])
        return work

    def _start_coalescing(self, device) -> None:
        self._coalesced = []

    def _end_coalescing(self, device):
        works, self._coalesced = self._coalesced or [], None
        return _Together(works)

    def _call(
        self,
        name: str,
        size_bytes: float,
        outputs: list[torch.Tensor],
        acts: list,
        inputs: Sequence = (),
        operation: str = "",
    ) -> PeersWork:
        """One collective, whose values are several acts where it was coalesced."""
        for tensor in (*outputs, *inputs):
            _check(name, tensor)
        first, self._number = self._number, self._number + len(acts)

        def act() -> None:
            with torch.no_grad():
                for number, one in enumerate(acts, first):
                    one(number)

        work = PeersWork(self.world, outputs, self._shared.callbacks)
        self.world.submit(self._line, name, operation or name, size_bytes, work, act)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    # From one rank to another

    def send(self, tensors, dst: int, tag: int = 0):
        (tensor,) = tensors
        _check("send", tensor)
        line, agree = self._pair(self._me, dst, tag), dst in self._real

        def act() -> None:
            if agree:
                self._gloo.send([tensor.contiguous()], self._real.index(dst), 3 * tag + _DATA).wait()
            else:
                self._sent[tensor.numel(), tensor.dtype] = tensor.detach().clone()

        return self._transfer(line, tensor, act)

    def recv(self, tensors, src: int, tag: int = 0):
        (tensor,) = tensors
        _check("recv", tensor)
        line, agree = self._pair(src, self._me, tag), src in self._real

        def act() -> None:
            if agree:
                whole = tensor if tensor.is_contiguous() else torch.empty_like(tensor).contiguous()
                self._gloo.recv([whole], self._real.index(src), 3 * tag + _DATA).wait()
                if whole is not tensor:
                    tensor.copy_(whole)
            else:
                # What this rank last sent of that size is what a rank like it would send; else nobody knows.
                like = self._sent.get((tensor.numel(), tensor.dtype), torch.zeros(0, dtype=tensor.dtype))
                self._shared.values.instead_of(self._ranks[src], like, tensor, self._number)

        return self._transfer(line, tensor, act)

    def recv_anysource(self, tensors, tag: int = 0):
        raise UnsupportedTensor(
            "emulated peers can't receive from just any rank: nobody knows which absent one would send; name the source"
        )

    def _transfer(self, line: Communicator, tensor: torch.Tensor, act: Callable[[], None]) -> PeersWork:
        work = PeersWork(self.world, [tensor], self._shared.callbacks)
        self.world.submit(line, "p2p", "p2p", _bytes([tensor]), work, act)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _pair(self, src: int, dst: int, tag: int) -> Communicator:
        """Transfers of one tag from one rank to another follow one another."""
        if (src, dst, tag) not in self._pairs:
            other = dst if src == self._me else src
            agree = None
            if other in self._real and other != self._me:
                place = self._real.index(other)
                first, second = (_STAMP, _STAMP_BACK) if src == self._me else (_STAMP_BACK, _STAMP)
                agree = lambda last_s: self._swap(last_s, place, 3 * tag + first, 3 * tag + second)  # noqa: E731
            self._pairs[src, dst, tag] = self._shared.line((self._ranks[src], self._ranks[dst]), agree)
        return self._pairs[src, dst, tag]

    def _swap(self, last_s: float, place: int, tag: int, tag_back: int) -> float:
        """The later one of this rank's arrival and another's."""
        mine, theirs = (torch.tensor([last_s], dtype=torch.float64) for _ in range(2))
        sent = self._gloo.send([mine], place, tag)
        self._gloo.recv([theirs], place, tag_back).wait()
        sent.wait()
        return max(last_s, float(theirs))

    # The end

    def shutdown(self) -> None:
        """Leave; the default group's end is that of the world. Safe to call twice."""
        global _shared
        if self._is_default and _shared is self._shared:
            _shared = None
            self._shared.close()

    def abort(self) -> None:
        self.shutdown()


class _Together(dist._Work if hasattr(dist, "_Work") else torch._C._distributed_c10d.Work):
    """Several works as one."""

    def __init__(self, works: list[PeersWork]):
        super().__init__()
        self._works = works

    def wait(self, *timeout) -> bool:
        for work in self._works:
            work.wait(*timeout)
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)


def _option(args: tuple, kwargs: dict, name: str, keyword: str, default):
    """An option of a call in one of ProcessGroup's styles: an options object, or one by one."""
    given = args[0] if args else kwargs.get("opts", kwargs.get(keyword, default))
    return getattr(given, name) if hasattr(given, name) else given


def _root(args: tuple, kwargs: dict) -> int:
    return int(_option(args, kwargs, "rootRank", "root", 0))


def _bytes(tensors: Sequence[torch.Tensor]) -> float:
    return float(sum(tensor.numel() * tensor.element_size() for tensor in tensors))


def _chunks(tensor: torch.Tensor, count: int, splits: Sequence[int] = ()) -> list[torch.Tensor]:
    """Views of a tensor, cut along its first dimension (evenly: anywhere), one for each rank."""
    if splits:
        return list(tensor.split(list(splits)))
    if tensor.numel() % count:
        raise ConfigError(f"a tensor of {tensor.numel()} elements can't be cut evenly for {count} ranks")
    return list(tensor.view(-1).split(tensor.numel() // count)) if tensor.numel() else [tensor] * count


def _check(name: str, tensor: torch.Tensor) -> None:
    if tensor.layout != torch.strided or tensor.device.type != "cpu":
        raise UnsupportedTensor(
            f"{name} of a tensor that is {tensor.layout} on {tensor.device}; emulated peers take dense tensors in the "
            "memory of the CPU"
        )


def _close_at_exit() -> None:
    """For scripts that never destroy their group."""
    global _shared
    if _shared is not None and _owner == os.getpid():
        shared, _shared = _shared, None
        shared.close()


_owner = os.getpid()
atexit.register(_close_at_exit)
