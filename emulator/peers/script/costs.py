"""Durations of operators on an accelerator: GEMMs, convolutions and attention by their shapes, all others by the bytes
moved and the share of the memory bandwidth that their kind of kernel reaches (`data/operators.toml`).
"""

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from emulator import datafile
from emulator.cluster import kernels
from emulator.cluster.accelerator import Accelerator, Constants
from emulator.jobs.workload.implementations import FLASH, attention_kernel, implementations, resolved_attention
from emulator.peers.script import packed, recurrent
from emulator.peers.script.operators import Operator, TensorShape
from emulator.ranges import FACTOR, SECONDS, Range, Ranged, number
from switchml.errors import EmulationError

DATA = Path(__file__).parent / "data" / "operators.toml"


@dataclass(frozen=True)
class Kind:
    """Kernels that reach `share` of the memory bandwidth. `operators`: torch's names without overload. Some, such as
    sums over rows of a batch, move their input `passes` times."""

    operators: tuple[str, ...]
    title: str
    share: float
    passes: float = 1.0
    kernels: int = 1
    reads: bool = True


@dataclass(frozen=True)
class OwnKernels(Ranged):
    """What an accelerator's file gives under `operators` in place of the table's values: those of kernels on that
    device. `shares`: by kind."""

    kernel_s: float | None = number(SECONDS, None)
    launch_s: float | None = number(SECONDS, None)
    """Of an operator on the host, forward."""
    gemm_efficiency: float | None = number(FACTOR, None)
    tile_fill_steps: float | None = number(Range(0, 1e6), None)
    shares: dict[str, float] = number(Range(0, 1, "(]"), factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        known = ["element_wise", *_table()["kinds"]]
        for kind in self.shares:
            datafile.check_name("kind of operator", kind, known)

    def products(self) -> dict[str, float]:
        """Those of matrix products that are given."""
        both = {"gemm_efficiency": self.gemm_efficiency, "tile_fill_steps": self.tile_fill_steps}
        return {name: value for name, value in both.items() if value is not None}


@cache
def _table() -> dict[str, Any]:
    return datafile.load(DATA)


@cache
def _kinds(shares: tuple[tuple[str, float], ...]) -> dict[str, Kind]:
    """By operator; `shares`: of some kinds, in place of the table's."""
    found: dict[str, Kind] = {}
    for name, entry in _table()["kinds"].items():
        own = dict(shares).get(name, entry["share"])
        kind = Kind(**{**entry, "operators": tuple(entry["operators"]), "share": own})
        found |= dict.fromkeys(kind.operators, kind)
    return found


def _of(table: dict[str, Any], accelerator: Accelerator) -> dict[str, Any]:
    """Return a table's entry for an architecture."""
    found: dict[str, Any] = table.get(accelerator.architecture, table["default"])
    return found


class Costs:
    """Durations of operators on one accelerator, in seconds."""

    def __init__(self, accelerator: Accelerator, software: Constants, host_link_bytes_per_s: float = math.inf):
        own = datafile.build(OwnKernels, accelerator.operators, "accelerator, operators")
        table = _table()
        self._accelerator, self._host_link_bytes_per_s = accelerator, host_link_bytes_per_s
        self._launch_s = software.launch_operator_s if own.launch_s is None else own.launch_s
        self._convolution_share = float(table["convolutions"]["share"])
        self._kernel_s = float(table["kernel_s"]) if own.kernel_s is None else own.kernel_s
        products = {name: value for name, value in _of(table["products"], accelerator).items() if name != "source"}
        self._constants = dataclasses.replace(software, kernel_s=self._kernel_s, **products | own.products())
        self._host = table["host"]
        self._tiles = np.array(table["tiles"], np.float64)
        self._kinds = _kinds(tuple(own.shares.items()))
        self._default = Kind(
            (), **table["default"] | {"share": own.shares.get("element_wise", table["default"]["share"])}
        )
        self._compiled = table["compiled"]
        self._known_s: dict[int, float] = {}
        """Cached durations, by operator number."""

    def _kind(self, operator: Operator) -> Kind:
        return self._kinds.get(operator.base, self._default)

    def share(self, operator: Operator) -> float:
        """What an operator bound by memory reaches of the memory's rate."""
        return self._kind(operator).share

    def title(self, operator: Operator) -> str:
        """Return the display name of the operator's kind of kernel."""
        if operator.crosses:
            return "copies between host and GPU"
        if "lengths" in operator.options:
            return "attention"
        for title, names in _TITLES.items():
            if operator.base in names:
                return title
        return self._kind(operator).title

    def multiplies(self, operator: Operator) -> bool:
        """Return whether the operator is a cuBLAS GEMM."""
        return operator.base in _TITLES["matrix products"]

    def is_shaped(self, operator: Operator) -> bool:
        """Return whether the operator's cost follows from shapes, as of GEMMs, rather than bytes; a compiler does not
        fuse these."""
        return _shaped(operator) is not None or operator.crosses or _PRODUCT.search(operator.base) is not None

    def check(self, operator: Operator) -> None:
        """Raise EmulationError for operators of an iteration that take far longer than moving their bytes."""
        if operator.base in _FACTORIZATIONS and (rows := min(operator.inputs[0].size[-2:])) > _SMALL_ROWS:
            raise EmulationError(
                f"{operator.name} can't be emulated: there is no cost of factorizing or solving a matrix of {rows} "
                f"rows; expected at most {_SMALL_ROWS}"
            )

    def reduces(self, operator: Operator) -> bool:
        """Return whether the operator is a reduction, which fuses with operators over its input's elements."""
        return self._kind(operator).title in _REDUCED or operator.base in ("prod", "logsumexp")

    def read_bytes(self, operator: Operator, shape: TensorShape) -> int:
        """Return the bytes read of an input: all, none, or as many as are written."""
        kind = self._kind(operator)
        return shape.bytes if kind.reads else min(shape.bytes, operator.written_bytes) if kind.passes > 1 else 0

    def fused_s(self, operators: Sequence[Operator], bytes: float) -> float:
        """Return the duration of a fused kernel of operators over the same elements that moves `bytes`. Inputs of
        reductions over batch rows are read once more."""
        kinds = [self._kind(one) for one in operators]
        again = sum(
            sum(shape.bytes for shape in one.inputs)
            for one, kind in zip(operators, kinds, strict=True)
            if self.reduces(one) and ((kind.reads and kind.passes > 1) or kind.kernels == 2)
        )
        share = self._compiled["reduction" if any(map(self.reduces, operators)) else "element_wise"]
        return float((bytes + again) / (self._accelerator.memory_bytes_per_s * share) + self._kernel_s)

    def compiled_host_s(self) -> float:
        """Return the host time to launch a kernel from compiled code."""
        return float(self._launch_s * self._compiled["host"])

    def host_s(self, operator: Operator, is_backward: bool) -> float:
        """Return the host time to launch an operator."""
        host = self._host["backward" if is_backward else "forward"]
        if not operator.has_kernel:
            return float(self._launch_s * host["view"])
        is_recurrent = operator.base in _TITLES["recurrent layers"]
        kernels = recurrent.work(operator).kernels if is_recurrent else self._kind(operator).kernels
        return float(self._launch_s * (host["kernel"] + (kernels - 1) * host["more"]))

    def device_s(self, operator: Operator) -> float:
        """Return the operator's duration on the device; 0: it has no kernel."""
        if operator.number not in self._known_s:
            self._known_s[operator.number] = self._cost_of(operator)
        return self._known_s[operator.number]

    def _cost_of(self, operator: Operator) -> float:
        if not operator.has_kernel:
            return 0.0
        if operator.crosses:
            return operator.written_bytes / self._host_link_bytes_per_s + self._kernel_s
        shaped = _shaped(operator)
        if shaped is not None:
            return shaped(self, operator)
        if self.is_shaped(operator):
            what = "kernel of attention" if "att" in operator.base else "matrix product or convolution"
            raise EmulationError(f"{operator.name} can't be emulated: there is no cost of this {what}")
        kind = self._kind(operator)
        moved = (operator.bytes if kind.reads else operator.written_bytes) * kind.passes
        return moved / (self._accelerator.memory_bytes_per_s * kind.share) + kind.kernels * self._kernel_s

    def compiled_s(self, operator: Operator) -> float:
        """Return the operator's duration in compiled code: operands of a GEMM with unaligned rows are copied to aligned
        ones if that is faster (torch/_inductor/fx_passes/pad_mm.py)."""
        alone = self.device_s(operator)
        unaligned = [
            one
            for one in (_operands(operator) if operator.base in _MATRICES else ())
            if kernels.alignment(_row_steps(one)) * one.element_bytes < kernels.ALIGNED_BYTES
        ]
        if not unaligned:
            return alone
        copied_s = self._moved_s(2.0 * sum(one.bytes for one in unaligned))
        return min(alone, _matrix(self, operator, aligned=True) + copied_s)

    def _moved_s(self, bytes: float) -> float:
        """Duration of moving bytes by an element-wise kernel."""
        return bytes / (self._accelerator.memory_bytes_per_s * self._default.share)

    def product(
        self, m: float, n: float, k: float, batch: float, dtype: torch.dtype, tf32: bool, steps: tuple[int, ...] = ()
    ) -> float:
        """Return the duration of `batch` GEMMs; `steps`: elements between the operands' rows, default: aligned. If
        there are fewer output tiles than processors, parts of k are distributed over several processors, whose results
        are added up (split-K)."""
        precision = _PRECISIONS.get(dtype, "fp32")
        if dtype.itemsize == 1 and precision not in self._accelerator.flops:
            raise EmulationError(f"{dtype} products can't be emulated: {self._accelerator.title} has no rate of fp8")
        if precision == "fp32" and tf32 and "tf32" in self._accelerator.flops:
            precision = "tf32"
        if precision not in self._accelerator.flops:
            precision = "fp32"
        parts = np.array([part for part in _SPLITS if part == 1 or k / part >= 256])
        rows = np.array([kernels.gemm(m, n, k / part, batch * part, rows=steps) for part in parts])
        products = kernels.seconds(rows, self._accelerator, self._constants, precision, self._tiles)
        added = np.array([self._moved_s(8.0 * m * n * batch * part) if part > 1 else 0.0 for part in parts])
        return float((products + added).min())

    def attention(self, operator: Operator, backward: bool) -> float:
        """Return the duration of a kernel that keeps scores on chip: (batch, heads, sequence, head)."""
        query, key = operator.inputs[1 if backward else 0], operator.inputs[2 if backward else 1]
        batch, heads, length, head = query.size
        precision = self._attention_precision(query.dtype)
        if operator.base.startswith("flex"):
            name, is_causal, computed = "flex", False, operator.options["share"]
        else:
            name, is_causal = self._attention_kernel(operator, precision), bool(operator.options.get("is_causal"))
            computed = 0.5 if is_causal else 1.0
        kernel = attention_kernel(name, self._accelerator)
        rate = kernel.rates(self._accelerator, name, precision, length, head, is_causal=is_causal)[backward]
        work = 4.0 * batch * heads * length * key.size[2] * head * (2.5 if backward else 1.0) * computed
        return float(work / rate + self._kernel_s)

    def packed_attention(self, operator: Operator) -> float:
        """Return the duration of such a kernel over packed sequences: (…, tokens, heads, head)."""
        backward = operator.options["is_backward"]
        *_, heads, head = operator.inputs[0].size
        precision = self._attention_precision(operator.inputs[0].dtype)
        name = self._attention_kernel(operator, precision)
        kernel = attention_kernel(name, self._accelerator)
        is_causal, sequences = packed.work(operator)
        seconds = sum(
            4.0 * heads * head * pairs * (2.5 if backward else 1.0)
            / kernel.rates(self._accelerator, name, precision, length, head, window, is_causal)[backward]
            for pairs, length, window in sequences
        )  # fmt: skip
        return float(seconds + self._kernel_s)

    def _attention_precision(self, dtype: torch.dtype) -> str:
        flops = self._accelerator.flops
        return next(one for one in (_PRECISIONS.get(dtype, "fp32"), "fp16", "fp32") if one in flops)

    def _attention_kernel(self, operator: Operator, precision: str) -> str:
        """Return the kernel behind `scaled_dot_product_attention`: cuDNN's counts as either of torch's two."""
        chosen = resolved_attention(FLASH, implementations()["torch"], self._accelerator, precision)
        return "efficient" if "efficient" in operator.base and chosen == "sdpa" else chosen


_ATTENTION = {
    f"{one}_attention{way}": way == "_backward"
    for one in ("_scaled_dot_product_flash", "_scaled_dot_product_efficient", "flex")
    for way in ("", "_backward")
}
"""Kernels that keep scores on chip, and whether they are of the backward pass."""

_REDUCED = ("reductions", "normalization", "softmax and loss")

_SPLITS = (1, 2, 4, 8, 16, 32)

_PRECISIONS = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    **dict.fromkeys((torch.float8_e4m3fn, torch.float8_e5m2, torch.int8), "fp8"),  # int8 at the same peak
}

