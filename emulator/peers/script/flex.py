"""`flex_attention` in compiled code: an operator of its own, forward and backward. Its cost follows from the share of
blocks that its mask computes: the known numbers of blocks, else the mask's function, called on the host for some rows
of blocks with the known values that it captures; else half, as for other masks.
"""

import math
import types
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch._higher_order_ops.flex_attention import FlexAttentionHOP
from torch.nn.attention import flex_attention as flex_module
from torch.utils.weak import WeakIdKeyDictionary

from emulator.peers.script.device import current
from emulator.peers.script.tensors import DeviceTensor
from switchml.errors import EmulationError

HALF = 0.5
"""Share of computed blocks of an unknown mask."""
_SAMPLED = 1 << 22
"""Elements of a mask that are computed on the host."""
_kept: list[Any] = []
_shares = WeakIdKeyDictionary()
"""By the numbers of blocks of a mask, which all layers share."""


def install(is_compiled: Callable[[], bool]) -> None:
    """Replace torch's operator. `is_compiled`: whether compiled code runs."""
    library = torch.library.Library("switchml", "DEF")
    _kept.append(library)
    three = "(Tensor, Tensor, Tensor)"
    library.define(f"flex_attention(Tensor query, Tensor key, Tensor value, float share, bool has_max) -> {three}")
    inputs = "Tensor grad, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, float share"
    library.define(f"flex_attention_backward({inputs}) -> {three}")
    library.impl("flex_attention", _shapes, "Meta")
    library.impl("flex_attention_backward", _shapes_backward, "Meta")
    torch.library.register_autograd("switchml::flex_attention", _backward, setup_context=_save, lib=library)

    def attend(_: Any, query: Any, key: Any, value: Any, score_mod: Any, block_mask: Any, *options: Any) -> Any:
        if not is_compiled():
            raise EmulationError(
                "flex_attention without torch.compile materializes all scores, which can't be emulated: expected "
                "torch.compile(flex_attention), or a compiled model"
            )
        if any(one.requires_grad for one in _captured(score_mod, set())):
            raise EmulationError("flex_attention can't be emulated with a score_mod that has weights to learn")
        if torch.is_autocast_enabled("cuda"):
            query, key, value = (one.to(torch.get_autocast_dtype("cuda")) for one in (query, key, value))
        has_max = bool(options[1].get("OUTPUT_MAX")) if len(options) > 1 else False
        return torch.ops.switchml.flex_attention(query, key, value, _share(block_mask, query, key), has_max)

    FlexAttentionHOP.__call__ = attend
    # Else torch's function would call torch.compile itself, for code that the script does not compile.
    vars(flex_module)["_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"] = True


def _shapes(query: Any, key: Any, value: Any, share: float, has_max: bool) -> Any:
    size = (*query.shape[:-1], value.shape[-1])
    order = sorted(range(query.dim() - 1), key=query.stride)
    strides = [1] * query.dim()
    step = size[-1]
    for dimension in order:
        strides[dimension], step = step, step * size[dimension]
    sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
    return query.new_empty_strided(size, strides), sums, torch.empty_like(sums) if has_max else sums.new_empty(0)


def _shapes_backward(grad: Any, query: Any, key: Any, value: Any, *_: Any) -> Any:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:3], *output[:2])
    ctx.share = inputs[3]


def _backward(ctx: Any, grad: Any, *_: Any) -> Any:
    return *torch.ops.switchml.flex_attention_backward(grad, *ctx.saved_tensors, ctx.share), None, None


def _captured(one: Any, seen: set[int]) -> list[torch.Tensor]:
    """Return the tensors that a function uses besides its arguments, also in functions that it calls."""
    if id(one) in seen:
        return []
    seen.add(id(one))
    if isinstance(one, torch.Tensor):
        return [one]
    if isinstance(one, torch.nn.Module):
        return list(one.parameters())
    parts: list[Any] = []
    if isinstance(one, (tuple, list)):
        parts += one
    elif isinstance(one, partial):
        parts += [one.func, *one.args, *one.keywords.values()]
    elif isinstance(one, types.MethodType):
        parts += [one.__func__, one.__self__]
    elif isinstance(one, types.FunctionType):
        parts += [cell.cell_contents for cell in one.__closure__ or ()]
        parts += _named(one).values()
    return [tensor for part in parts for tensor in _captured(part, seen)]


