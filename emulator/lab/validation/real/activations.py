"""Compressed activations in training on this machine, compared with `emulate --activation-ratio`.

Times are CPU times of one thread. Runs alternate step by step, and the median over rounds of the difference between
compressed and plain steps is used, so that other load on the machine affects all alike. Two constants come from one
network: the time for each tensor, from steps of two images, whose tensors are all small, and then the codec's rate,
from steps of `BATCH`. The rate is the one in training, where tensors have left the caches and memory is fetched from
the kernel, about half of that in isolation. The constants are then tested on another batch size and another network.
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
"""Steps before timing, and timed steps."""
CODEC = "levels"
CALIBRATION = "cnn"


class Run:
    """A model that trains with a codec. `batch`: images per step; `least_bytes`: smallest tensor that is compressed."""

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
        """CPU seconds of forward and backward."""
        chosen = torch.from_numpy(self._order.integers(0, len(self._images), self._batch))
        images, labels = self._images[chosen], self._labels[chosen]
        self._optimizer.zero_grad()
        started = time.process_time()
        functional.cross_entropy(self.model(images), labels).backward()
        elapsed_s = time.process_time() - started
        self._optimizer.step()
        return elapsed_s

    def peak_bytes(self) -> int:
        """Peak memory of one more step, in bytes."""
        with Tracker() as tracker:
            self.step()
        return int(tracker.peak)

    def accuracy(self) -> float:
        """Accuracy on the test images; ends the run."""
        self.activations.close()
        self.model.eval()
        with torch.no_grad():
            guesses = self.model(torch.from_numpy(self._digits.test_images)).argmax(1)
        return float((guesses == torch.from_numpy(self._digits.test_labels)).float().mean())


@dataclass(frozen=True)
class Extra:
    """Cost of compression per step: CPU seconds, the bytes and number of compressed tensors, and their share of all
    bytes."""

    step_s: float
    """CPU seconds of a step without compression."""
    extra_s: float
    bytes: float
    tensors: float
    ratio: float
    share: float = 1.0


class Case(NamedTuple):
    """A network in training. `least_bytes`: smallest tensor that is compressed."""

    name: str
    batch: int = BATCH
    least_bytes: int = 4096


SMALL, LARGE = Case(CALIBRATION, 2, 0), Case(CALIBRATION)
"""The calibration cases."""


def extras(codec: str, cases: Sequence[Case], digits: data.Digits) -> list[Extra]:
    """Cost of compression in each case, from alternating plain and compressed steps."""
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
        share = stats["bytes"] / (stats["bytes"] + stats["left_bytes"])
        found.append(Extra(step_s, more_s, size, tensors, stats["ratio"], share))
    return found


@dataclass(frozen=True)
class Constants:
    """Constants of a codec on this machine, for `emulate`."""

    tensor_s: float
    bytes_per_s: float


def calibrated(small: Extra, large: Extra) -> Constants:
    """Constants from the cases SMALL and LARGE."""
    tensor_s = max(small.extra_s, 0.0) / (2 * small.tensors)
    return Constants(tensor_s, 2 * large.bytes / max(large.extra_s - 2 * large.tensors * tensor_s, 1e-9))


def predicted_s(name: str, measured: Extra, constants: Constants, batch: int = BATCH) -> float:
    """Seconds that compression adds to a step according to `switchml emulate`, which charges every saved tensor with
    the constants: they are multiplied by the share that is compressed."""
    share, ratio = measured.share, measured.ratio
    constants = Constants(constants.tensor_s * share, constants.bytes_per_s / share)
    emulated = [_emulated(name, ratio, constants, batch) for ratio in (1.0, ratio)]
    return emulated[1].iteration_s - emulated[0].iteration_s


def _emulated(name: str, ratio: float, constants: Constants, batch: int = BATCH) -> switchml.Result:
    job: dict[str, Any] = {"model": f"{MODELS[name].__module__}:{MODELS[name].__name__}", "input_shape": INPUT_SHAPE}
    job |= {"gpus": 1, "batch": batch, "micro_batch": batch, "precision": "fp32", "optimizer": "sgd"}
    rates = {"activation_bytes_per_s": constants.bytes_per_s, "activation_tensor_s": constants.tensor_s}
    return switchml.emulate(**job, memory={"activation_ratio": ratio, **rates})


def rows(progress: Callable[[str], None] = lambda line: None) -> list[Row]:
    """Rows of peak memory and extra time of both networks."""
    torch.set_num_threads(1)
    digits, found = data.load(), []
    cases = Case(CALIBRATION, 2 * BATCH), Case("transformer")
    progress("compressed activations of a CNN and of a transformer")
    small, large, *measured = extras(CODEC, (SMALL, LARGE, *cases), digits)
    constants = calibrated(small, large)
    for (name, batch, _), one in zip(cases, measured, strict=True):
        what = f"{name}, {batch} images, {CODEC}"
        found.append(Row(f"{what}: extra time", one.extra_s, predicted_s(name, one, constants, batch), "s"))
        parts = _emulated(name, one.ratio, constants, batch).emulation.memory.parts()
        run = Run(name, CODEC, 0, digits, batch)
        run.step()
        emulated = (parts["activations"] + parts["gradients"]) / 1e6
        found.append(Row(f"{what}: peak", run.peak_bytes() / 1e6, emulated, "MB"))
    return found
