"""What `switchml bench codecs` compresses: gradients and activations of real training steps, a smooth field, or a file.

The digits model has 71,754 parameters, so the gradients of consecutive steps are put one after the other until there
are as many elements as asked for; activations likewise, layer by layer and batch by batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from switchml.errors import ConfigError

KINDS = ("gradient", "activation", "smooth")
_BATCH = 64
_SKIPPED = 10
"""Steps before the first gradient that is used: the first ones are untypically large."""


@dataclass(frozen=True)
class Tensor:
    """float32[n], the matrix that PowerSGD sees it as, and its source in words."""

    values: np.ndarray
    shape: tuple[int, int]
    source: str


def load(name: str, elements: int) -> Tensor:
    """The tensor that `--tensor` names. Raises ConfigError."""
    if name == "gradient":
        values, source = _gradients(elements)
    elif name == "activation":
        values, source = _activations(elements)
    elif name == "smooth":
        values, source = (
            _smooth(elements),
            "a sum of 20 plane waves on a square, the longest 10 times the shortest (synthetic)",
        )
    else:
        return _from_file(Path(name))
    return Tensor(values, _square(values.size), source)


def _square(n: int) -> tuple[int, int]:
    """The most nearly square matrix of exactly n elements."""
    rows = int(n**0.5)
    while rows > 1 and n % rows:
        rows -= 1
    return max(rows, 1), n // max(rows, 1)


def _training_steps():
    """Train the digits model; yields it and a batch, with gradients set, once a step."""
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


def _gradients(elements: int) -> tuple[np.ndarray, str]:
    parts, have, steps = [], 0, 0
    for model, _ in _training_steps():
        parts += [p.grad.detach().numpy().reshape(-1).copy() for p in model.parameters()]
        steps += 1
        have = sum(part.size for part in parts)
        if have >= elements:
            break
    source = f"gradients of the digits model, steps {_SKIPPED + 1} to {_SKIPPED + steps}, batches of {_BATCH}"
    return np.concatenate(parts)[:elements], source


def _activations(elements: int) -> tuple[np.ndarray, str]:
    import torch

    parts, have, steps = [], 0, 0
    for model, images in _training_steps():
        with torch.no_grad():
            x = images
            for layer in model.layers:
                x = layer(x)
                if isinstance(layer, torch.nn.ReLU):
                    parts.append(x.numpy().reshape(-1).copy())
        steps += 1
        have = sum(part.size for part in parts)
        if have >= elements:
            break
    source = f"outputs of the digits model's ReLUs, steps {_SKIPPED + 1} to {_SKIPPED + steps}, batches of {_BATCH}"
    return np.concatenate(parts)[:elements], source


def _smooth(elements: int) -> np.ndarray:
    random = np.random.default_rng(20210412)
    side = int(np.ceil(elements**0.5))
    y, x = np.mgrid[0:side, 0:side].astype(np.float32) / np.float32(side)
    field = np.zeros((side, side), np.float32)
    for _ in range(20):
        angle, phase, waves = random.uniform(0, 2 * np.pi, 2).tolist() + [random.uniform(2, 20)]
        field += np.sin(2 * np.pi * waves * (x * np.cos(angle) + y * np.sin(angle)) + phase, dtype=np.float32) / waves
    return field.reshape(-1)[:elements].copy()


def _from_file(path: Path) -> Tensor:
    try:
        values = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not NumPy's format, or Python objects in it"
        raise ConfigError(
            f"--tensor {path}: {reason}: expected one of {', '.join(KINDS)}, or a NumPy file (.npy)"
        ) from None
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