_PRODUCT = re.compile(
    r"(^|[_.])([a-z]*mm|[a-z]*gemm|gemv|matmul|linear|conv|conv\dd|conv_\w+|convolution|cdist)(_|$)|attn|attention"
)
"""Names of operators that multiply matrices, those of packages included."""

_SMALL_ROWS = 32
"""Rows of matrices that one kernel factorizes."""

_FACTORIZATIONS = {
    *("_linalg_det", "_linalg_eigh", "_linalg_eigvals", "_linalg_slogdet", "_linalg_solve_ex", "_linalg_svd"),
    *("linalg_cholesky_ex", "linalg_eig", "linalg_householder_product", "linalg_inv_ex", "linalg_ldl_factor_ex"),
    *("linalg_ldl_solve", "linalg_lstsq", "linalg_lu", "linalg_lu_factor_ex", "linalg_lu_solve", "linalg_matrix_exp"),
    *("linalg_qr", "linalg_solve_triangular", "triangular_solve", "cholesky_inverse", "_cholesky_solve_helper"),
    *("geqrf", "ormqr", "cholesky"),
}

_MATRICES = {
    **dict.fromkeys(("mm", "bmm", "_scaled_mm", "_int_mm"), 0),
    **dict.fromkeys(("addmm", "baddbmm", "addbmm", "_addmm_activation"), 1),
}
"""Dense GEMMs, and the first of their two operands among the inputs."""


