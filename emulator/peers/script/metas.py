"""Results of operators on meta, without values, where torch's meta kernel is missing or stricter than the real one."""

import math
from collections.abc import Callable
from typing import Any

import torch

from emulator.peers.script import recurrent

aten = torch.ops.aten


def half(count: int) -> int:
    """Return how many of a mask's elements are selected if unknown."""
    return max(1, math.ceil(count / 2))


def _nonzero(tensor: Any, selected: int | None = None) -> Any:
    count = half(tensor.numel()) if selected is None else selected
    return tensor.new_empty((count, tensor.dim()), dtype=torch.int64)


def _selected(tensor: Any, mask: Any, selected: int | None = None) -> Any:
    elements = math.prod(torch.broadcast_shapes(tensor.shape, mask.shape))
    if selected is None or not mask.numel():
        return tensor.new_empty(half(elements))
    return tensor.new_empty(selected * elements // mask.numel())


def _suppressed(boxes: Any, scores: Any, threshold: float) -> Any:
    """Return the shape of the boxes that non-maximum suppression keeps: half of them."""
    return scores.new_empty(half(scores.numel()), dtype=torch.int64)


def _counted(tensor: Any, weights: Any = None, minlength: int = 0) -> Any:
    """Return the shape of `bincount` if the script specifies the minimum number of bins, which is taken as their
    number."""
    if not minlength:
        raise NotImplementedError
    return tensor.new_empty(minlength, dtype=torch.int64 if weights is None else weights.dtype)


def _stats(image: Any, *_: Any) -> Any:
    """Return mean and inverse standard deviation of each channel, as in SyncBatchNorm."""
    width = torch.float32 if image.dtype in (torch.float16, torch.bfloat16) else image.dtype
    return tuple(image.new_empty(image.size(1), dtype=width) for _ in range(2))


def _gathered_stats(image: Any, mean: Any, *_: Any) -> Any:
    return tuple(mean.new_empty(image.size(1)) for _ in range(2))


def _reduced(
    grad: Any, image: Any, mean: Any, _: Any, weight: Any, of_input: bool, of_weight: bool, of_bias: bool
) -> Any:
    channels = image.size(1)
    sums = [mean.new_empty(channels) if of_input else None for _ in range(2)]
    of_weights = [
        weight.new_empty(channels) if wanted and weight is not None else None for wanted in (of_weight, of_bias)
    ]
    return (*sums, *of_weights)


def _gru_cell(gates: Any, hidden_gates: Any, state: Any, *_: Any) -> Any:
    return torch.empty_like(state), state.new_empty(state.size(0), 5 * state.size(1))


def _gru_cell_backward(grad: Any, workspace: Any, has_bias: bool) -> Any:
    rows, width = grad.shape
    gates = [grad.new_empty(rows, 3 * width) for _ in range(2)]
    return (*gates, torch.empty_like(grad), *[grad.new_empty(3 * width) if has_bias else None for _ in range(2)])


def _grouped(left: Any, right: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """Return the shape of a grouped GEMM; torch's meta kernel requires bfloat16, although the kernel supports other
    dtypes, too."""
    if left.dim() == right.dim() == 2:
        size = (offs.numel(), left.size(0), right.size(1))
    else:
        size = (*left.shape[-2 if right.dim() == 2 else 0 : -1], right.size(-1))
    return left.new_empty(size, dtype=out_dtype or left.dtype)


def _ctc_loss(probabilities: Any, targets: Any, lengths: Any, of_targets: Any, *_: Any) -> Any:
    """Return the shapes of losses and of their paths; unknown lengths of targets are taken to be equal."""
    steps, batch = probabilities.shape[0], probabilities.shape[1] if probabilities.dim() == 3 else 1
    longest = targets.numel() // batch if isinstance(of_targets, torch.Tensor) else max(of_targets)
    return probabilities.new_empty(batch), probabilities.new_empty(batch, steps, 2 * longest + 1)


CHOICES = {
    getattr(getattr(aten, name), overload)
    for name in ("_use_cudnn_ctc_loss", "_use_miopen_ctc_loss")
    if hasattr(aten, name)
    for overload in ("default", "Tensor")
}
"""Operators that select a library's kernel of CTC: never, as these need short targets."""

SHAPES: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys(CHOICES, lambda *_: False),
    aten._ctc_loss.default: _ctc_loss,
    aten._ctc_loss.Tensor: _ctc_loss,
    aten._ctc_loss_backward.default: lambda grad, probabilities, *_: torch.empty_like(probabilities),
    aten._ctc_loss_backward.Tensor: lambda grad, probabilities, *_: torch.empty_like(probabilities),
    **recurrent.SHAPES,
    aten._grouped_mm.default: _grouped,
    aten.nonzero.default: _nonzero,
    aten.masked_select.default: _selected,
    aten.bincount.default: _counted,
    aten.batch_norm_stats.default: _stats,
    aten.batch_norm_gather_stats_with_counts.default: _gathered_stats,
    aten.batch_norm_elemt.default: lambda image, *_: torch.empty_like(image),
    aten.batch_norm_backward_reduce.default: _reduced,
    aten.batch_norm_backward_elemt.default: lambda grad, *_: torch.empty_like(grad),
    aten._thnn_fused_gru_cell.default: _gru_cell,
    aten._thnn_fused_gru_cell_backward.default: _gru_cell_backward,
}
"""By operator."""

OF_PACKAGES: dict[str, Callable[..., Any]] = {"torchvision::nms": _suppressed}
"""Results whose size depends on values, by names of packages' operators."""
