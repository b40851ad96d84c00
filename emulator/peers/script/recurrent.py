"""LSTM, GRU and plain recurrent layers as cuDNN runs them: all steps, layers and directions are one operator, forward
and backward (`aten._cudnn_rnn`). Here are their dispatch, shapes and kernels; `costs.py` has their durations.

The kernels are those of cuDNN's standard algorithm: products with the inputs of all steps at once, then for each step a
product with the state and an element-wise kernel. Not modeled: layers that run concurrently, persistent kernels.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from emulator.peers.script.operators import Operator

aten = torch.ops.aten

_GATES = {0: 1, 1: 1, 2: 4, 3: 3}
"""By cudnnRNNMode_t: ReLU, tanh, LSTM, GRU."""
_LSTM = 2
_KEPT = 2
"""States kept for backward beside the gates (assumed): the cell, or the reset state, and the output."""


@dataclass
class Work:
    """Kernels of an operator. `products`: (m, n, k, how many); `moved_bytes`: of `others`, the element-wise kernels."""

    products: list[tuple[float, float, float, int]] = field(default_factory=list)
    moved_bytes: float = 0.0
    others: int = 0

    @property
    def kernels(self) -> int:
        return self.others + sum(one[3] for one in self.products)


def work(operator: Operator) -> Work:
    """Return the kernels of a recurrent operator, forward or backward."""
    options, found = operator.options, Work()
    is_backward = operator.base.endswith("backward")
    data, weights = operator.inputs[0], operator.inputs[1 : 1 + len(options["weight"])]
    sizes = options["batch_sizes"]
    steps = len(sizes) or data.size[1 if options["batch_first"] else 0]
    rows = data.elements // data.size[-1]
    batch, hidden = rows / max(1, steps), options["hidden_size"]
    of_input, _, _, of_weights = options["output_mask"] if is_backward else (True, True, True, False)
    each = options["weight_stride0"]
    for layer, first in enumerate(range(0, len(weights), each)):
        (gates, inner), state = weights[first].size, weights[first + 1].size[1]
        products = found.products
        if not is_backward:
            products += [(rows, gates, inner, 1), (batch, gates, state, steps)]
        else:
            products.append((batch, state, gates, steps))
            if of_input or layer >= (2 if options["bidirectional"] else 1):
                products.append((rows, inner, gates, 1))
            if of_weights:
                products += [(gates, inner, rows, 1), (gates, state, rows, 1)]
        if options["proj_size"]:
            products.append((batch, state, hidden, steps) if not is_backward else (batch, hidden, state, steps))
            products += [(state, hidden, rows, 1)] if of_weights else []
        found.others += steps
        found.moved_bytes += rows * ((2 if is_backward else 1) * gates + 4 * hidden) * data.element_bytes
    return found


# -- dispatch --


def install(library: torch.library.Library) -> dict[str, Callable[..., Any]]:
    """Register the layers for device tensors; return them by operator name."""
    found: dict[str, Callable[..., Any]] = {}
    for mode, name in enumerate(("rnn_relu", "rnn_tanh", "lstm", "gru")):
        for overload, layer in (("input", _Padded(mode, name)), ("data", _Packed(mode, name))):
            found[f"aten::{name}.{overload}"] = layer
            for key in ("AutogradCUDA", "CUDA"):
                library.impl(f"{name}.{overload}", layer, key)
    found["aten::_pack_padded_sequence"] = _pack
    return found


def _pack(data: Any, lengths: Any, batch_first: bool) -> Any:
    """Pack a batch of sequences in falling order of length, whose result is as long as all together."""
    if batch_first:
        data = data.transpose(0, 1)
    parts, sizes, begin = [], list[int](), 0
    ends = lengths.tolist()
    for count in range(len(ends), 0, -1):
        end = ends[count - 1]
        if end > begin:
            parts.append(data[begin:end, :count].reshape(-1, *data.shape[2:]))
            sizes += [count] * (end - begin)
            begin = end
    return torch.cat(parts), torch.tensor(sizes)


@dataclass(frozen=True)
class _Layers:
    mode: int
    name: str

    def _run(self, data: Any, states: Any, how: tuple[Any, ...], batch_first: bool, batch_sizes: list[int]) -> Any:
        params, has_biases, layers, dropout, train, bidirectional = how
        hidden, cell = states if self.mode == _LSTM else (states, None)
        if torch.is_autocast_enabled("cuda"):
            to = torch.get_autocast_dtype("cuda")
            data, hidden, cell, *params = (
                one.to(to) if one is not None else None for one in (data, hidden, cell, *params)
            )
        width = hidden.size(2) if cell is None else cell.size(2)
        projected = hidden.size(2) if hidden.size(2) != width else 0
        each = (4 if has_biases else 2) + bool(projected)
        options = (self.mode, width, projected, layers, batch_first, dropout, train, bidirectional, batch_sizes, None)
        output, hidden, cell, *_ = aten._cudnn_rnn(data, params, each, None, hidden, cell, *options)
        return (output, hidden, cell) if self.mode == _LSTM else (output, hidden)


class _Padded(_Layers):
    def __call__(self, data: Any, states: Any, *how: Any) -> Any:
        original = getattr(aten, self.name).input
        if not _is_acceptable(data):
            return original.decompose(data, states, *how)
        return self._run(data, states, how[:-1], how[-1], [])


class _Packed(_Layers):
    def __call__(self, data: Any, batch_sizes: Any, states: Any, *how: Any) -> Any:
        original = getattr(aten, self.name).data
        if not _is_acceptable(data):
            return original.decompose(data, batch_sizes, states, *how)
        return self._run(data, states, how, False, batch_sizes.tolist())


def _is_acceptable(data: Any) -> bool:
    return bool(torch.backends.cudnn.is_acceptable(data)) and data.numel() > 0


# -- shapes --


def _forward(data: Any, weight: Any, stride: int, buffer: Any, hx: Any, cx: Any, mode: int, *how: Any) -> Any:
    hidden, _, layers, _, _, train, bidirectional = how[:7]
    output, hy, cy, *_ = aten._cudnn_rnn(data, weight, stride, buffer, hx, cx, mode, *how)
    rows, width = data.numel() // data.size(-1), (_GATES[mode] + (_KEPT if mode > 1 else 1)) * hidden
    kept = rows * width * layers * (2 if bidirectional else 1) * data.element_size() if train else 0
    reserve = data.new_empty(kept, dtype=torch.uint8)
    return output, hy, data.new_empty(0) if cx is None else cy, reserve, data.new_empty(0)


def _backward(data: Any, weight: Any, stride: int, buffer: Any, hx: Any, cx: Any, *_: Any) -> Any:
    of_cell = None if cx is None else torch.empty_like(cx)
    return torch.empty_like(data), torch.empty_like(hx), of_cell, [torch.empty_like(one) for one in weight]


def _flattened(weights: Any, *_: Any) -> Any:
    return weights[0].new_empty(sum(one.numel() for one in weights))


SHAPES: dict[Any, Callable[..., Any]] = {
    aten._cudnn_rnn.default: _forward,
    aten._cudnn_rnn_backward.default: _backward,
    aten._cudnn_rnn_flatten_weight.default: _flattened,
}
"""Results on meta, as in `values.py`."""
