"""The process group of the backend `switchml-emulated`: each collective's values go to `exchange.py`, its time to
`world.py`. Sub-groups share the world of the default group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from emulator.peers.exchange import Exchange
from emulator.peers.shared import Shared, begin, current, gloo_of
from emulator.peers.work import PeersWork
from emulator.peers.world import Communicator, World
from switchml.errors import ConfigError, UnsupportedTensor

_STAMP, _STAMP_BACK, _DATA = range(3)
"""What goes between two real ranks for one send: tags 3t + these."""


def create(options) -> EmulatedProcessGroup:
    """The group that torch's _DistributedBackendOptions describe."""
    ranks = tuple(options.global_ranks_in_group)
    if not ranks:
        shared, gloo, wrapper = begin(options)
        ranks = tuple(range(shared.world.settings.world))
        return EmulatedProcessGroup(shared, ranks, gloo, wrapper, options, is_default=True)
    shared = current()
    members = tuple(rank for rank in ranks if rank in shared.world.real)
    gloo, wrapper = gloo_of(options, members, members.index(shared.world.rank))
    return EmulatedProcessGroup(shared, ranks, gloo, wrapper, options, is_default=False)


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
        if self._is_default:
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
    value = args[0] if args else kwargs.get("opts", kwargs.get(keyword, default))
    return getattr(value, name) if hasattr(value, name) else value


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
