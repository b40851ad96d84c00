"""One rank's stage for torch.distributed.pipelining, for modules that pass on None, have buffers, or take integers:
torch's stages accept tensors only, and infer shapes by running the module on uninitialized memory."""

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.stage import _PipelineStageBase
from torch.utils._pytree import tree_map_only

from switchml.errors import UnsupportedTensor

_NOTHING = (0, 0, 0, 0)
"""Dimensions after the first of the placeholder for None, a bool tensor without elements."""


def without_none(values: Any, samples: int) -> Any:
    """`values` with each None replaced by a tensor of `samples` along dimension 0."""
    if isinstance(values, tuple | list):
        return type(values)(without_none(value, samples) for value in values)
    return torch.empty((samples, *_NOTHING), dtype=torch.bool) if values is None else values


def with_none(values: Any) -> Any:
    """Inverse of `without_none`."""
    return tree_map_only(torch.Tensor, lambda t: None if _is_nothing(t) else t, values)


def _is_nothing(tensor: torch.Tensor) -> bool:
    return tensor.dtype == torch.bool and tensor.ndim == 5 and tensor.shape[1:] == _NOTHING


class Stage(PipelineStage):
    """A stage of `torch.distributed.pipelining` whose module may take and return None in a tuple."""

    def forward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward_maybe_with_nosync(*with_none(args), **kwargs)  # type: ignore[no-untyped-call]  # torch has no types for it
        return without_none(output, 1)

    def _compute_outputs(self, *args: Any, module: nn.Module, **kwargs: Any) -> Any:
        """Run a forward pass from which torch infers shapes: without effects on buffers (of batch norms), and with
        integers that are valid for an embedding."""
        if not self.is_first:
            with torch.no_grad():
                for each in args:
                    each.zero_()
        buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
        return without_none(torch.func.functional_call(module, buffers, with_none(args), kwargs), 1)


def send_only_what_fits(stage: _PipelineStageBase) -> None:
    """Make sending raise UnsupportedTensor for an activation whose shape or dtype differs from the first micro-batch's,
    for which the next stage has memory: Gloo aborts a process that receives more than it has posted."""
    if stage.is_last:
        return
    send_ops = stage.get_fwd_send_ops

    def checked(micro_batch: int) -> Any:
        outputs, _ = stage.fwd_cache[micro_batch]
        for number, (output, meta) in enumerate(zip(outputs, stage._stage_meta.outputs or outputs, strict=True)):
            if (output.shape, output.dtype) != (meta.shape, meta.dtype):
                raise UnsupportedTensor(
                    f"output {number} of stage {stage.stage_index}, micro-batch {micro_batch}, is {output.dtype}, "
                    f"{tuple(output.shape)}: expected {meta.dtype}, {tuple(meta.shape)}, as that of micro-batch 0"
                )
        return send_ops(micro_batch)

    stage.get_fwd_send_ops = checked  # type: ignore[method-assign, assignment]  # torch looks it up there


def keywords(module: nn.Module, names: Iterable[str]) -> set[str]:
    """Those of `names` that the module's forward accepts."""
    parameters = inspect.signature(module.forward).parameters.values()
    if any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters):
        return set(names)
    return set(names) & {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
