"""Classifies kernels and operators by name: PyTorch's operators and kernels, cuBLAS, cuDNN, CUTLASS, NCCL, and rocBLAS,
MIOpen, RCCL. `tests/emulator/traces/kernel_names.csv` checks the rules against names of real traces.
"""

import re
from enum import Enum
from functools import lru_cache

from emulator.traces.communication_kernels import family_of


class KernelClass(Enum):
    """Classes with different performance limits."""

    COMMUNICATION = "communication"
    COPY = "copy"
    """Copies, fills, changes of layout."""
    EMBEDDING = "embedding"
    ATTENTION = "attention"
    """Fused attention."""
    NORMALIZATION = "normalization"
    """Layer, batch, group and RMS norm, and softmax."""
    OPTIMIZER = "optimizer"
    CONVOLUTION = "convolution"
    GEMM = "GEMM"
    """Matrix-matrix and matrix-vector products."""
    OTHER = "other"
    """Element-wise operations, reductions, pooling, sorting, …"""


ON_MATRIX_UNITS = frozenset({KernelClass.ATTENTION, KernelClass.CONVOLUTION, KernelClass.GEMM})
"""Classes computed by matrix units and bound by FLOP/s; the others are bound by memory."""

_RULES = {
    KernelClass.COMMUNICATION: r"^([nrxh]ccl|gloo|mpi|ucc|switchml)[:.]|^c10d::|record_param_comms",
    KernelClass.COPY: r"^mem(cpy|set)|copybuffer|fillbuffer|batchedcopy|direct_copy|^copy(host|device)"
    r"|nchwtonhwc|nhwctonchw|^aten::(copy_|_to_copy|to|clone|contiguous|cat|zero_|fill_)$",
    KernelClass.EMBEDDING: r"embedding|index_?select",
    KernelClass.ATTENTION: r"flash|fmha|attention|(?<![a-z])attn(?![a-z])|sdpa",
    KernelClass.NORMALIZATION: r"(layer|batch|group|instance|rms)_?norm|softmax|(?<![a-z])bn_|(?<![a-z])ln_(fwd|bwd)"
    r"|gammabeta|rowwisemoments",
    KernelClass.OPTIMIZER: r"multi_tensor_apply|_foreach_|optimizer|adam|adagrad|(?<![a-z])(sgd|lamb)(?![a-z])",
    KernelClass.CONVOLUTION: r"conv(?!e)|fprop|dgrad|wgrad|implicit_?gemm|winograd|igemm|cudnn|fft2d",
    KernelClass.GEMM: r"(?<!fb)gemm(?!::)|gemv|cutlass|cijk_|nvjet|matmul|splitkreduce|einsum|tensordot"
    r"|(?<![a-z])(linear|((add|baddb|b|scaled_)?m[mv]))(backward|(?![a-z]))",
}
"""The first match is used, after the kernels of `communication_kernels`. Names are compared in lower case."""
_COMPILED = {kernel: re.compile(rule) for kernel, rule in _RULES.items()}


@lru_cache(maxsize=1 << 14)
def kernel_class(name: str) -> KernelClass:
    """Return the class of a kernel (mangled or not), an operator (`aten::addmm`) or an annotation
    (`gloo:all_reduce`)."""
    if family_of(name) is not None:
        return KernelClass.COMMUNICATION
    plain = name.lower()
    return next((kernel for kernel, rule in _COMPILED.items() if rule.search(plain)), KernelClass.OTHER)
