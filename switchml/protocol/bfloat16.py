"""bfloat16 for those who have no such dtype: NumPy sees the 16 bits as uint16, we widen and narrow them."""

import numpy as np

from switchml.runtime.jit import int64, kernel


@kernel
def widen(halves: np.ndarray, floats: np.ndarray) -> None:
    """bfloat16 bits (uint16[k]) to float32 bits (uint32[k]); exact."""
    for i in range(halves.size):
        floats[i] = np.uint32(halves[i]) << np.uint32(16)


@kernel
def narrow(floats: np.ndarray, halves: np.ndarray) -> None:
    """float32 bits (uint32[k]) to bfloat16 bits (uint16[k]), to nearest even; NaN stays NaN."""
    for i in range(floats.size):
        bits = int64(floats[i])
        if bits & 0x7FFFFFFF > 0x7F800000:
            halves[i] = np.uint16((bits >> 16) | 0x40)
        else:
            halves[i] = np.uint16((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)
