"""Compressed activations in training on this machine, beside what `emulate --activation-ratio` says of them.

Times are the processor's, of one thread. What is compared is measured in turns, a step of each a round, and of the
differences between compressed and plain steps of a round the median counts: other work on the machine then weighs on
all alike. Two constants come from one network: the time for each tensor, from steps of two images, whose tensors are
all small, and then the codec's rate, from steps of `BATCH`. It is the rate that it has in training, where tensors have
left the caches and memory comes from the kernel: half of that outside. What they say of other batches and another
network is measured, too.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional

import switchml
from emulator.lab.validation.real.networks import INPUT_SHAPE, MODELS
from emulator.lab.validation.rows import Row
from host_agent.memory import Tracker, compressed_activations
from host_agent.training import data

BATCH = 64
WARM_UP, TIMED = 10, 40
"""Steps before times count, and those that do."""
CODEC = "levels"
CALIBRATION = "cnn"


class Run:
    """A model that trains with a codec. `batch`: images of a step; `least_bytes`: of tensors that are compressed."""

    def __init__(
        self, name: str, codec: str, seed: int, digits: data.Digits, batch: int = BATCH, least_bytes: int = 4096
    ):
        torch.manual_seed(seed)
        self.model, self._digits, self._order = MODELS[name](), digits, np.random.default_rng(seed)
        self._images, self._labels = torch.from_numpy(digits.train_images), torch.from_numpy(digits.train_labels)
        self._optimizer, self._batch = self.model.optimizer(), batch
        self.activations = compressed_activations(
            self.model, codec, optimizer=self._optimizer, every=100, least_bytes=least_bytes
        )

    def step(self) -> float:
        """Processor seconds of forward and backward."""
        chosen = torch.from_numpy(self._order.integers(0, len(self._images), self._batch))
        images, labels = self._images[chosen], self._labels[chosen]
        self._optimizer.zero_grad()
        started = time.process_time()
        functional.cross_entropy(self.model(images), labels).backward()
        elapsed_s = time.process_time() - started
        self._optimizer.step()
        return elapsed_s

    def peak_bytes(self) -> int:
        """In one more step."""
        with Tracker() as tracker:
            self.step()
        return int(tracker.peak)

    def accuracy(self) -> float:
        """On the test images, at the end."""
        self.activations.close()
        self.model.eval()
        with torch.no_grad():
            guesses = self.model(torch.from_numpy(self._digits.test_images)).argmax(1)
        return float((guesses == torch.from_numpy(self._digits.test_labels)).float().mean())


@dataclass(frozen=True)
class Extra:
    """What compression adds to a step. Seconds of a processor; of each step, bytes and tensors that are compressed."""

    step_s: float
    """Without it."""
    extra_s: float
    bytes: float
    tensors: float
    ratio: float


class Case(NamedTuple):
    """A network in training. `least_bytes`: of tensors that are compressed."""

    name: str
    batch: int = BATCH
    least_bytes: int = 4096


SMALL, LARGE = Case(CALIBRATION, 2, 0), Case(CALIBRATION)
"""What constants come from."""


def extras(codec: str, cases: Sequence[Case], digits: data.Digits) -> list[Extra]:
    """Of each case, from plain steps and compressed ones of all in turns."""
    pairs = []
    for name, batch, least_bytes in cases:
        plain, compressed = (Run(name, each, 0, digits, batch, least_bytes) for each in ("none", codec))
        plain.activations.close()
        pairs.append((plain, compressed))
    rounds = [[[run.step() for run in pair] for pair in pairs] for _ in range(WARM_UP + TIMED)]
    seconds = np.array(rounds[WARM_UP:])  # (rounds, cases, plain and compressed)
    steps_s, extra_s = np.median(seconds[..., 0], axis=0), np.median(seconds[..., 1] - seconds[..., 0], axis=0)
    found = []
    for (_, compressed), step_s, more_s in zip(pairs, steps_s.tolist(), extra_s.tolist(), strict=True):
        stats = compressed.activations.stats()
        size, tensors = (stats[what] / (WARM_UP + TIMED) for what in ("bytes", "tensors"))
        found.append(Extra(step_s, more_s, size, tensors, stats["ratio"]))
    return found


@dataclass(frozen=True)
class Constants:
    """Of a codec on this machine, for `emulate`."""

    tensor_s: float
    bytes_per_s: float


def calibrated(small: Extra, large: Extra) -> Constants:
    """By the cases SMALL and LARGE."""
    tensor_s = max(small.extra_s, 0.0) / (2 * small.tensors)
    return Constants(tensor_s, 2 * large.bytes / max(large.extra_s - 2 * large.tensors * tensor_s, 1e-9))


def predicted_s(name: str, ratio: float, constants: Constants, batch: int = BATCH) -> float:
    """Seconds by which `switchml emulate` has a step grow."""
    emulated = [_emulated(name, ratio, constants, batch) for ratio in (1.0, ratio)]
    return emulated[1].iteration_s - emulated[0].iteration_s


def _emulated(name: str, ratio: float, constants: Constants, batch: int = BATCH) -> switchml.Result:
    job: dict[str, Any] = {"model": f"{MODELS[name].__module__}:{MODELS[name].__name__}", "input_shape": INPUT_SHAPE}
    job |= {"gpus": 1, "batch": batch, "micro_batch": batch, "precision": "fp32", "optimizer": "sgd"}
    rates = {"activation_bytes_per_s": constants.bytes_per_s, "activation_tensor_s": constants.tensor_s}
    return switchml.emulate(**job, memory={"activation_ratio": ratio, **rates})


def rows(progress: Callable[[str], None] = lambda line: None) -> list[Row]:
    """Peak memory and extra time of both networks."""
    torch.set_num_threads(1)
    digits, found = data.load(), []
    cases = Case(CALIBRATION, 2 * BATCH), Case("transformer")
    progress("compressed activations of a CNN and of a transformer")
    small, large, *measured = extras(CODEC, (SMALL, LARGE, *cases), digits)
    constants = calibrated(small, large)
    for (name, batch, _), one in zip(cases, measured, strict=True):
        what = f"{name}, {batch} images, {CODEC}"
        found.append(Row(f"{what}: extra time", one.extra_s, predicted_s(name, one.ratio, constants, batch), "s"))
        parts = _emulated(name, one.ratio, constants, batch).emulation.memory.parts()
        run = Run(name, CODEC, 0, digits, batch)
        run.step()
        emulated = (parts["activations"] + parts["gradients"]) / 1e6
        found.append(Row(f"{what}: peak", run.peak_bytes() / 1e6, emulated, "MB"))
    return found