def _operands(operator: Operator) -> tuple[TensorShape, ...]:
    return operator.inputs[_MATRICES[operator.base] :][:2]


def _matrix(self: Costs, operator: Operator, *, aligned: bool = False) -> float:
    left, right = _operands(operator)
    (m, k), n = left.size[-2:], right.size[-1]
    batch = math.prod(left.size[:-2])
    steps = () if aligned else (*_row_steps(left), *_row_steps(right))
    return self.product(m, n, k, batch, left.dtype, operator.tf32[0], steps)


def _row_steps(shape: TensorShape) -> tuple[int, ...]:
    """Return the elements between rows (or columns, of a transposed matrix) and between matrices of a batch; a matrix
    with neither contiguous is copied first (at::native::prepare_batch_matrix_for_cublas)."""
    *batch, high, wide = zip(shape.size, shape.stride, strict=True)
    across = wide[1] if high[1] == 1 and wide[1] > 1 else high[1] if wide[1] == 1 else wide[0]
    return (across, *(step for length, step in batch if length > 1))


def _grouped(self: Costs, operator: Operator) -> float:
    """Return the duration of a grouped GEMM, with rows evenly distributed over groups."""
    left, right, out = operator.inputs[0], operator.inputs[1], operator.outputs[0]
    groups = next(one.size[0] for one in (right, left, out) if len(one.size) == 3)
    rows, inner = map(float, left.size[-2:])
    if len(left.size) == len(right.size) == 2:
        inner /= groups
    elif len(left.size) == 2:
        rows /= groups
    return self.product(rows, right.size[-1], inner, groups, left.dtype, operator.tf32[0])


