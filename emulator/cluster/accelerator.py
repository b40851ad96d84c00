"""Accelerators: data-sheet parameters of a device, and the emulator's few calibrated constants, which are the same for
all accelerators and jobs. A cluster file may override constants under `[constants]`.
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
"""Bytes per element of the precisions that only linear layers use, including the block scale: one scale for 32 elements
in MXFP8 (OCP Microscaling Formats, 2023, section 5.2), one for 16 in NVFP4, plus one per tensor (NVIDIA, 2025, arXiv
2509.25149, section 2)."""
SCALED_WHOLE, SCALE_BYTES = ("fp8", "nvfp4"), 4.0
"""Precisions with a scale for the whole tensor, and the bytes of its maximum."""


def unquantized(precision: str) -> str:
    """Precision of everything but the linear layers in a job of this `precision`."""
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
    """Streaming multiprocessors, compute units or cores. The tiles of a GEMM are distributed over them."""
    cache_bytes_per_s: float = number(RATE)
    """Aggregate bandwidth from the last-level cache to all processors."""
    watts: float = number(Range(0, 1e9))
    """Thermal design power."""
    architecture: str = ""
    """Architecture that selects kernels; empty: any."""
    matmul_share: float = number(Range(0, 1, "(]"), 0.869)
    """Largest share of half-precision peak that a GEMM reached in measurements; default: A100's, on which
    `gemm_efficiency` was fitted."""
    power_share: float = number(FACTOR, 1.0)
    """Share of `matmul_share` left by the power limit during training, relative to A100."""
    quantized_share: float = number(FACTOR, 1.0)
    """Share of `matmul_share` that GEMMs in fp8, MXFP8 and NVFP4 reach of their peaks."""
    flash_flops: float = number(Range(0, 1e21), 0.0)
    """FLOP/s of FlashAttention-2, forward and backward, causal, head size 128, long sequences; 0: 0.6 of half-precision
    peak."""
    attention_flops: dict[str, float] = number(RATE, factory=dict)
    """FLOP/s of other attention kernels (`emulator/jobs/workload/data/attention.toml`) measured on this device."""
    attention: dict[str, Any] = field(default_factory=dict)
    """A kernel measured on this device, which jobs that name none use: an entry as in that file, its rate in
    `attention_flops` under "measured"."""
    unaligned_times: float = number(Range(1, 1e6), 1.0)
    """Slowdown factor of a GEMM whose operand rows are not aligned (`kernels.ALIGNED_BYTES`); default: not measured."""
    operators: dict[str, Any] = field(default_factory=dict)
    """Kernel constants of scripts on this device; replace those of `emulator/peers/script/data/operators.toml` and are
    read by `emulator/peers/script/costs.py`."""
    price_per_hour: float = number(Range(0, 1e9), 0.0)
    """Dollars; 0: not rented out separately."""
    price_source: str = ""

    def peak(self, precision: str) -> float:
        """Peak FLOP/s in `precision`. Raises ConfigError where the device does not support it."""
        if precision not in self.flops:
            raise ConfigError(f"{self.title} has no {precision}; it has {', '.join(self.flops)}")
        return self.flops[precision]

    def sustained(self, precision: str, gemm_efficiency: float) -> float:
        """Sustained FLOP/s of a large GEMM; `gemm_efficiency` is A100's share of peak."""
        share = self.power_share * self.matmul_share * (self.quantized_share if precision in QUANTIZED_BYTES else 1.0)
        return self.peak(precision) * gemm_efficiency * share / A100_MATMUL_SHARE

    def flash_rate(self, precision: str) -> float:
        """FLOP/s of FlashAttention-2, which runs in half precision even where linear layers are quantized."""
        return self.flash_flops or 0.6 * self.power_share * self.peak(unquantized(precision))


@cache
def accelerators() -> dict[str, Accelerator]:
    """Return the built-in accelerators by name."""
    return datafile.build_all(Accelerator, DATA / "accelerators.toml")


@dataclass(frozen=True)
class Constants(Ranged):
    """Calibrated constants of the cost model; `data/constants.toml` gives the meaning and source of each."""

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
    """A constant's entry in `data/constants.toml`."""

    value: float
    unit: str
    meaning: str
    source: str


@cache
def notes() -> dict[str, Note]:
    """Return every constant with its unit, meaning and source."""
    read = datafile.build_all(Note, DATA / "constants.toml")
    names = {field.name for field in dataclasses.fields(Constants)}
    assert read.keys() == names, read.keys() ^ names
    return read


@cache
def constants() -> Constants:
    """Return the built-in values of all constants."""
    return Constants(**{name: note.value for name, note in notes().items()})
