"""The tensors of the all-reduce benchmarks. All ranks share one array: rank r's element i is `inputs[i + r * STRIDE]`,
so no two ranks send the same block, and the exact sums (float64) are known beforehand. Those of another dtype than
float32 are made of them: rounded, or 1000 times as large and whole.
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
"""Elements between the inputs of neighbouring ranks; a prime, so that blocks of packets cut them differently."""


@dataclass(frozen=True)
class SharedTensors:
    """Files of the inputs (float32) and of the exact sums of all ranks (float64). `sparsity`: which blocks of each
    rank's tensor are zeros."""

    workers: int
    elements: int
    inputs: str
    sums: str
    sparsity: Sparsity | None = None

    def read_sums(self) -> np.ndarray:
        """float64[elements]."""
        return np.memmap(self.sums, np.float64, "r")

    def read_inputs(self, rank: int) -> np.ndarray:
        """float32[elements or more]: a rank's tensor before blocks are set to zero."""
        return np.memmap(self.inputs, np.float32, "r")[rank * STRIDE :]

    def zeros(self, rank: int, elements: int) -> np.ndarray | None:
        """bool[elements]: where the rank's tensor is zero whatever its input is; None if nowhere."""
        if self.sparsity is None:
            return None
        owned = self.sparsity.owned(self.workers, self.elements)[rank]
        return ~self.sparsity.elements_of(owned, elements)


def stored(x: np.ndarray, dtype: str) -> np.ndarray:
    """float32 `x` as elements of `dtype`: bfloat16 in uint16, for want of a NumPy type; `x` itself if that is it."""
    if dtype == "float32":
        return x
    if dtype == "bfloat16":
        halves, x = np.empty(x.size, np.uint16), np.ascontiguousarray(x)
        narrow_at(x, halves.ctypes.data, dtype)
        return halves
    return (np.rint(_WHOLE * x) if dtype.startswith("int") else x).astype(dtype)


def numbers(x: np.ndarray, dtype: str) -> np.ndarray:
    """What `stored` made, as numbers that NumPy can calculate with."""
    return widen_at(x.ctypes.data, x.size, dtype) if dtype == "bfloat16" else x


@contextlib.contextmanager
def shared_tensors(elements: int, workers: int, sparsity: Sparsity | None = None) -> Iterator[SharedTensors]:
    """Random tensors in memory that is freed when all processes that use it have ended."""
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
