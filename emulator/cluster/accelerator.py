"""Accelerators: what one device can do, as its data sheet says; and what software makes of it: the emulator's few
physical constants, the same for all accelerators and jobs. A cluster file may set its own under `[constants]`.
"""

import dataclasses
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from emulator import datafile
from emulator.ranges import FACTOR, RATE, SECONDS, Range, Ranged, number
from switchml.errors import ConfigError

DATA = Path(__file__).parent / "data"
A100_MATMUL_SHARE = 0.869
"""271.2 of 312 TFLOP/s, see `matmul_share` below and in `data/accelerators.toml`."""

QUANTIZED_BYTES = {"fp8": 1.0, "mxfp8": 1 + 1 / 32, "nvfp4": 0.5 + 1 / 16}
"""Of an element in the precisions that only linear layers take, with its share of a block's scale: 32 elements have one
in MXFP8 (OCP Microscaling Formats, 2023, section 5.2), 16 in NVFP4, whose tensors have another (NVIDIA, 2025, arXiv
2509.25149, section 2)."""


def unquantized(precision: str) -> str:
    """What the rest of a job in `precision` is computed in."""
    return "bf16" if precision in QUANTIZED_BYTES else precision


@dataclass(frozen=True)
class Accelerator(Ranged):
    """One device: a GPU, one die of a GPU with two, or a CPU socket."""

    title: str
    source: str
    flops: dict[str, float] = number(RATE)
    """Peak FLOP/s by precision (fp32, tf32, fp16, bf16, fp8, mxfp8, nvfp4), dense."""
    memory_bytes: float = number(Range(1, 1e18))
    memory_bytes_per_s: float = number(RATE)
    processors: int = number(Range(1, 10_000_000))
    """Streaming multiprocessors, compute units or cores: a matrix product is dealt to them tile by tile."""
    cache_bytes_per_s: float = number(RATE)
    """Last-level cache to all processors together."""
    watts: float = number(Range(0, 1e9))
    """Thermal design power."""
    architecture: str = ""
    """Whose kernels run on it; empty: any."""
    matmul_share: float = number(Range(0, 1, "(]"), 0.869)
    """The best share of half-precision peak that a matrix product was seen to reach; default: A100's, on which
    `gemm_efficiency` was fitted."""
    power_share: float = number(FACTOR, 1.0)
    """What power limits leave of that in a training job, relative to A100."""
    flash_flops: float = number(Range(0, 1e21), 0.0)
    """FLOP/s of FlashAttention-2, forward and backward, causal, heads of 128, long sequences; 0: 0.6 of half-precision
    peak."""
    attention_flops: dict[str, float] = number(RATE, factory=dict)
    """The same of other kernels (`emulator/jobs/workload/data/attention.toml`), where measured on this device."""
    unaligned_times: float = number(Range(1, 1e6), 1.0)
    """How much longer a product takes whose operands' rows are not aligned (`kernels.ALIGNED_BYTES`); default: nobody
    has measured it."""
    operators: dict[str, Any] = field(default_factory=dict)
    """What kernels of scripts reach on this device, in place of the built-in values
    (`emulator/peers/script/data/operators.toml`; `emulator/peers/script/costs.py` reads it)."""
    price_per_hour: float = number(Range(0, 1e9), 0.0)
    """Dollars; 0: not for rent by itself."""
    price_source: str = ""

    def peak(self, precision: str) -> float:
        """FLOP/s in `precision`; ConfigError where the device has none."""
        if precision not in self.flops:
            raise ConfigError(f"{self.title} has no {precision}; it has {', '.join(self.flops)}")
        return self.flops[precision]

    def sustained(self, precision: str, gemm_efficiency: float) -> float:
        """FLOP/s inside a large matrix product, where `gemm_efficiency` is A100's share of peak."""
        return self.peak(precision) * gemm_efficiency * self.power_share * self.matmul_share / A100_MATMUL_SHARE

    def flash_rate(self, precision: str) -> float:
        """FLOP/s of FlashAttention-2; in half precision also where linear layers are quantized."""
        return self.flash_flops or 0.6 * self.peak(unquantized(precision))


@cache
def accelerators() -> dict[str, Accelerator]:
    """The built-in ones by name."""
    return datafile.build_all(Accelerator, DATA / "accelerators.toml")


@dataclass(frozen=True)
class Constants(Ranged):
    """Meanings and sources: `data/constants.toml`."""

    gemm_efficiency: float = number(FACTOR)
    tile_fill_steps: float = number(Range(0, 1e6))
    cache_efficiency: float = number(FACTOR)
    memory_efficiency: float = number(FACTOR)
    attention_traffic: float = number(Range(0, 1e6))
    loss_bytes_per_logit: float = number(Range(0, 1e6))
    kernel_s: float = number(SECONDS)
    launch_forward_s: float = number(SECONDS)
    launch_backward_s: float = number(SECONDS)
    launch_collective_s: float = number(SECONDS)
    launch_loop_s: float = number(SECONDS)
    launch_operator_s: float = number(SECONDS)
    overlap_exponent: float = number(Range(1, 1e6))
    expert_overlap: float = number(Range(0, 1))
    pipeline_hand_over_s: float = number(SECONDS)
    iteration_s: float = number(SECONDS)
    interference_inside: float = number(Range(0, 1e6))
    interference_between: float = number(Range(0, 1e6))


@dataclass(frozen=True)
class Note:
    """One constant as its file describes it."""

    value: float
    unit: str
    meaning: str
    source: str


@cache
def notes() -> dict[str, Note]:
    """Every constant with its unit, meaning and source."""
    read = datafile.build_all(Note, DATA / "constants.toml")
    names = {field.name for field in dataclasses.fields(Constants)}
    assert read.keys() == names, read.keys() ^ names
    return read


@cache
def constants() -> Constants:
    """The built-in values."""
    return Constants(**{name: note.value for name, note in notes().items()})
