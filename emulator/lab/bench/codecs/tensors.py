"""Input tensors of `switchml bench codecs`: gradients and activations of real training steps, a smooth field, or a
file.

The digits model has 71,754 parameters, so the gradients of consecutive steps are concatenated until the requested
number of elements is reached; activations likewise, layer by layer and batch by batch.
"""

from __future__ import annotations

import errno
import os
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from switchml.errors import ConfigError
from switchml.files import array_header, check_has_end

if TYPE_CHECKING:
    import torch

    from host_agent.training.model import DigitsNet

KINDS = ("gradient", "activation", "smooth")
_BATCH = 64
_SKIPPED = 10
"""Steps before the first gradient used: gradients of the first steps are untypically large."""


@dataclass(frozen=True)
class Tensor:
    """A flat float32[n] tensor, the matrix shape that PowerSGD uses for it, and a description of its source."""

    values: np.ndarray
    shape: tuple[int, int]
    source: str


def load(name: str, elements: int) -> Tensor:
    """Load the tensor that `--tensor` names. Raises ConfigError."""
    if name not in KINDS:
        return _from_file(Path(name))
    values, source = {"gradient": _gradients, "activation": _activations, "smooth": _smooth}[name](elements)
    return Tensor(values, _square(values.size), source)


def _square(n: int) -> tuple[int, int]:
    """The most nearly square matrix of exactly n elements."""
    rows = int(n**0.5)
    while rows > 1 and n % rows:
        rows -= 1
    return max(rows, 1), n // max(rows, 1)


def _training_steps() -> Iterator[tuple[DigitsNet, torch.Tensor]]:
    """Train the digits model; yields the model with its gradients set, and the batch, once per step."""
    import torch
    from torch.nn import functional

    from host_agent.training import data
    from host_agent.training.model import DigitsNet

    torch.manual_seed(1)
    digits, model = data.load(), DigitsNet()
    order = data.BatchOrder(rank=0, workers=1, batch_size=_BATCH, seed=1)
    images, labels = torch.from_numpy(digits.train_images), torch.from_numpy(digits.train_labels)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    step = 0
    while True:
        chosen = torch.from_numpy(order.indices(step))
        optimizer.zero_grad()
        functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
        if step >= _SKIPPED:
            yield model, images[chosen]
        optimizer.step()
        step += 1


def _collected(
    elements: int, what: str, parts_of: Callable[[DigitsNet, torch.Tensor], list[np.ndarray]]
) -> tuple[np.ndarray, str]:
    """Concatenate the outputs of `parts_of(model, images)` over as many steps as needed for `elements` elements.
    Returns the tensor and a description of its source."""
    parts: list[np.ndarray] = []
    steps, last = _training_steps(), _SKIPPED
    while sum(part.size for part in parts) < elements:
        parts += [part.reshape(-1).copy() for part in parts_of(*next(steps))]
        last += 1
    first = _SKIPPED + 1
    steps_used = f"step {first}" if last == first else f"steps {first} to {last}"
    source = f"{what}, {steps_used}, batches of {_BATCH}"
    return np.concatenate(parts)[:elements], source


def _gradients(elements: int) -> tuple[np.ndarray, str]:
    return _collected(
        elements,
        "gradients of the digits model",
        lambda model, _: [p.grad.detach().numpy() for p in model.parameters() if p.grad is not None],
    )


def _activations(elements: int) -> tuple[np.ndarray, str]:
    import torch

    def outputs(model: DigitsNet, x: torch.Tensor) -> list[np.ndarray]:
        parts = []
        with torch.no_grad():
            for layer in model.layers:
                x = layer(x)
                if isinstance(layer, torch.nn.ReLU):
                    parts.append(x.numpy())
        return parts

    return _collected(elements, "outputs of the digits model's ReLUs", outputs)


def _smooth(elements: int) -> tuple[np.ndarray, str]:
    random = np.random.default_rng(20210412)
    side = int(np.ceil(elements**0.5))
    y, x = np.mgrid[0:side, 0:side].astype(np.float32) / np.float32(side)
    field = np.zeros((side, side), np.float32)
    for _ in range(20):
        angle, phase, waves = random.uniform(0, 2 * np.pi, 2).tolist() + [random.uniform(2, 20)]
        field += np.sin(2 * np.pi * waves * (x * np.cos(angle) + y * np.sin(angle)) + phase, dtype=np.float32) / waves
    source = "a sum of 20 plane waves on a square, the longest 10 times the shortest (synthetic)"
    return field.reshape(-1)[:elements].copy(), source


def _from_file(path: Path) -> Tensor:
    expected = f"expected one of {', '.join(KINDS)}, or a NumPy file (.npy)"
    if not path.exists():  # perhaps a mistyped kind
        raise ConfigError(f"--tensor {path}: {os.strerror(errno.ENOENT)}: {expected}")
    check_has_end(path, pipes=False)
    try:
        if not zipfile.is_zipfile(path):
            with path.open("rb") as file:
                array_header(file, path.stat().st_size)
        values = np.load(path, allow_pickle=False)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        reason = getattr(error, "strerror", None) or "not NumPy's format, or Python objects in it"
        raise ConfigError(f"--tensor {path}: {reason}: {expected}") from None
    if not isinstance(values, np.ndarray) or values.dtype.kind != "f" or values.size == 0:
        is_array = isinstance(values, np.ndarray)
        actual = f"{values.dtype} of shape {values.shape}" if is_array else "several arrays (.npz)"
        raise ConfigError(f"--tensor {path}: {actual}: expected one array of floating-point numbers, not empty")
    shape = (values.shape[0], values.size // values.shape[0]) if values.ndim > 1 else _square(values.size)
    with np.errstate(over="ignore"):
        flat = np.ascontiguousarray(values, np.float32).reshape(-1)
    if not np.isfinite(flat).all():
        raise ConfigError(f"--tensor {path}: it holds infinities or NaN as float32: errors could not be measured")
    return Tensor(flat, shape, f"{path.name}, {values.dtype} of shape {values.shape}")
