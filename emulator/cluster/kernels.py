"""Cost model of kernels on an accelerator. Two kinds: GEMMs, whose tiles run on the processors in waves; and
memory-bound kernels. A list of kernels is an array (kernels, COLUMNS) of float64: batch, m, n, k, bytes, rate, half,
aligned, for weights.

m = 0 marks a memory-bound operation on `bytes`, in `batch` sequential kernels (0: one). `bytes` of a GEMM is ignored:
its traffic is at least its operands and result. A nonzero `rate` is the kernel's own, in FLOP/s; `half` of 1 marks
GEMMs that jobs in fp8, mxfp8 and nvfp4 run in bf16; `aligned` is the number of elements to whose multiples operand rows
are aligned; `for weights` of 1 marks kernels that only weight gradients need.
"""

from collections.abc import Iterable

import numpy as np

from emulator.cluster.accelerator import QUANTIZED_BYTES, Accelerator, Constants, unquantized

TILES = np.array([(256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64)], np.float64)
"""Tile shapes of cuBLAS's and CUTLASS's half-precision kernels on Volta to Hopper (names of kernels in profiler
traces)."""

STEP = 32
"""Elements of k per tile step: 32, or 64 (names of cuBLAS's kernels, stages_32x5 and stages_64x3)."""
COLUMNS = 9
ALIGNED_BYTES = 16
"""Alignment of operand rows for the fast kernels: the maximum of Ampere's asynchronous copies, and the stride
granularity of Hopper's tensor maps (PTX ISA, cp.async; CUDA driver API, cuTensorMapEncodeTiled; NVIDIA, Matrix
Multiplication Background User's Guide, section 2.2). The alignment of result rows matters little: (8193 x 5008) by
(5008 x 2501) in bf16 does 509 TFLOP/s on H100 (meta-pytorch/float8_experimental#145)."""
ALIGNED = 32
"""Elements that make up at least 16 bytes in any precision."""
ELEMENT_BYTES = {**QUANTIZED_BYTES, "fp16": 2, "bf16": 2, "tf32": 4, "fp32": 4}


def gemm(
    m: float, n: float, k: float, batch: float = 1.0, *, half: bool = False, rows: tuple[float, ...] = ()
) -> tuple[float, ...]:
    """Return the row of a GEMM: `batch` products of (m, k) by (k, n), in bf16 if `half`, even in a quantized job.
    `rows`: row lengths of the operands in memory, in elements; default: aligned."""
    return (batch, m, n, k, 0.0, 0.0, float(half), float(alignment(rows)), 0.0)


def alignment(rows: Iterable[float]) -> int:
    """Return the number of elements, at most ALIGNED, to whose multiples rows of these lengths are aligned."""
    return next((each for each in (32, 16, 8, 4, 2) if not any(size % each for size in rows)), 1)


def at_rate(flops_per_s: float, m: float, n: float, k: float, batch: float = 1.0) -> tuple[float, ...]:
    """Return the row of a kernel with the FLOPs of these GEMMs and a fixed rate of `flops_per_s`."""
    return (batch, m, n, k, 0.0, flops_per_s, 1.0, float(ALIGNED), 0.0)


def memory(bytes: float, launches: float = 0.0) -> tuple[float, ...]:
    """Return the row of a kernel that reads and writes `bytes` in total, or of `launches` kernels that share them."""
    return (launches, 0.0, 0.0, 0.0, bytes, 0.0, 0.0, float(ALIGNED), 0.0)


def for_weights(row: tuple[float, ...]) -> tuple[float, ...]:
    """Return the row, marked as needed for weight gradients only."""
    return (*row[:-1], 1.0)


def flops(kernels: np.ndarray) -> float:
    """Floating-point operations of all GEMMs: 2 for each multiply-add."""
    return float(2.0 * (kernels[:, 0] * kernels[:, 1] * kernels[:, 2] * kernels[:, 3]).sum())


def seconds(
    kernels: np.ndarray, device: Accelerator, constants: Constants, precision: str = "fp16", tiles: np.ndarray = TILES
) -> np.ndarray:
    """Duration of each kernel, running alone, with operands in `precision`; float64 (kernels,).

    A GEMM takes ceil(tiles / processors) waves, each as long as one tile on one processor: per step of k the slower of
    multiplying and of reading the operands' slivers from the cache, plus a few steps of ramp-up and drain. The fastest
    tile shape is used, approximating the libraries' heuristics. Memory traffic is a lower bound (roofline: Williams et
    al., CACM 2009; waves and tiles: NVIDIA, Matrix Multiplication Background User's Guide). Unaligned operand rows
    multiply the duration by the accelerator's `unaligned_times`.
    """
    kernels = np.asarray(kernels, np.float64).reshape(-1, COLUMNS)
    batch, m, n, k, moved, rate, half, aligned, _ = kernels.T
    is_quantized = (half == 0) & (precision in QUANTIZED_BYTES)
    element = np.where(is_quantized, ELEMENT_BYTES[precision], max(2, ELEMENT_BYTES[precision]))
    wide_rate = device.sustained(unquantized(precision), constants.gemm_efficiency)
    flops_per_s = np.where(is_quantized, device.sustained(precision, constants.gemm_efficiency), wide_rate)
    memory_rate = device.memory_bytes_per_s * constants.memory_efficiency
    is_gemm = m > 0
    moved = np.where(is_gemm, element * batch * (m * k + k * n + m * n), moved)
    high, wide = tiles[:, :1], tiles[:, 1:]
    multiply_s = 2 * high * wide * device.processors / flops_per_s
    read_s = element * (high + wide) * device.processors / (device.cache_bytes_per_s * constants.cache_efficiency)
    waves = np.ceil(batch * np.ceil(m / high) * np.ceil(n / wide) / device.processors)
    steps = np.ceil(k / STEP) * STEP + constants.tile_fill_steps
    products = (waves * np.maximum(multiply_s, read_s) * steps).min(axis=0)
    if precision != "fp32":
        products *= np.where(element * aligned < ALIGNED_BYTES, device.unaligned_times, 1.0)
    products = np.where(rate > 0, 2 * batch * m * n * k / np.maximum(rate, 1.0), products)
    launches = np.where(is_gemm, 1.0, np.maximum(batch, 1.0))
    return np.maximum(np.where(is_gemm, products, 0.0), moved / memory_rate) + launches * constants.kernel_s


def looped(kernels: np.ndarray) -> int:
    """Additional launches beyond one per row, where each product of a batch is its own kernel."""
    return int((np.maximum(kernels[:, 0], 1.0) - 1.0).sum())
