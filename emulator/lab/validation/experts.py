"""Published rates of grouped GEMMs of experts: DeepGEMM (deepseek-ai/DeepGEMM, README of March 2025; H800, with an
H100's processors), torch._grouped_mm (pytorch/ao #2490 and #2756, pytorch #156203; the former as times in seconds), and
a loop over cuBLAS (tgale96/grouped_gemm #37). No constant is fitted to them.
"""

import numpy as np

from emulator.cluster import kernels
from emulator.cluster.accelerator import accelerators, constants
from emulator.lab.validation.rows import Row, published

LOOP = "a loop over cuBLAS"


def rows() -> list[Row]:
    """TFLOP/s of the forward grouped GEMM of all experts."""
    return [_row(row) for row in published("experts.csv")]


def _row(row: dict[str, str]) -> Row:
    experts, tokens, outputs, inputs = (int(row[key]) for key in ("experts", "tokens_per_expert", "outputs", "inputs"))
    loop = row["kernel"] == LOOP
    product = np.array([kernels.gemm(outputs, tokens, inputs, 1 if loop else experts)] * (experts if loop else 1))
    seconds = kernels.seconds(product, accelerators()[row["accelerator"]], constants(), row["precision"])
    name = f"{row['kernel']}, {row['precision']}, {experts} of {tokens} x {inputs} by {outputs}"
    return Row(name, float(row["tflops"]), kernels.flops(product) / float(seconds.sum()) / 1e12, "TFLOP/s")