def _linear(self: Costs, operator: Operator, dequantizes: bool = False) -> float:
    """Return the duration of a product of bitsandbytes; of weights in four bits, which are first written in the
    input's dtype."""
    left, out = operator.inputs[0], operator.outputs[0]
    n, k = out.size[-1], left.size[-1]
    written = n * k * (left.element_bytes + 0.5) if dequantizes else 0.0
    product = self.product(out.elements // n, n, k, 1, left.dtype, operator.tf32[0])
    return product + self._moved_s(written)


def _convolution(self: Costs, operator: Operator) -> float:
    image, weight, out = operator.inputs[0], operator.inputs[1], operator.outputs[0]
    return _convolve(self, operator, out, weight, image.dtype, 1)


def _convolution_backward(self: Costs, operator: Operator) -> float:
    gradient, _, weight = operator.inputs[:3]
    wanted = operator.options["output_mask"]
    return sum(
        _convolve(self, operator, gradient, weight, gradient.dtype, which) for which in (2, 3) if wanted[which - 2]
    ) + (0.0 if not wanted[2] else self._kernel_s)


def _convolve(
    self: Costs, operator: Operator, out: TensorShape, weight: TensorShape, dtype: torch.dtype, which: int
) -> float:
    """Return the duration of a convolution as an implicit GEMM: forward (1), input gradient (2), weight gradient
    (3)."""
    pixels = out.elements // out.size[1]
    channels, window = weight.size[0], math.prod(weight.size[1:])
    shapes = {1: (pixels, channels, window), 2: (pixels, window, channels), 3: (window, channels, pixels)}
    m, n, k = shapes[which]
    taps = math.prod(weight.size[2:])
    if which == 2 and taps > 1:
        m, n, k = pixels, weight.size[1], channels * taps
    computed = self.product(m, n, k, 1, dtype, operator.tf32[1])
    moved = operator.bytes / (2 if which > 1 else 1)
    return float(max(computed, self._moved_s(moved)) / self._convolution_share)


def _recurrent(self: Costs, operator: Operator) -> float:
    work, dtype = recurrent.work(operator), operator.inputs[0].dtype
    products = sum(times * self.product(m, n, k, 1, dtype, operator.tf32[1]) for m, n, k, times in work.products)
    return float(products + self._moved_s(work.moved_bytes) + work.others * self._kernel_s)


def _distances(self: Costs, operator: Operator) -> float:
    """Return the duration of `cdist` without a GEMM: each pair of rows is read."""
    left, right = operator.inputs[:2] if operator.base == "_cdist_forward" else operator.inputs[1:3]
    pairs = math.prod(left.size[:-1]) * right.size[-2]
    return self._moved_s(pairs * (2.0 * left.size[-1] + 1) * left.element_bytes) + self._kernel_s


_TITLES = {
    "matrix products": (
        *(*_MATRICES, "_grouped_mm", "_scaled_grouped_mm"),
        *("bitsandbytes.gemm_4bit", "bitsandbytes.int8_scaled_mm", "bitsandbytes.int8_linear_matmul"),
    ),
    "convolutions": ("convolution", "convolution_backward"),
    "recurrent layers": ("_cudnn_rnn", "_cudnn_rnn_backward"),
    "attention": tuple(_ATTENTION),
}

_SHAPED: dict[str, Callable[[Costs, Operator], float]] = {
    **dict.fromkeys(_MATRICES, _matrix),
    "_grouped_mm": _grouped,
    "_scaled_grouped_mm": _grouped,
    "bitsandbytes.gemm_4bit": lambda self, one: _linear(self, one, dequantizes=True),
    "bitsandbytes.int8_scaled_mm": lambda self, one: _linear(self, one),
    "bitsandbytes.int8_linear_matmul": lambda self, one: _linear(self, one),
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    **dict.fromkeys(("_cdist_forward", "_cdist_backward"), _distances),
    "_cudnn_rnn": _recurrent,
    "_cudnn_rnn_backward": _recurrent,
    **{name: partial(Costs.attention, backward=is_backward) for name, is_backward in _ATTENTION.items()},
}


def _shaped(operator: Operator) -> Callable[[Costs, Operator], float] | None:
    """Return the rule for an operator whose cost follows from shapes."""
    return Costs.packed_attention if "lengths" in operator.options else _SHAPED.get(operator.base)
