"""Error bounds of activations: COMET's rule (Jin et al., VLDB 2022), with measurements in some steps.

1. A layer's weight gradient sums products of an activation x and a gradient L of the layer's output, K for each weight:
   the batch, times the positions at which a convolution's weight is used. Compression changes each of the R K nonzero
   activations by an independent, uniformly distributed error of at most e. That gives the weight gradient an error with
   standard deviation  s = e * rms(L) * sqrt(R K / 3).  (COMET has 0.32 * mean|L| * sqrt(R N) * e, N the batch.)
2. Training tolerates s up to 1 % of the mean magnitude of the weight's momentum (COMET), as SGD accumulates it, or of
   the gradient if there is none. So  e = 0.01 * mean|momentum| / (rms(L) * sqrt(R K / 3)).
3. e is for the layer's input. Tensors saved by operators between layers (GELU, softmax, attention) affect the gradient
   of the previous layer, which may have the same relative error; likewise inputs of normalization, whose gradients
   depend on them divided by their standard deviation. For these, e is relative to the root mean square.
4. Nor does e exceed that share of 1, however large the values are: an error of the logarithm that log-softmax saves is
   a relative error of its exponential, and sigmoid, GELU and the like are nonlinear within 1, too. Nor that share of
   the standard deviation that a normalization divides by. Outliers are stored separately (`outliers.py`), and not part
   of the root mean square. Which operators need more than that is in `operators.py`.
5. A tensor that several layers save gets the smallest of their bounds. All values are measured again after `every`
   steps, and in steps 16 and 128, while gradients change fastest.
"""

import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from host_agent.memory.parts import parts_of

SHARE = 0.01
"""Maximum error of a gradient, relative to the momentum (COMET)."""
START = 1e-3
"""Initial bound before any measurement, relative to the root mean square."""
LEAST, MOST = 1e-4, 0.5
"""Range of bounds, relative to the root mean square: beyond it, a bound has no effect on sizes, or violates the rule's
assumptions."""
EARLY = (0, 16, 128)
"""Steps in which gradients are measured, in addition to each `every`th."""


@dataclass
class Layer:
    """A module with its own weights. `share`: its error bound, relative to its input's root mean square."""

    name: str
    weight: nn.Parameter
    share: float = START
    input_rms: float = 0.0
    inputs: float = 0.0
    """R: share of nonzero elements in its input."""
    products: float = 0.0
    """K: number of products summed for each weight."""
    gradient_rms: float = 0.0
    weight_gradient: float = 0.0
    """Mean magnitude of the weight's gradient."""

    def update(self, momentum: float) -> None:
        """Set `share` by the rule. `momentum`: mean magnitude; 0 if there is none."""
        allowed = SHARE * (momentum or self.weight_gradient)
        spread = self.gradient_rms * math.sqrt(self.inputs * self.products / 3)
        if self.weight.dim() > 1:
            spread *= self.input_rms
        if 0 < allowed < math.inf and 0 < spread < math.inf:  # otherwise there was no gradient, or an overflow
            self.share = min(max(allowed / spread, LEAST), MOST)


@dataclass
class Slot:
    """A tensor saved in each step, identified by its index among those saved after the weights of `layers[0]` came into
    use. All of `layers` save it."""

    rms: float = math.nan
    layers: list[Layer] = field(default_factory=list)


Key = tuple[str, int]
Bounding = Generator[torch.Tensor, list[Any], float]
"""Coroutine that yields vectors of numbers that it needs, as codecs do (`codecs.py`), and returns the bound."""


class Fixed:
    """The same relative bound for every vector."""

    def __init__(self, share: float):
        self._share = share

    def claim(self) -> Key:
        return "", 0

    def of(self, vector: torch.Tensor, key: Key, width: float, most: float) -> Bounding:
        return _bound(min(self._share, most), (yield from _measuring(vector))[1], width)

    def also(self, key: Key) -> None:
        """Does nothing, since all bounds are equal."""


