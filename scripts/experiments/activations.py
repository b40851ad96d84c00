"""Activations in compressed form: sizes, accuracy, peak memory and time, beside what the emulator predicts.

    python scripts/experiments/activations.py [--models cnn,transformer] [--seeds 5] [--steps 200] [--plot FILE]
    python scripts/experiments/activations.py --models resnet50     # sizes alone, of 224 x 224 crops of two photographs

Trains on scikit-learn's digits, with each codec from each seed. "smaller" is all that autograd saved, weights and
inputs aside, over what it became; peak memory is counted from storage to storage in a step (`Tracker`). Time is the
processor's, of one thread: its extra is measured with plain steps and compressed ones in turns, and predicted by
`switchml emulate --activation-ratio … --activation-bytes-per-s …` at the rate that the codec has, outside training, on
what a step saves.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from torch import nn
from torch.nn import functional

import switchml
from emulator.cli.options import Count, json_option, plot_option
from host_agent.memory import Tracker, compressed_activations
from host_agent.memory.codecs import CODECS
from host_agent.training import data
from switchml import plotting, terminal
from switchml.pages.panels import Bar, Bars
from switchml.tables import Table, number, show, text

BATCH = 64
WARM_UP, TIMED = 10, 30
"""Steps before times count, and those that do."""
PUBLISHED = 13.5
"""COMET's memory reduction, "up to", over five networks on ImageNet, ResNet-50 among them (Jin et al., VLDB 2022)."""


class Cnn(nn.Module):
    """Three convolutions with batch normalization: (n, 1, 8, 8) to (n, 10)."""

    input_shape = "1x8x8"

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in ((1, 32), (32, 32), (32, 64)):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 16, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images)

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)


class Transformer(nn.Module):
    """Two layers of width 64 over 16 patches of 2 x 2 pixels."""

    input_shape = "1x8x8"

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(4, 64), nn.Linear(64, 10)
        self.position = nn.Parameter(0.1 * torch.randn(16, 64))
        layer = nn.TransformerEncoderLayer(64, 4, 256, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        patches = functional.unfold(images, 2, stride=2).transpose(1, 2)
        return self.head(self.layers(self.embed(patches) + self.position).mean(1))

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=2e-3)


