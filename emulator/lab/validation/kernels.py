"""Kernel times of a traced job converted to another accelerator (`switchml trace replay --accelerator`), compared with
the same job traced there: one inference of each of five Hugging Face models on H100 and MI300X (AMD-AGI/TraceLens,
tests/traces/{h100,mi300}, MIT), with kernels by name; long names are cut where their class remains recognizable. Two of
the models, bert-small and Qwen1.5-0.5B, were used to determine constants that data sheets don't state
(emulator/traces/whatif/data/kernels.toml).
"""

from collections import defaultdict

import numpy as np

from emulator.lab.validation.rows import Row, published
from emulator.traces.whatif.speeds import between


def rows() -> list[Row]:
    """Seconds of all kernels of a model, in both directions."""
    kernels: dict[str, dict[str, list[tuple[str, int, float]]]] = defaultdict(lambda: defaultdict(list))
    for row in published("kernels.csv"):
        kernels[row["model"]][row["accelerator"]].append((row["kernel"], int(row["count"]), float(row["seconds"])))
    return [
        _row(f"{model}, {traced} to {other}", by_accelerator[traced], traced, by_accelerator[other], other)
        for model, by_accelerator in kernels.items()
        for traced in by_accelerator
        for other in by_accelerator.keys() - {traced}
    ]


def _row(
    name: str, kernels: list[tuple[str, int, float]], traced: str, there: list[tuple[str, int, float]], other: str
) -> Row:
    names, counts, totals_s = zip(*kernels, strict=True)
    count, total_s = np.array(counts), np.array(totals_s)
    carried_s = between(traced, other, names, total_s).seconds(names, total_s / count) * count
    return Row(name, sum(row[2] for row in there), float(carried_s.sum()), "s")
