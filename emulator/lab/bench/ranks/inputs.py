"""The tensors of the all-reduce benchmarks. All ranks share one array: rank r's element i is `inputs[i + r * STRIDE]`,
so no two ranks send the same block, and the exact sums (float64) are known beforehand. Tensors of other dtypes than
float32 are converted from it: rounded for floating point, multiplied by 1000 and rounded for integers.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from emulator.lab.bench.sparsity import Sparsity
from host_agent.tensors import narrow_at, widen_at

_WHOLE = np.float32(1000)
STRIDE = 4099
"""Offset in elements between the inputs of neighboring ranks; a prime, so that packet boundaries differ."""


@dataclass(frozen=True)
class SharedTensors:
    """Paths of the shared inputs (float32) and of the exact sums over all ranks (float64). `sparsity`: which blocks of
    each rank's tensor are zero."""

    workers: int
    elements: int
    inputs: str
    sums: str
    sparsity: Sparsity | None = None

    def read_sums(self) -> np.ndarray:
        """The exact sums, float64[elements]."""
        return np.memmap(self.sums, np.float64, "r")

    def read_inputs(self, rank: int) -> np.ndarray:
        """A rank's tensor before blocks are set to zero, float32[elements or more]."""
        return np.memmap(self.inputs, np.float32, "r")[rank * STRIDE :]

    def zeros(self, rank: int, elements: int) -> np.ndarray | None:
        """bool[elements]: where the rank's tensor is set to zero; None without sparsity."""
        if self.sparsity is None:
            return None
        owned = self.sparsity.owned(self.workers, self.elements)[rank]
        return ~self.sparsity.elements_of(owned, elements)


def stored(x: np.ndarray, dtype: str) -> np.ndarray:
    """Convert float32 `x` to `dtype`. bfloat16 is stored in uint16, as NumPy has no such type; float32 returns `x`
    itself."""
    if dtype == "float32":
        return x
    if dtype == "bfloat16":
        halves, x = np.empty(x.size, np.uint16), np.ascontiguousarray(x)
        narrow_at(x, halves.ctypes.data, dtype)
        return halves
    return (np.rint(_WHOLE * x) if dtype.startswith("int") else x).astype(dtype)


def numbers(x: np.ndarray, dtype: str) -> np.ndarray:
    """Convert the result of `stored` to a dtype that NumPy can calculate with."""
    return widen_at(x.ctypes.data, x.size, dtype) if dtype == "bfloat16" else x


@contextlib.contextmanager
def shared_tensors(elements: int, workers: int, sparsity: Sparsity | None = None) -> Iterator[SharedTensors]:
    """Random tensors in shared memory that is freed when all processes that use it have ended."""
    inputs_fd, sums_fd = os.memfd_create("switchml-bench-inputs"), os.memfd_create("switchml-bench-sums")
    try:
        inputs_path, sums_path = (f"/proc/{os.getpid()}/fd/{fd}" for fd in (inputs_fd, sums_fd))
        inputs = np.memmap(inputs_path, np.float32, "r+", shape=(elements + workers * STRIDE,))
        np.random.default_rng(1).standard_normal(out=inputs, dtype=np.float32)
        sums = np.memmap(sums_path, np.float64, "r+", shape=(elements,))
        masks: Iterable[np.ndarray | bool] = [True] * workers
        if sparsity is not None:
            masks = (sparsity.elements_of(row, elements) for row in sparsity.owned(workers, elements))
        for rank, mine in enumerate(masks):
            np.add(sums, inputs[rank * STRIDE : rank * STRIDE + elements], out=sums, where=mine)
        yield SharedTensors(workers, elements, inputs_path, sums_path, sparsity)
    finally:
        os.close(inputs_fd)
        os.close(sums_fd)
