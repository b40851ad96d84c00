"""Selection of a process group's collectives, other than the all-reduce of sums, that use the aggregator: those of
dense tensors, if the aggregator supports more than sums (docs/protocol.md, section 11), unless SWITCHML_COLLECTIVES=0.
Each function returns a Work, or None if the collective is left to Gloo; that depends only on properties that are equal
on all ranks. CUDA tensors are staged in pinned host memory (cuda.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist

from host_agent.collectives import BITS, SUMS, CollectiveCall
from host_agent.pytorch.work import AllReduceWork, CallbackThreads, copy_back, flat_memory, in_order
from host_agent.tensors import ITEM_BYTES

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Work

    from host_agent.base import Agent
    from host_agent.calls import OnDone
    from host_agent.pytorch.cuda import CallAgent, CudaStaging

OPS = {"SUM": "sum", "AVG": "mean", "MIN": "min", "MAX": "max", "BAND": "band", "BOR": "bor", "BXOR": "bxor"}
"""Ops of torch → ops of an agent's collectives. PRODUCT is left to Gloo, PREMUL_SUM is a sum (premultiplied.py)."""


class Group(Protocol):
    """Interface of a process group used here."""

    agent: Agent | None
    callbacks: CallbackThreads
    notes_shapes: bool

    def rank(self) -> int: ...

    def size(self) -> int: ...

    def seconds(self, timeout: timedelta | None) -> float: ...

    def call_agent(self, submit: Callable[[Agent, OnDone], None], done: OnDone) -> None: ...

    def staging(self, tensors: Sequence[torch.Tensor]) -> CudaStaging | None: ...

    def work_type(self, tensors: list[torch.Tensor]) -> Callable[..., AllReduceWork]: ...

    def stage(
        self, source: torch.Tensor, target: torch.Tensor, numel: int, work: AllReduceWork, call_agent: CallAgent
    ) -> None: ...


class Batch:
    """The collectives of one torch call, with one Work that completes when all of them have."""

    def __init__(
        self,
        group: Group,
        outputs: list[torch.Tensor],
        kind: str,
        moves: int = 1,
        inputs: list[torch.Tensor] | None = None,
    ):
        self._group, self._kind = group, kind
        self._cuda = group.staging(outputs)
        self.work = group.work_type(outputs)(outputs, moves, group.callbacks, span=f"switchml:{kind}", inputs=inputs)

    def add(
        self, source: torch.Tensor, target: torch.Tensor, numel: int, timeout_s: float, op: str = "sum", root: int = 0
    ) -> None:
        """Add one collective of `numel` elements per rank between contiguous tensors; tensors on a GPU are staged on
        the host."""
        item, dtype = source.element_size(), str(source.dtype).removeprefix("torch.")
        shape = (target if self._kind == "reduce_scatter" else source).shape
        alike = f" of shape {list(shape)} on {source.device.type}" if self._group.notes_shapes else ""

        def call_agent(source: torch.Tensor, target: torch.Tensor, numel: int, note: str, done: OnDone) -> None:
            at = source.data_ptr(), target.data_ptr()
            collective = CollectiveCall(self._kind, *at, numel, dtype, item, op, root, alike + note)
            self._group.call_agent(
                lambda agent, on_done: agent.submit_collective(
                    collective, on_done, timeout_s=timeout_s, keep=(source, target)
                ),
                done,
            )

        self._group.stage(source, target, numel, self.work, call_agent)

    def output(self, tensor: torch.Tensor) -> torch.Tensor:
        """Contiguous memory with a tensor's values, whose result is copied back to the tensor at the end."""
        return flat_memory(tensor, self.work)

    def spread(self, whole: torch.Tensor, outputs: list[torch.Tensor]) -> Callable[[], None]:
        """Function that copies the rows of a gathered tensor to `outputs`, on a GPU after the copy to the device."""
        place = self._cuda.on_side(whole) if self._cuda is not None and whole.is_cuda else nullcontext

        def copy() -> None:
            with place():
                for out, part in zip(outputs, whole, strict=True):
                    copy_back(part.view_as(out), out)

        return copy


