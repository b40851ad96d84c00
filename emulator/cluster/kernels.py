"""What kernels take on an accelerator. Two kinds: matrix products, dealt to the processors in tiles, wave after wave;
and kernels bound by memory. A list of kernels is an array (kernels, COLUMNS) of float64: batch, m, n, k, bytes, rate,
half, aligned, for weights.
m = 0 marks what only moves `bytes`, in `batch` kernels one after the other (0: one). A matrix product's `bytes` is not
read: it is at least its operands and result. A `rate` that is not 0 is a kernel's own, in FLOP/s; `half` of 1 marks
products that jobs in fp8, mxfp8 and nvfp4 leave in bf16; `aligned` is the number of elements that rows of operands
start at multiples of; `for weights` of 1 marks what only weights' gradients need.
"""

import numpy as np

from emulator.cluster.accelerator import QUANTIZED_BYTES, Accelerator, Constants, unquantized

TILES = np.array([(256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64)], np.float64)
"""Tile shapes of cuBLAS's and CUTLASS's half-precision kernels on Volta to Hopper (names of kernels in profiler
traces)."""

STEP = 32
"""Of k, what a tile takes at once: 32, or 64 (names of cuBLAS's kernels, stages_32x5 and stages_64x3)."""
COLUMNS = 9
ALIGNED_BYTES = 16
"""What rows of operands have to start at for the fast kernels: the most that Ampere's asynchronous copies take at once,
and what strides of Hopper's tensor maps are multiples of (PTX ISA, cp.async; CUDA driver API, cuTensorMapEncodeTiled;
NVIDIA, Matrix Multiplication Background User's Guide, section 2.2). Where rows of a result start matters little: (8193
x 5008) by (5008 x 2501) in bf16 does 509 TFLOP/s on H100 (meta-pytorch/float8_experimental#145)."""
ALIGNED = 32
"""Elements of which 16 bytes are in any precision."""
ELEMENT_BYTES = {**QUANTIZED_BYTES, "fp16": 2, "bf16": 2, "tf32": 4, "fp32": 4}


def gemm(
    m: float, n: float, k: float, batch: float = 1.0, *, half: bool = False, rows: tuple[float, ...] = ()
) -> tuple[float, ...]:
    """A row: `batch` products of (m, k) by (k, n), in bf16 where `half` even if the job is quantized. `rows`: elements
    of the operands' rows, as they lie in memory; default: a multiple of what kernels ask for."""
    aligned = next((each for each in (32, 16, 8, 4, 2) if not any(size % each for size in rows)), 1)
    return (batch, m, n, k, 0.0, 0.0, float(half), float(aligned), 0.0)


def at_rate(flops_per_s: float, m: float, n: float, k: float, batch: float = 1.0) -> tuple[float, ...]:
    """A row: as many FLOPs as such products have, in a kernel that does `flops_per_s`."""
    return (batch, m, n, k, 0.0, flops_per_s, 1.0, float(ALIGNED), 0.0)


def memory(bytes: float, launches: float = 0.0) -> tuple[float, ...]:
    """A row: a kernel that reads and writes `bytes` altogether, or so many `launches` that do it together."""
    return (launches, 0.0, 0.0, 0.0, bytes, 0.0, 0.0, float(ALIGNED), 0.0)


def for_weights(row: tuple[float, ...]) -> tuple[float, ...]:
    """The row, marked."""
    return (*row[:-1], 1.0)


def flops(kernels: np.ndarray) -> float:
    """Floating-point operations of all matrix products: 2 a multiply-add."""
    return float(2.0 * (kernels[:, 0] * kernels[:, 1] * kernels[:, 2] * kernels[:, 3]).sum())


def seconds(
    kernels: np.ndarray, device: Accelerator, constants: Constants, precision: str = "fp16", tiles: np.ndarray = TILES
) -> np.ndarray:
    """float64 (kernels,): how long each takes, running alone, operands in `precision`.

    A matrix product takes ceil(tiles / processors) waves, each as long as one tile on one processor: per step of k the
    slower of multiplying and of reading the operands' slivers from the cache, and a few steps to start and end. Of the
    tile shapes the fastest counts, which is what the libraries' heuristics aim at. Memory traffic bounds it from below
    (roofline: Williams et al., CACM 2009; waves and tiles: NVIDIA, Matrix Multiplication Background User's Guide).
    Where rows of operands are not aligned, a product takes as many times longer as the accelerator's data say.
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
    products *= np.where(element * aligned < ALIGNED_BYTES, device.unaligned_times, 1.0)
    products = np.where(rate > 0, 2 * batch * m * n * k / np.maximum(rate, 1.0), products)
    launches = np.where(is_gemm, 1.0, np.maximum(batch, 1.0))
    return np.maximum(np.where(is_gemm, products, 0.0), moved / memory_rate) + launches * constants.kernel_s


def looped(kernels: np.ndarray) -> int:
    """Launches besides one for each row, where products of a batch are a kernel each."""
    return int((np.maximum(kernels[:, 0], 1.0) - 1.0).sum())