def _named(function: types.FunctionType) -> dict[str, Any]:
    """Return the globals that a function names."""
    return {name: function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__}


class _Unknown(Exception):
    """A mask depends on unknown values."""


def _on_host(one: Any) -> Any:
    """Return a function of a mask with host tensors in place of the device's. Raises _Unknown."""
    if isinstance(one, DeviceTensor):
        known = current().known
        if not known.are_known([one]):
            raise _Unknown
        return known.real(one)
    if isinstance(one, (tuple, list)):
        return type(one)(map(_on_host, one))
    if isinstance(one, partial):
        return partial(
            _on_host(one.func), *map(_on_host, one.args), **{k: _on_host(v) for k, v in one.keywords.items()}
        )
    if not isinstance(one, types.FunctionType):
        return one
    used = {name: _on_host(value) for name, value in _named(one).items() if isinstance(value, DeviceTensor)}
    cells = tuple(types.CellType(_on_host(cell.cell_contents)) for cell in one.__closure__ or ())
    made = types.FunctionType(one.__code__, one.__globals__ | used, one.__name__, one.__defaults__, cells)
    made.__kwdefaults__ = one.__kwdefaults__
    return made


def _share(block_mask: Any, query: Any, key: Any) -> float:
    """Return the share of blocks of a mask (`BlockMask.as_tuple()`) that are computed."""
    blocks = block_mask[2]
    if blocks not in _shares:
        _shares[blocks] = _share_of(block_mask, query.size(-2), key.size(-2))
    return float(_shares[blocks])


def _share_of(block_mask: Any, length: int, keys: int) -> float:
    known, counts = current().known, [one for one in (block_mask[2], block_mask[4]) if one is not None]
    *_, height, width, function = block_mask
    columns = math.ceil(keys / width)
    if known.are_known(counts):
        return float(sum(known.real(one).sum().item() for one in counts) / (counts[0].numel() * columns))
    try:
        with torch.no_grad(), torch.utils._python_dispatch._disable_current_modes():
            return _sampled(_on_host(function), counts[0].shape, length, keys, height, width)
    except Exception:  # whatever the script's function raises where tensors are on the host
        known.assumed_masks += 1
        return HALF


def _sampled(function: Any, shape: Any, length: int, keys: int, height: int, width: int) -> float:
    """Return the share of blocks that have elements, for evenly spaced rows of blocks, batches and heads."""
    batches, heads, rows = shape
    chosen_b, chosen_h = (_spaced(count, 4) for count in (batches, heads))
    chosen_rows = _spaced(rows, max(4, _SAMPLED // (height * keys * len(chosen_b) * len(chosen_h))))
    at = (chosen_rows[:, None] * height + torch.arange(height)).reshape(-1).clamp(max=length - 1)
    columns = math.ceil(keys / width)
    with torch.device("cpu"):
        index = (chosen_b[:, None, None, None], chosen_h[None, :, None, None], at[:, None], torch.arange(keys))
        mask = function(*index)
        if type(mask) is not torch.Tensor:
            raise _Unknown
        mask = mask.expand(len(chosen_b), len(chosen_h), len(at), keys)
    padded = torch.nn.functional.pad(mask, (0, columns * width - keys))
    blocks = padded.reshape(len(chosen_b), len(chosen_h), -1, height, columns, width).any(-1).any(3)
    return float(blocks.double().mean())


def _spaced(count: int, most: int) -> torch.Tensor:
    """Return at most so many numbers below `count`, evenly spaced: alternately rounded down and up, so that their mean
    is that of all."""
    taken = min(count, most)
    exact = (torch.arange(taken) + 0.5) * count / taken - 0.5
    return torch.where(torch.arange(taken) % 2 == 0, exact.floor(), exact.ceil()).long()