def agent_op(group: Group, tensors: Sequence[torch.Tensor], op: Any = None) -> str | None:
    """The agent's name of `op` ("sum" for None) if the aggregator supports a collective of such tensors, else None."""
    if group.agent is None or not group.agent.takes_collectives:
        return None
    devices = {each.device.type for each in tensors}
    if devices not in ({"cpu"}, {"cuda"}) or any(each.layout != torch.strided or not each.numel() for each in tensors):
        return None
    if op is None:
        return "sum"
    name = next((ours for theirs, ours in OPS.items() if op == getattr(dist.ReduceOp, theirs)), None)
    dtype = tensors[0].dtype
    if name in SUMS:
        return name if str(dtype).removeprefix("torch.") in ITEM_BYTES else None
    is_real = not dtype.is_complex and dtype.itemsize <= 8
    return name if name is not None and is_real and not (name in BITS and dtype.is_floating_point) else None


def _alike(outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], factor: int) -> bool:
    """Whether each output has `factor` times as many elements as its input, and the same dtype."""
    return len(outputs) == len(inputs) and all(
        out.numel() == factor * each.numel() and out.dtype == each.dtype
        for out, each in zip(outputs, inputs, strict=True)
    )


def all_reduce(group: Group, tensors: list[torch.Tensor], op: Any, timeout_s: float) -> Work | None:
    """In-place all-reduce of each tensor, for ops other than sums."""
    name = agent_op(group, tensors, op)
    if name is None or name in SUMS or len({each.dtype for each in tensors}) > 1:
        return None
    batch = Batch(group, tensors, "all_reduce", len(tensors))
    for tensor in map(batch.output, tensors):
        batch.add(tensor, tensor, tensor.numel(), timeout_s, name)
    return batch.work


def broadcast(group: Group, tensors: list[torch.Tensor], root: int, timeout_s: float) -> Work | None:
    if len(tensors) != 1 or agent_op(group, tensors) is None:
        return None
    batch = Batch(group, tensors, "broadcast")
    tensor = batch.output(tensors[0])
    batch.add(tensor, tensor, tensor.numel(), timeout_s, root=root)
    return batch.work


def reduce(group: Group, tensors: list[torch.Tensor], root: int, op: Any, timeout_s: float) -> Work | None:
    name = agent_op(group, tensors, op)
    if name is None or len(tensors) != 1:
        return None
    batch = Batch(group, tensors, "reduce")
    tensor = batch.output(tensors[0])
    batch.add(tensor, tensor, tensor.numel(), timeout_s, name, root)
    return batch.work


def all_gather_into(
    group: Group, outputs: list[torch.Tensor], inputs: list[torch.Tensor], timeout_s: float
) -> Work | None:
    if agent_op(group, [*outputs, *inputs]) is None or not _alike(outputs, inputs, group.size()):
        return None
    batch = Batch(group, outputs, "all_gather", len(inputs), inputs)
    for out, each in zip(outputs, inputs, strict=True):
        batch.add(in_order(each), batch.output(out), each.numel(), timeout_s)
    return batch.work


def all_gather(
    group: Group, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], timeout_s: float
) -> Work | None:
    """All-gather into a list of tensors of the input's size."""
    if len(inputs) != 1 or len(outputs) != 1 or agent_op(group, [*outputs[0], *inputs]) is None:
        return None
    if len(outputs[0]) != group.size() or not all(_alike([out], inputs, 1) for out in outputs[0]):
        return None
    batch = Batch(group, outputs[0], "all_gather", 1, inputs)
    source = in_order(inputs[0])
    whole = torch.empty((group.size(), source.numel()), dtype=source.dtype, device=source.device)
    batch.work.before_finish.append(batch.spread(whole, outputs[0]))  # before the Work can complete
    batch.add(source, whole, source.numel(), timeout_s)
    return batch.work


def reduce_scatter_from(
    group: Group, outputs: list[torch.Tensor], inputs: list[torch.Tensor], op: Any, timeout_s: float
) -> Work | None:
    name = agent_op(group, [*inputs, *outputs], op)
    if name is None or not _alike(inputs, outputs, group.size()):
        return None
    batch = Batch(group, outputs, "reduce_scatter", len(inputs), inputs)
    for out, each in zip(outputs, inputs, strict=True):
        batch.add(in_order(each), batch.output(out), out.numel(), timeout_s, name)
    return batch.work