def resnet50(classes: int = 2) -> nn.Sequential:
    """He et al., CVPR 2016, with the stride in the 3 x 3 convolutions: the sizes of torchvision's."""

    def normalized(inputs: int, outputs: int, size: int, stride: int = 1) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs)]

    class Bottleneck(nn.Module):
        def __init__(self, inputs: int, width: int, stride: int):
            super().__init__()
            three = *normalized(inputs, width, 1), nn.ReLU(), *normalized(width, width, 3, stride), nn.ReLU()
            self.inner = nn.Sequential(*three, *normalized(width, 4 * width, 1))
            same = inputs == 4 * width
            self.around = nn.Identity() if same else nn.Sequential(*normalized(inputs, 4 * width, 1, stride))
            self.relu = nn.ReLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.relu(self.inner(x) + self.around(x))

    layers: list[nn.Module] = [*normalized(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for width, depth in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(depth):
            layers.append(Bottleneck(inputs, width, 2 if block == 0 and width > 64 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, classes))


def resnet_row(codec: str) -> dict[str, Any]:
    """ResNet-50 on crops of scikit-learn's two photographs, 2 of each: the fourth step from random weights, measured
    anew in each."""
    from sklearn.datasets import load_sample_images

    photos = [torch.tensor(image).permute(2, 0, 1) / 128.0 - 1 for image in load_sample_images().images]
    crops = [photo[:, 100:324, left : left + 224] for photo in photos for left in (50, 350)]
    images, labels = torch.stack(crops), torch.tensor([0, 0, 1, 1])
    torch.manual_seed(0)
    model = resnet50()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    stats = {}
    with compressed_activations(model, codec, optimizer=optimizer, every=1) as activations:
        for _ in range(4):
            before = stats
            optimizer.zero_grad()
            with Tracker() as tracker:
                functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            stats = activations.stats()
    step = {name: stats[name] - before[name] for name in stats}
    ratio = (step["bytes"] + step["left_bytes"]) / (step["compressed_bytes"] + step["left_bytes"])
    return {"model": "resnet50", "codec": codec, "ratio": ratio, "peak_bytes": tracker.peak}


MODELS: dict[str, Any] = {"cnn": Cnn, "transformer": Transformer}


class Run:
    """A model that trains with a codec."""

    def __init__(self, name: str, codec: str, seed: int, digits: data.Digits):
        torch.manual_seed(seed)
        self.model, self._digits, self._order = MODELS[name](), digits, np.random.default_rng(seed)
        self._images, self._labels = torch.from_numpy(digits.train_images), torch.from_numpy(digits.train_labels)
        self._optimizer = self.model.optimizer()
        self.activations = compressed_activations(self.model, codec, optimizer=self._optimizer, every=100)

    def step(self) -> float:
        """Processor seconds of forward and backward."""
        chosen = torch.from_numpy(self._order.integers(0, len(self._images), BATCH))
        images, labels = self._images[chosen], self._labels[chosen]
        self._optimizer.zero_grad()
        started = time.process_time()
        functional.cross_entropy(self.model(images), labels).backward()
        took_s = time.process_time() - started
        self._optimizer.step()
        return took_s

    def peak_bytes(self) -> int:
        """In one more step."""
        with Tracker() as tracker:
            self.step()
        return tracker.peak

    def accuracy(self) -> float:
        """On the test images, at the end."""
        self.activations.close()
        self.model.eval()
        with torch.no_grad():
            guesses = self.model(torch.from_numpy(self._digits.test_images)).argmax(1)
        return float((guesses == torch.from_numpy(self._digits.test_labels)).float().mean())


def trained(name: str, codec: str, seeds: int, steps: int, digits: data.Digits) -> dict[str, Any]:
    """One row, without times."""
    accuracies, ratios, peaks = [], [], []
    for seed in range(seeds):
        run = Run(name, codec, seed, digits)
        for _ in range(steps):
            run.step()
        ratios.append(run.activations.stats()["ratio"])
        peaks.append(run.peak_bytes())
        accuracies.append(run.accuracy())
    return {
        "model": name,
        "codec": codec,
        "ratio": statistics.mean(ratios),
        "peak_bytes": statistics.mean(peaks),
        "accuracy": statistics.mean(accuracies),
        "spread": statistics.stdev(accuracies) if seeds > 1 else 0.0,
        "accuracies": accuracies,
    }


class Recorder:
    """A codec that also keeps copies of what it gets."""

    def __init__(self, codec: Any):
        self._codec, self.is_bounded, self.floats_only = codec, codec.is_bounded, codec.floats_only
        self.vectors: list[tuple[torch.Tensor, float]] = []

    def keep(self, vector: torch.Tensor, bound: float) -> Any:
        self.vectors.append((vector.clone(), bound))
        return self._codec.keep(vector, bound)

    def bytes_per_s(self) -> float:
        """At which the codec compresses all that one step saves, and then restores it."""
        times = []
        for _ in range(TIMED):
            started = time.process_time()
            for kept in [self._codec.keep(*each) for each in self.vectors][::-1]:
                kept.restore()
            times.append(time.process_time() - started)
        return 2 * sum(vector.nbytes for vector, _ in self.vectors) / lower(times)


def lower(seconds: list[float]) -> float:
    """The lower quartile: other work on the machine only makes times longer."""
    return statistics.quantiles(seconds, n=4)[0]


def timed(name: str, codec: str, digits: data.Digits) -> dict[str, float]:
    """Processor seconds of a plain step, and what the codec adds: measured, and as the emulator predicts it."""
    plain, compressed = Run(name, "none", 0, digits), Run(name, codec, 0, digits)
    plain.activations.close()
    both: tuple[list[float], list[float]] = ([], [])
    for step in range(WARM_UP + TIMED):
        for run, seconds in zip((plain, compressed), both, strict=True):
            took_s = run.step()
            if step >= WARM_UP:
                seconds.append(took_s)
    recorder = Recorder(CODECS[codec]())
    CODECS["recorded"] = lambda: recorder
    run = Run(name, "recorded", 0, digits)
    run.step()
    plain_s, compressed_s = map(lower, both)
    ratio, bytes_per_s = compressed.activations.stats()["ratio"], recorder.bytes_per_s()
    return {
        "step_s": plain_s,
        "extra_s": compressed_s - plain_s,
        "bytes_per_s": bytes_per_s,
        "predicted_s": predicted(name, ratio, bytes_per_s),
    }


def predicted(name: str, ratio: float, bytes_per_s: float) -> float:
    """Seconds by which `switchml emulate` has a step grow."""
    job: dict[str, Any] = {"model": f"activations:{MODELS[name].__name__}", "input_shape": MODELS[name].input_shape}
    job |= {"gpus": 1, "batch": BATCH, "micro_batch": BATCH, "precision": "fp32", "optimizer": "sgd"}
    memory = {"activation_ratio": ratio, "activation_bytes_per_s": bytes_per_s}
    return switchml.emulate(**job, memory=memory).iteration_s - switchml.emulate(**job).iteration_s


@click.command(help=__doc__)
@click.option("--models", default="cnn,transformer", help="Of cnn, transformer, resnet50.")
@click.option("--codecs", default="none,levels,szx,int8,fp16", help="Names, with none first.")
@click.option("--seeds", type=Count(1), default=5)
@click.option("--steps", type=Count(1), default=200)
@plot_option
@json_option
def main(models: str, codecs: str, seeds: int, steps: int, plot_file: Path | None, as_json: bool) -> None:
    torch.set_num_threads(1)
    digits, rows = data.load(), []
    for name in models.split(","):
        for codec in codecs.split(","):
            with terminal.progress(f"{name} with {codec}"):
                if name == "resnet50":
                    rows.append(resnet_row(codec))
                    continue
                row = trained(name, codec, seeds, steps, digits)
                rows.append(row | (timed(name, codec, digits) if codec != "none" else {}))
    if plot_file is not None:
        bars = [Bar(row["codec"], row["model"], row["ratio"]) for row in rows if row["codec"] != "none"]
        plotting.draw(plot_file, "Compressed activations", [Bars("Saved bytes", "times smaller", bars)])
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    columns = [
        text("model"),
        text("codec"),
        *map(number, ("smaller", "peak MB", "accuracy", "step", "extra", "predicted")),
    ]
    table = Table(columns, title="" if models == "resnet50" else f"{seeds} seeds, {steps} steps of {BATCH} images; ms")
    for row in rows:
        times = (f"{1e3 * row[each]:.1f}" if each in row else "" for each in ("step_s", "extra_s", "predicted_s"))
        accuracy = f"{row['accuracy']:.2%} ± {100 * row['spread']:.2f}" if "accuracy" in row else ""
        table.add(row["model"], row["codec"], f"{row['ratio']:.2f}", f"{row['peak_bytes'] / 1e6:.2f}", accuracy, *times)
    show(table)
    if "resnet50" in models:
        click.echo(f"COMET, of five networks' activations on ImageNet, ResNet-50's among them: up to {PUBLISHED}")


if __name__ == "__main__":
    main()