class Measured:
    """COMET's bounds of saved tensors. `optimizer`: provides the momentum; `every`: steps between measurements."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer | None, every: int):
        self._optimizer, self._every = optimizer, every
        self.layers: dict[nn.Module, Layer] = dict(_layers(model))
        self._now: Layer | None = None
        self._counts: dict[str, int] = {}
        self._slots: dict[Key, Slot] = {}
        self._step = -1
        self.is_measuring = False
        self._is_fresh = False

    def begin(self) -> None:
        """Called when a forward pass begins."""
        if self._is_fresh:
            self._update()
        self._step += 1
        self._now = None
        self._counts.clear()
        self.is_measuring = self._step in EARLY or self._step % self._every == 0
        if self.is_measuring:
            self._slots.clear()

    def enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Called when a layer's forward pass begins."""
        layer = self._now = self.layers[module]
        if self.is_measuring:
            layer.products = layer.gradient_rms = layer.weight_gradient = 0.0
            given = next((each for each in args if _is_float(each)), None)
            layer.inputs, layer.input_rms = _size(given) if given is not None else (0.0, 0.0)

    def leave(self, module: nn.Module, output: Any) -> None:
        """Called when a layer's forward pass has ended."""
        if not self.is_measuring:
            return
        layer = self.layers[module]
        first = output[0] if isinstance(output, tuple | list) and output else output
        if not _is_float(first) or not first.requires_grad:
            return
        outputs = layer.weight.shape[0] if layer.weight.dim() > 1 else layer.weight.numel()
        layer.products = first.numel() / outputs

        def measure(gradient: torch.Tensor) -> None:
            layer.gradient_rms = float(gradient.float().norm()) / math.sqrt(gradient.numel())
            if not self._is_fresh:
                self._is_fresh = True
                torch.autograd.Variable._execution_engine.queue_callback(self._measure_weights)

        first.register_hook(measure)

    def claim(self) -> Key:
        """Key of a vector of floats that the current layer is the first to save."""
        name = self._now.name if self._now else ""
        count = self._counts[name] = self._counts.get(name, -1) + 1
        return name, count

    def of(self, vector: torch.Tensor, key: Key, width: float, most: float) -> Bounding:
        """Coroutine that computes the bound of a vector. `width`: standard deviation that the tensor is divided by, if
        any, else infinite; `most`: largest share."""
        slot = self._slots.get(key) or Slot(layers=[self._now] if self._now else [])
        if self._now:  # otherwise it belongs to a compiled graph, or precedes all layers
            self._slots[key] = slot
        layers = slot.layers or [layer for layer in self.layers.values() if layer.gradient_rms]
        share = min((layer.share for layer in layers), default=START)
        if math.isnan(slot.rms):
            slot.rms = (yield from _measuring(vector))[1]
        return _bound(min(share, most), slot.rms, width)

    def also(self, key: Key) -> None:
        """Note that the current layer also saves the tensor of `key`."""
        slot = self._slots.get(key)
        if slot is not None and self._now is not None and self._now not in slot.layers:
            slot.layers.append(self._now)

    def _measure_weights(self) -> None:
        """Measure weight gradients; called when the backward pass has ended."""
        for layer in self.layers.values():
            if layer.weight.grad is not None:
                layer.weight_gradient = _mean_magnitude(layer.weight.grad)

    def _update(self) -> None:
        self._is_fresh = False
        momenta = dict(_momenta(self._optimizer)) if self._optimizer else {}
        for layer in self.layers.values():
            layer.update(momenta.get(layer.weight, 0.0))


def _momenta(optimizer: torch.optim.Optimizer) -> Iterator[tuple[torch.Tensor, float]]:
    """Parameter → mean magnitude of its momentum as a sum of gradients. Adam stores an average instead, which is that
    sum times 1 - beta."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            if isinstance(state.get("momentum_buffer"), torch.Tensor):
                damping = group.get("dampening", 0.0)
                yield parameter, _mean_magnitude(state["momentum_buffer"]) / (1 - damping if damping < 1 else 1)
            elif isinstance(state.get("exp_avg"), torch.Tensor):
                beta = group["betas"][0] if "betas" in group else 0.9
                yield parameter, _mean_magnitude(state["exp_avg"]) / (1 - beta)


def _layers(model: nn.Module) -> Iterator[tuple[nn.Module, Layer]]:
    """Modules that multiply their inputs by their own weights; excludes containers that also have a parameter."""
    for name, module in model.named_modules():
        own = [parameter for parameter in module.parameters(recurse=False) if parameter.requires_grad]
        within = any(True for child in module.children() for _ in child.parameters())
        if own and (not within or isinstance(module, nn.MultiheadAttention)):
            yield module, Layer(name, max(own, key=torch.Tensor.numel))


def _bound(share: float, rms: float, width: float) -> float:
    """`share` of the root mean square, but at most of 1 and of the width (step 4 of the rule)."""
    return max(share * min(1.0, rms, width), float(torch.finfo(torch.float32).tiny))


def _is_float(thing: Any) -> bool:
    return isinstance(thing, torch.Tensor) and thing.is_floating_point()


def _size(tensor: torch.Tensor) -> tuple[float, float]:
    """Share of nonzero elements, and their root mean square."""
    with torch.no_grad():
        measuring = _measuring(tensor.detach().reshape(-1))
        numbers = next(measuring).tolist()
        try:
            measuring.send(numbers)
        except StopIteration as end:
            share, rms = end.value
    return share, rms


def _measuring(vector: torch.Tensor) -> Generator[torch.Tensor, list[Any], tuple[float, float]]:
    parts = parts_of(vector)
    counts = torch.stack([part.count_nonzero() for part in parts]).sum().double()
    norm = torch.stack([torch.linalg.vector_norm(part.float()) for part in parts]).double().norm()
    others, length = yield torch.stack([counts, norm])
    return others / max(1, vector.numel()), length / math.sqrt(max(1, others))


def _mean_magnitude(tensor: torch.Tensor) -> float:
    """Mean magnitude of a tensor; of this rank's part if it is sharded."""
    local = getattr(tensor, "_local_tensor", tensor)
    return float(local.abs().float().mean()) if local.numel() else 0.0
