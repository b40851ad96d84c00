"""Speed of kernels on another accelerator, by class: GEMMs scale with their precision's FLOP/s, fused attention with
its own rate, others with memory bandwidth; with the shortest kernel duration there as a lower bound.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import numpy as np

from emulator import datafile
from emulator.cluster.accelerator import Accelerator, accelerators
from emulator.traces.joined import Joined
from emulator.traces.kernels import ON_MATRIX_UNITS, KernelClass, kernel_class
from emulator.traces.whatif.edits import computes, durations
from switchml.errors import ConfigError

DATA = Path(__file__).parent / "data" / "kernels.toml"
CARRIED = "what kernels take on another accelerator is 13 % off on average, 53 % at worst: H100 and MI300X, five models"
"""Accuracy of the prediction, for reports: `switchml validate all` (emulator/lab/validation/kernels.py)."""
_MODEL = re.compile(r"[a-z]+\d+\w*")
_WORD = re.compile(r"[a-z]+\d+\w*|\d+gb")
_PRECISIONS = {
    "bf16": r"bf16|bfloat16|cijk_\w+?_b(b|s)?_",
    "fp16": r"fp16|half|h884|h1688|h16816|hgemm|_f16|cijk_\w+?_h(h|s)?_",
    "tf32": r"tf32",
    "fp32": r"sgemm|scudnn|ffma|f32f32|cijk_\w+?_sb?_|float",
}
"""Precision of a GEMM by its kernel's name; the first match is used."""


@dataclass(frozen=True)
class KernelFacts:
    """Measured kernel properties of an accelerator, in addition to its data sheet."""

    least_s: float = 0.0
    attention_flops: float = 0.0
    """0: unknown; attention then scales like a GEMM."""


@dataclass(frozen=True)
class Speeds:
    """Speed factors by class of kernel, for the time beyond the shortest kernels'."""

    matrix: float
    memory: float
    attention: float
    least_s: float = 0.0
    """Duration of the shortest kernels on the traced accelerator; `other_least_s`: on the other one."""
    other_least_s: float = 0.0

    def seconds(self, names: Sequence[str], seconds: np.ndarray) -> np.ndarray:
        """Return the durations on the other accelerator of kernels that took `seconds`, float64 (kernels,)."""
        factor = np.array([self._of(kernel_class(name)) for name in names])
        least_s = np.minimum(self.least_s, seconds)
        return (seconds - least_s) / factor + np.where(seconds > 0, self.other_least_s, 0.0)

    def _of(self, kind: KernelClass) -> float:
        if kind is KernelClass.ATTENTION:
            return self.attention
        return self.matrix if kind in ON_MATRIX_UNITS else self.memory


@cache
def facts() -> dict[str, KernelFacts]:
    """Return the properties by accelerator."""
    return datafile.build_all(KernelFacts, DATA)


def speeds(joined: Joined, name: str) -> Speeds:
    """Return the speeds of the built-in accelerator `name` relative to the traced one. Raises ConfigError if either is
    unknown."""
    device = next((trace.about["device"] for trace in joined.traces if "device" in trace.about), "")
    ops = np.flatnonzero(computes(joined))
    names, op_type = joined.graph.op_types.name, joined.graph.ops.op_type[ops]
    return between(device, name, [names[row] for row in op_type.tolist()], durations(joined)[ops])


def between(device: str, name: str, kernels: Sequence[str], seconds: np.ndarray) -> Speeds:
    """Return the speeds of accelerator `name` relative to `device` for `kernels` of `seconds`, float64 (kernels,).
    Raises ConfigError."""
    catalogue = accelerators()
    if name not in catalogue:
        raise ConfigError(datafile.unknown("accelerator", name, catalogue) + "; or say how many times as fast: x2")
    words = set(_WORD.findall(device.lower()))
    best = max(catalogue, key=lambda known: len(words & set(_WORD.findall(known))))
    if not words & set(_MODEL.findall(best)):
        raise ConfigError(
            f"the traced device is {device or 'not named in the trace'}, of which nothing is known here: say how many "
            "times as fast the other one is, such as --accelerator x2"
        )
    other, traced = catalogue[name], catalogue[best]
    precision = _precision(kernels, seconds, traced, other)
    matrix = other.peak(precision) * other.matmul_share / (traced.peak(precision) * traced.matmul_share)
    known, of_other = facts().get(best, KernelFacts()), facts().get(name, KernelFacts())
    both = min(known.attention_flops, of_other.attention_flops) > 0
    attention = of_other.attention_flops / known.attention_flops if both else matrix
    memory = other.memory_bytes_per_s / traced.memory_bytes_per_s
    if not (known.least_s and of_other.least_s):
        return Speeds(matrix, memory, attention)
    return Speeds(matrix, memory, attention, known.least_s, of_other.least_s)


def _precision(kernels: Sequence[str], seconds: np.ndarray, traced: Accelerator, other: Accelerator) -> str:
    """Return the precision with most of the time of GEMMs, by their names; else the best that both accelerators
    support."""
    both = [name for name in _PRECISIONS if name in traced.flops and name in other.flops]
    spent_s = dict.fromkeys(both, 0.0)
    for kernel, duration_s in zip(kernels, seconds.tolist(), strict=True):
        if kernel_class(kernel) in ON_MATRIX_UNITS and (precision := _named_precision(kernel)) in spent_s:
            spent_s[precision] += duration_s
    if any(spent_s.values()):
        return max(both, key=spent_s.__getitem__)
    return next(name for name in ("bf16", "fp16", "fp32") if name in both)


@lru_cache(maxsize=1 << 14)
def _named_precision(kernel: str) -> str:
    plain = kernel.lower()
    return next((name for name, rule in _PRECISIONS.items() if re.search(rule, plain)), "")
