"""Compressed activations: sizes, accuracy, peak memory and time, compared with the emulator's predictions.

    python scripts/experiments/activations.py [--models cnn,transformer] [--seeds 5] [--steps 200] [--plot FILE]
    python scripts/experiments/activations.py --models resnet50     # sizes alone, of 224 x 224 crops of two photographs

Trains on `switchml train`'s digits, with each codec from each seed. "smaller" is the size of everything that autograd
saved, except weights and inputs, over its compressed size; peak memory is counted per storage in a step (`Tracker`).
Times are CPU times of one thread: the extra time is measured with alternating plain and compressed steps, and predicted
by `switchml emulate --activation-ratio … --activation-bytes-per-s … --activation-tensor-s …`, with constants from the
CNN.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import click
import torch
from torch import nn
from torch.nn import functional

from emulator.lab.validation.real.activations import BATCH, LARGE, SMALL, Case, Run, calibrated, extras, predicted_s
from emulator.surface.cli.options import Count, json_option, plot_option
from host_agent.memory import Tracker, compressed_activations
from host_agent.training import data
from switchml import plotting, terminal
from switchml.pages.panels import Bar, Bars
from switchml.tables import Table, number, show, text

PUBLISHED = 13.5
"""COMET's memory reduction, "up to", over five networks on ImageNet including ResNet-50 (Jin et al., VLDB 2022)."""


def resnet50(classes: int = 2) -> nn.Sequential:
    """ResNet-50 (He et al., CVPR 2016) with the stride in the 3 x 3 convolutions; its sizes are those
    of torchvision."""

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
    """ResNet-50 on crops of scikit-learn's two photographs, 2 of each: the fourth step from random weights, with error
    bounds measured anew in each step."""
    try:
        from sklearn.datasets import load_sample_images
    except ImportError:
        raise click.ClickException("ResNet-50 takes scikit-learn's photographs: pip install scikit-learn") from None
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


def trained(name: str, codec: str, seeds: int, steps: int, digits: data.Digits) -> dict[str, Any]:
    """One row of the table, without times."""
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


def times(name: str, codec: str, digits: data.Digits) -> dict[str, float]:
    """Seconds of a step, the codec's measured extra seconds, and the emulator's prediction of these."""
    small, large, measured = extras(codec, (SMALL, LARGE, Case(name)), digits)
    by_emulator = predicted_s(name, measured, calibrated(small, large))
    return {"step_s": measured.step_s, "extra_s": measured.extra_s, "predicted_s": by_emulator}


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
                rows.append(row | (times(name, codec, digits) if codec != "none" else {}))
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
        seconds = [row.get(each) for each in ("step_s", "extra_s", "predicted_s")]
        milliseconds = ("" if each is None else f"{1e3 * each:.1f}" for each in seconds)
        accuracy = f"{row['accuracy']:.2%} ± {100 * row['spread']:.2f}" if "accuracy" in row else ""
        table.add(
            row["model"], row["codec"], f"{row['ratio']:.2f}", f"{row['peak_bytes'] / 1e6:.2f}", accuracy, *milliseconds
        )
    show(table)
    if "resnet50" in models:
        click.echo(f"COMET, of five networks' activations on ImageNet, ResNet-50's among them: up to {PUBLISHED}")


if __name__ == "__main__":
    main()
