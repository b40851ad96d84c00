"""The kernels of fixedpoint.py on Python values: encode, decode, codes and classes."""

import struct
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

from switchml.protocol import fixedpoint
from tests.support import reference_fixedpoint as reference

FLOATS, INTEGERS, NARROW = ("float32", "float64"), ("int32/limbs", "int64/limbs"), ("float32/int16", "float32/int8")
ELEMENT = {dtype: reference.element(dtype) for dtype in reference.LANES}
LANE = {dtype: np.dtype(f">i{reference.lane_bytes(dtype)}") for dtype in reference.LANES}
EVERY_WORKERS = range(1, 257)
CODES = range(-128, 127)
FLOAT32_CANONICAL = [*range(-128, 125, 4), 126]
FLOAT64_CANONICAL = list(range(-127, 122, 2))
LARGEST = {"float32": (2 - 2**-23) * 2.0**127, "float64": (2 - 2**-52) * 2.0**1023}
SMALLEST = {"float32": 2.0**-149, "float64": 2.0**-1074}
WIDTH = {"float32": 32, "float64": 64}


def headroom(dtype: str, workers: int) -> int:
    return fixedpoint.headroom(workers)[fixedpoint.WIRES[fixedpoint.FORMATS[dtype]]]


def encode(dtype, values, used, workers, finite_only=False, spare=0) -> list[int]:
    """The compiled encoder, with `spare` unused lanes at the end."""
    source = np.array(values, ELEMENT[dtype])
    lanes = np.full(reference.LANES[dtype] * source.size + spare, 0x55, LANE[dtype])
    fixedpoint.encode(
        fixedpoint.FORMATS[dtype], source.ctypes.data, source.size, lanes.ctypes.data, lanes.size, used,
        headroom(dtype, workers), finite_only,
    )  # fmt: skip
    return lanes.tolist()


def decode(dtype, sums, used, workers, divisor=1) -> tuple[np.ndarray, int]:
    """The compiled decoder: (values, misfits)."""
    lanes = np.array(sums, LANE[dtype])
    target = np.full(lanes.size // reference.LANES[dtype], 77, ELEMENT[dtype])
    misfits = fixedpoint.decode(
        fixedpoint.FORMATS[dtype], lanes.ctypes.data, target.ctypes.data, target.size, used, headroom(dtype, workers),
        divisor,
    )  # fmt: skip
    return target, misfits


def need(dtype, values, finite_only=False) -> int:
    source = np.array(values, ELEMENT[dtype])
    return fixedpoint.need_of(fixedpoint.FORMATS[dtype], source.ctypes.data, source.size, finite_only)


def bits(dtype, values) -> list[bytes]:
    """The bits of a result, for comparisons; all NaNs are equal."""
    pack = {"float32": ">f", "float64": ">d", "int32": ">i", "int64": ">q"}[ELEMENT[dtype]]
    return [b"NaN" if x != x else struct.pack(pack, x) for x in np.asarray(values, ELEMENT[dtype]).tolist()]


def floats(dtype, **options):
    """Floats of all magnitudes: hypothesis alone rarely goes far from 1."""
    width = WIDTH[dtype]
    top = {32: 0x7F7FFFFF, 64: 0x7FEFFFFFFFFFFFFF}[width]
    pack, unpack = {32: ("<I", "<f"), 64: ("<Q", "<d")}[width]
    spread = st.builds(
        lambda b, sign: sign * struct.unpack(unpack, struct.pack(pack, b))[0],
        st.integers(0, top),
        st.sampled_from([1.0, -1.0]),
    )
    return spread | st.floats(width=width, **options)


def below(exponent: int, dtype: str) -> float:
    """The largest number of a type that is less than 2^exponent."""
    precision, lowest, _ = reference.SHAPES[dtype]
    return float(Fraction(2) ** exponent - Fraction(2) ** max(exponent - precision, lowest - precision + 1))


def classified(dtype, values) -> list[int]:
    source = np.array(values, ELEMENT[dtype])
    lanes = np.full(reference.LANES[dtype] * source.size + 1, 0x55, LANE[dtype])
    fixedpoint.classify(fixedpoint.FORMATS[dtype], source.ctypes.data, source.size, lanes.ctypes.data, lanes.size)
    assert lanes[-1] == 0
    return lanes.tolist()[:-1]


def apply_classes(dtype, counts, values: np.ndarray) -> None:
    """Apply the summed lanes of a CLASSIFY round to `values`, as the worker does."""
    lanes, classes = np.array(counts, LANE[dtype]), np.full(values.size, 0x55, np.uint32)
    fixedpoint.keep_classes(fixedpoint.FORMATS[dtype], lanes.ctypes.data, values.size, classes)
    fixedpoint.apply_classes(fixedpoint.FORMATS[dtype], classes, values.ctypes.data, values.size)