def reduce_scatter(
    group: Group, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], op: Any, timeout_s: float
) -> Work | None:
    """Reduce-scatter from a list of tensors of the output's size."""
    if len(outputs) != 1 or len(inputs) != 1 or len(inputs[0]) != group.size():
        return None
    if not all(_alike([each], outputs, 1) and each.device == outputs[0].device for each in inputs[0]):
        return None
    whole = torch.cat([in_order(each).reshape(-1) for each in inputs[0]])
    return reduce_scatter_from(group, outputs, [whole], op, timeout_s)


def barrier(group: Group, timeout_s: float) -> Work | None:
    if group.agent is None or not group.agent.takes_collectives:
        return None
    batch = Batch(group, [], "barrier")
    nothing = torch.empty(0, dtype=torch.uint8)
    batch.add(nothing, nothing, 0, timeout_s)
    return batch.work


def dispatch(group: Group, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Work | None:
    """Handle a call of ProcessGroup's method `name` with an options object, as torch.distributed calls it; other
    calling conventions are left to Gloo."""
    if name not in _METHODS or set(kwargs) - {"opts"}:
        return None
    given = [*args, *kwargs.values()]
    if not given or not hasattr(given[-1], "timeout") or isinstance(given[-1], torch.Tensor):
        return None
    *tensors, opts = given
    return _METHODS[name](group, tensors, opts, group.seconds(opts.timeout if opts.timeout > timedelta(0) else None))


KINDS = {
    "broadcast": "broadcast",
    "reduce": "reduce",
    "barrier": "barrier",
    "monitored_barrier": "barrier",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send",
    "recv": "receive",
    "recv_anysource": "receive",
}
"""Methods of ProcessGroup → collective under which `switchml status` counts them; `kind_of` handles the others."""
_STEMS = {"allreduce": "all_reduce", "allgather": "all_gather", "all_gather": "all_gather", "alltoall": "all_to_all",
          "all_to_all": "all_to_all", "reduce_scatter": "reduce_scatter"}  # fmt: skip


def kind_of(method: str) -> str | None:
    """The collective of a ProcessGroup method; None if it is not a collective."""
    stem = next((kind for stem, kind in _STEMS.items() if method.lstrip("_").startswith(stem)), None)
    return stem or KINDS.get(method)


_Method = Callable[[Group, list[Any], Any, float], "Work | None"]
_METHODS: dict[str, _Method] = {
    "broadcast": lambda group, t, opts, s: broadcast(group, list(t[0]), opts.rootRank, s),
    "reduce": lambda group, t, opts, s: reduce(group, list(t[0]), opts.rootRank, opts.reduceOp, s),
    "barrier": lambda group, t, opts, s: barrier(group, s),
    "allgather": lambda group, t, opts, s: all_gather(group, list(t[0]), list(t[1]), s),
    "reduce_scatter": lambda group, t, opts, s: reduce_scatter(group, list(t[0]), list(t[1]), opts.reduceOp, s),
    "_allgather_base": lambda group, t, opts, s: all_gather_into(group, [t[0]], [t[1]], s),
    "allgather_into_tensor_coalesced": lambda group, t, opts, s: all_gather_into(group, list(t[0]), list(t[1]), s),
    "_reduce_scatter_base": lambda group, t, opts, s: reduce_scatter_from(group, [t[0]], [t[1]], opts.reduceOp, s),
    "reduce_scatter_tensor_coalesced": lambda group, t, opts, s: reduce_scatter_from(
        group, list(t[0]), list(t[1]), opts.reduceOp, s
    ),
}
_METHODS |= {
    "all_gather_single": _METHODS["_allgather_base"],
    "all_gather_single_coalesced": _METHODS["allgather_into_tensor_coalesced"],
    "reduce_scatter_single": _METHODS["_reduce_scatter_base"],
    "reduce_scatter_single_coalesced": _METHODS["reduce_scatter_tensor_coalesced"],
}
"""Methods of ProcessGroup, by their names in several versions of torch."""
