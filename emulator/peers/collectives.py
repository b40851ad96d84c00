"""Collectives of a process group in all calling conventions that torch uses. Each becomes one `_call` with its name,
its size and a function that exchanges its values (exchange.py): the groups of emulated worlds (process_group.py) and of
scripts on emulated GPUs (script/group.py) implement it differently.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from emulator.peers.exchange import Exchange, Tensors
from emulator.peers.values import Reduction
from switchml.errors import ConfigError

Args = tuple[Any, ...]
Options = dict[str, Any]
"""Arguments after the tensors in torch's calls."""

if TYPE_CHECKING:
    # Torch calls most methods in two or three ways; its stub has different ones in each version.
    _ProcessGroup = Any
else:
    _ProcessGroup = dist.ProcessGroup


class Collectives(_ProcessGroup):
    """Collectives, and the general queries that torch makes of every group. `_me`: this rank's index in the group."""

    _me: int
    _store: dist.Store
    _name: str
    _description: str
    _number: int
    """Number of collectives begun."""

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    def get_group_store(self) -> dist.Store:
        return self._store

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        return self._number

    def _exchange(self, operation: str) -> Exchange:
        """Return the exchange with the values of `operation`."""
        raise NotImplementedError

    def _call(
        self,
        name: str,
        size_bytes: float,
        outputs: list[torch.Tensor],
        acts: Sequence[Callable[[int], None]],
        inputs: Tensors = (),
        operation: str = "",
    ) -> Any:
        """Run one collective and return it as a Work: `acts` exchange its values, several if it was coalesced, each
        with its own number. `operation`: the operation to time, if not `name`."""
        raise NotImplementedError

    def _cut(self, tensor: torch.Tensor, splits: Sequence[int] = ()) -> list[torch.Tensor]:
        """Split a tensor into one chunk per rank."""
        return _chunks(tensor, self.size(), splits)

    def allreduce(self, tensors: Tensors | torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return self._each("all_reduce", tensors, _op(args, kwargs))

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Tensors | torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        op = args[0].reduceOp if args and hasattr(args[0], "reduceOp") else _op(args[1:], kwargs)
        return self._each("reduce", tensors, op, root_of(args, kwargs))

    def broadcast(self, tensors: Tensors | torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return self._each("broadcast", tensors, root_of(args, kwargs))

    def _each(self, operation: str, tensors: Tensors | torch.Tensor, *arguments: Any) -> Any:
        """Run `operation` of `Exchange`, in place, on each of `tensors`."""
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        act = getattr(self._exchange(operation), operation)
        acts = [partial(act, tensor, *arguments) for tensor in tensors]
        return self._call(operation, size_of(tensors), tensors, acts)

    def allgather(self, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        size = sum(size_of(outs) for outs in outputs)
        acts = [partial(self._exchange("all_gather").all_gather, *each) for each in zip(outputs, inputs, strict=True)]
        return self._call("all_gather", size, [tensor for outs in outputs for tensor in outs], acts, list(inputs))

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return self.all_gather_single_coalesced([output], [input])

    all_gather_single = _allgather_base

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, *args: Any, **kwargs: Any) -> Any:
        return self.allgather([self._cut(output) for output in outputs], list(inputs))

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather_coalesced(self, output_lists: Sequence[Tensors], inputs: Tensors, *args: Any, **kwargs: Any) -> Any:
        return self.allgather([[outs[i] for outs in output_lists] for i in range(len(inputs))], list(inputs))

    def gather(self, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs] if outputs else [], [inputs]
        root, (tensor,) = root_of(args, kwargs), inputs
        outs = list(outputs[0]) if self._me == root else []
        size = size_of([tensor]) * self.size()
        acts = [partial(self._exchange("all_gather").gather, outs, tensor, root)]
        return self._call("gather", size, outs, acts, [tensor], "all_gather")

    def scatter(self, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs] if inputs else []
        root, (out,) = root_of(args, kwargs), outputs
        chunks = list(inputs[0]) if self._me == root else []
        acts = [partial(self._exchange("all_gather").scatter, out, chunks, root)]
        return self._call("scatter", size_of([out]) * self.size(), [out], acts, chunks, "all_gather")

    def reduce_scatter(self, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        op = _op(args, kwargs)
        acts = [
            partial(self._exchange("reduce_scatter").reduce_scatter, *each, op)
            for each in zip(outputs, inputs, strict=True)
        ]
        size = sum(size_of(chunks) for chunks in inputs)
        return self._call("reduce_scatter", size, list(outputs), acts, [t for chunks in inputs for t in chunks])

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return self.reduce_scatter_single_coalesced([output], [input], *args, **kwargs)

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, *args: Any, **kwargs: Any) -> Any:
        return self.reduce_scatter(list(outputs), [self._cut(one) for one in inputs], *args, **kwargs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        acts = [partial(self._exchange("all_to_all").all_to_all, outputs, inputs)]
        return self._call("all_to_all", size_of(inputs), list(outputs), acts, list(inputs))

    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        outs, chunks = (self._cut(one, splits) for one, splits in ((output, output_splits), (input, input_splits)))
        work = self.alltoall(outs, chunks)
        work.tensors = [output]
        return work

    all_to_all_single = alltoall_base

    def barrier(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("barrier", 0.0, [], [lambda number: None])


def _option(args: Args, kwargs: Options, name: str, keyword: str, default: object) -> Any:
    """Return an option of a call in either convention of ProcessGroup: an options object, or separate arguments."""
    value = args[0] if args else kwargs.get("opts", kwargs.get(keyword, default))
    return getattr(value, name) if hasattr(value, name) else value


def _op(args: Args, kwargs: Options) -> Reduction:
    op: Reduction = _option(args, kwargs, "reduceOp", "op", dist.ReduceOp.SUM)
    return op


def root_of(args: Args, kwargs: Options) -> int:
    return int(_option(args, kwargs, "rootRank", "root", 0))


def size_of(tensors: Sequence[torch.Tensor]) -> float:
    """Return the total bytes of `tensors`."""
    return float(sum(tensor.numel() * tensor.element_size() for tensor in tensors))


def _chunks(tensor: torch.Tensor, count: int, splits: Sequence[int] = ()) -> list[torch.Tensor]:
    """Return views of a tensor, one per rank, split along its first dimension (or evenly by elements, without
    `splits`)."""
    if splits:
        return list(tensor.split(list(splits)))
    if tensor.numel() % count:
        raise ConfigError(f"a tensor of {tensor.numel()} elements can't be cut evenly for {count} ranks")
    return list(tensor.view(-1).split(tensor.numel() // count)) if tensor.numel() else [tensor] * count
