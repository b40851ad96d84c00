"""Numbers on the wire, written to be read: docs/protocol.md sections 4 and 5 with exact rationals.

It is slow on purpose and shares no code with `switchml/`: a value is a Python float or int, a scaled value is a
Fraction, a lane is an int. Where the specification leaves rounding to the arithmetic (the mean of floats, the three
limbs of float64 put together, the scales of narrow lanes), the rounding steps are named one by one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

LANES = {"float32": 1, "float64": 3, "int32": 1, "int64": 1, "float32/int16": 1, "float32/int8": 1}
LIMBS = {"int32/limbs": 2, "int64/limbs": 4}
LANES |= LIMBS
BITS = {"int32": 32, "int64": 64, "int32/limbs": 32, "int64/limbs": 64}
DIGITS = {"int32": (2, 16), "int64": (3, 23)}  # how many where sums may not fit a lane, and their bits
DENSE = tuple(dtype for dtype in LANES if dtype not in LIMBS)
DIGITS_NEEDED = -127
NARROW = {"float32/int16": 16, "float32/int8": 8}
ZERO, INT32, INT64, UNKNOWN = -128, 125, 123, 127
POSITIVE, NEGATIVE, NAN = 1, 2**10, 2**20

# Significant bits, exponent of the smallest normal number, and the first power of two that is too large.
SHAPES = {"float32": (24, -126, 128), "float64": (53, -1022, 1024), "bfloat16": (8, -126, 128)}


def guard_bits(workers: int) -> int:
    """L: the smallest number with 2^L >= n."""
    bits = 0
    while 2**bits < workers:
        bits += 1
    return bits


def lane_bytes(dtype: str) -> int:
    """Bytes of a lane."""
    return NARROW.get(dtype, 32) // 8


def wire(dtype: str) -> int:
    """What the packet's type says of its lanes: 0 for 32 bits, 1 for 16, 2 for 8."""
    return {"int16": 1, "int8": 2}.get(dtype.partition("/")[2], 0)


def element(dtype: str) -> str:
    """What a tensor's elements are."""
    return dtype.partition("/")[0]


def per_chunk(dtype: str, payload_bytes: int) -> int:
    """Elements of a packet."""
    return payload_bytes // lane_bytes(dtype) // LANES[dtype]


def steps(dtype: str, workers: int) -> int:
    """m: what narrow lanes have on each side of zero for each of n ranks; 0 if they can't hold so many."""
    return (2 ** (NARROW[dtype] - 1) - 1) // workers


def spread(dtype: str, workers: int) -> int:
    """By how much the code of a SPECULATE round may exceed the canonical one."""
    if dtype not in NARROW:
        return 0
    return max(bits for least, bits in ((0, 0), (8, 1), (16, 2), (1024, 4)) if steps(dtype, workers) >= least)


def allowed(dtype: str, code: int, workers: int) -> range:
    """The codes with which a SPECULATE round counts when the largest need is `code`."""
    least = canonical(dtype, code)
    return range(least, least + spread(dtype, workers) + 1)


def exponent(value: Fraction) -> int:
    """e: the smallest integer with 2^e > |value|, for a value that is not zero."""
    value = abs(value)
    e = value.numerator.bit_length() - value.denominator.bit_length()
    while Fraction(2) ** e <= value:
        e += 1
    while Fraction(2) ** (e - 1) > value:
        e -= 1
    return e


def need(dtype: str, values: Sequence, finite_only: bool = False, workers: int = 256) -> int:
    """The exponent code that a block needs; 127 if a value is not finite (with `finite_only` those do not count). Of
    integers that have a lane each: whether `workers` of them may not fit it."""
    if dtype in DIGITS:
        limit = 2 ** (31 - guard_bits(workers))
        return ZERO if all(-limit <= x < limit for x in values) else DIGITS_NEEDED
    if dtype in BITS:
        return ZERO
    if not finite_only and not all(map(math.isfinite, values)):
        return UNKNOWN
    largest = max((abs(Fraction(x)) for x in values if math.isfinite(x)), default=Fraction(0))
    if largest == 0:
        return ZERO
    if dtype == "float64":
        return 2 * -(-(exponent(largest) + 1074) // 17) - 127
    return min(max(exponent(largest), -126), 128) - 2


def canonical(dtype: str, code: int) -> int:
    """The code that all ranks use when the largest need is `code`."""
    if dtype in BITS:
        return INT32 if BITS[dtype] == 32 else INT64
    if dtype == "float64":
        return code if code % 2 else code + 1
    if dtype in NARROW:
        return code
    return next(e - 2 for e in [*range(-126, 127, 4), 128] if e >= code + 2)


def block_exponent(dtype: str, used: int) -> int:
    """Q of a canonical code."""
    return 17 * (used + 127) // 2 - 1074 if dtype == "float64" else used + 2


def encode(dtype: str, values: Sequence, used: int, workers: int, classed: bool = False) -> list[int]:
    """The lanes of a block; values that are not finite count as 0. `classed`: a CLASSIFY round went before."""
    if dtype in NARROW:
        return _encode_narrow(dtype, values, used, workers, classed)
    if dtype in BITS:
        limbs = LANES[dtype]
        return [x >> 16 * k if k == limbs - 1 else x >> 16 * k & 0xFFFF for x in values for k in reversed(range(limbs))]
    bits = 31 - guard_bits(workers)
    scale = Fraction(2) ** (bits - block_exponent(dtype, used))
    lanes = []
    for x in values:
        rest = Fraction(x) * scale if math.isfinite(x) else Fraction(0)
        if dtype == "float32":
            lanes.append(min(round(rest), 2**bits - 1))  # round() of a Fraction goes to the nearest even
            continue
        for _ in range(3):
            limb = math.trunc(rest)
            lanes.append(limb)
            rest = (rest - limb) * 2**bits
    return lanes


def digit(dtype: str, values: Sequence, number: int, digits: int) -> list[int]:
    """The lanes of one of so many digits, 0 being the most significant one, which is signed."""
    bits = DIGITS[dtype][1]
    rest = [x >> bits * (digits - 1 - number) for x in values]
    return [x & (2**bits - 1) for x in rest] if number else rest


def from_digits(dtype: str, sums: Sequence[Sequence[int]], divisor: int) -> tuple[list, int]:
    """As `decode`, of the sums of each digit."""
    bits, half = DIGITS[dtype][1], 2 ** (BITS[dtype] - 1)
    exact = [sum(x << bits * k for k, x in enumerate(reversed(column))) for column in zip(*sums, strict=True)]
    return [truncated(x, divisor) for x in exact], sum(not -half <= x < half for x in exact)


def _encode_narrow(dtype: str, values: Sequence, used: int, workers: int, classed: bool) -> list[int]:
    """Where float32 can hold the scale, the product is rounded to float32 before it is rounded to an integer."""
    scale = steps(dtype, workers) / Fraction(2) ** block_exponent(dtype, used)
    products = [Fraction(x) * scale if math.isfinite(x) else Fraction(0) for x in values]
    if not classed and 1e-30 <= scale <= 1e30:
        products = [Fraction(rounded(x, "float32")) for x in products]
    return [round(x) for x in products]


def _decode_narrow(dtype: str, sums: Sequence[int], used: int, workers: int) -> list[float]:
    """2^Q / m is a float64, and a float32 too where that is in its middle range; so is the product."""
    scale = rounded(Fraction(2) ** block_exponent(dtype, used) / steps(dtype, workers), "float64")
    kind = "float32" if 1e-30 <= scale <= 1e30 else "float64"
    return [rounded(x * Fraction(rounded(Fraction(scale), kind)), kind) for x in sums]


def decode(dtype: str, sums: Sequence[int], used: int, workers: int, divisor: int = 1) -> tuple[list, int]:
    """(values, how many integers do not fit): the block that lanes' sums stand for, divided by `divisor`."""
    per = LANES[dtype]
    groups = [sums[i : i + per] for i in range(0, len(sums), per)]
    if dtype in BITS:
        exact = [sum(limb << 16 * k for k, limb in enumerate(reversed(group))) for group in groups]
        half = 2 ** (BITS[dtype] - 1)
        return [truncated(x, divisor) for x in exact], sum(not -half <= x < half for x in exact)
    if dtype in NARROW:
        totals = _decode_narrow(dtype, sums, used, workers)
        return [quotient(Fraction(x), divisor, "float32") if x else x for x in totals], 0
    bits = 31 - guard_bits(workers)
    unit = Fraction(2) ** (block_exponent(dtype, used) - bits)
    totals = [(group[0] if dtype == "float32" else _joined(group, bits)) * unit for group in groups]
    return [quotient(x, divisor, dtype) for x in totals], 0


def _joined(limbs: Sequence[int], bits: int) -> Fraction:
    """Three limbs in units of the first: float64 arithmetic from the last to the first, each sum rounded once."""
    total = Fraction(limbs[2])
    for limb in (limbs[1], limbs[0]):
        total = Fraction(rounded(total / 2**bits + limb, "float64"))
    return total


def truncated(x: int, divisor: int) -> int:
    """x / divisor, toward zero."""
    return abs(x) // divisor * (1 if x >= 0 else -1)


def quotient(total: Fraction, divisor: int, dtype: str) -> float:
    """The sum rounded, then its quotient rounded (IEEE keeps the sign of a zero). Where the sum is too large for the
    type, the quotient in float64 is rounded instead."""
    x = rounded(total, dtype)
    if math.isinf(x) and divisor != 1:
        x = rounded(total / divisor, "float64")
        return x if math.isinf(x) else rounded(Fraction(x), dtype)
    return x if x == 0 or divisor == 1 else rounded(Fraction(x) / divisor, dtype)


def rounded(value: Fraction, dtype: str) -> float:
    """The number of a floating-point type nearest to `value`, ties to even; infinity beyond the largest."""
    precision, lowest, too_large = SHAPES[dtype]
    if value == 0:
        return 0.0
    unit = Fraction(2) ** (max(exponent(value) - 1, lowest) - precision + 1)
    nearest = round(value / unit) * unit
    sign = -1 if value < 0 else 1
    if abs(nearest) >= Fraction(2) ** too_large:
        return sign * math.inf
    return math.copysign(float(nearest), sign)


def classify(dtype: str, values: Sequence) -> list[int]:
    """The lanes of a CLASSIFY round; narrow ones only tell what is not finite."""
    if dtype in NARROW:
        return [int(not math.isfinite(x)) for x in values]
    lanes = []
    for x in values:
        kind = 0 if math.isfinite(x) else NAN if math.isnan(x) else POSITIVE if x > 0 else NEGATIVE
        lanes += [kind] + [0] * (LANES[dtype] - 1)
    return lanes


def apply_classes(dtype: str, counts: Sequence[int], values: Sequence) -> list:
    """`values` with the infinities and NaN that the summed classes stand for."""
    if dtype in NARROW:
        return [math.nan if count else x for x, count in zip(values, counts, strict=True)]
    result = []
    for x, count in zip(values, counts[:: LANES[dtype]], strict=True):
        nan, negative, positive = count // 2**20, count // 2**10 % 2**10, count % 2**10
        if nan or (negative and positive):
            x = math.nan
        elif negative or positive:
            x = math.inf if positive else -math.inf
        result.append(x)
    return result


def all_reduce(dtype: str, blocks: Sequence[Sequence], divisor: int = 1, spare: int = 0) -> tuple[list, int]:
    """(result, misfits) of one chunk of which each rank has a block, whatever rounds it took to agree. `spare`: bits
    by which the code of a narrow block was larger than needed."""
    workers = len(blocks)
    if dtype in DIGITS:
        return from_digits(dtype, [[sum(column) for column in zip(*blocks, strict=True)]], divisor)
    code = max(need(dtype, block, finite_only=True) for block in blocks)
    used = canonical(dtype, code) + spare
    classed = dtype not in BITS and any(need(dtype, block) == UNKNOWN for block in blocks)
    encoded = [encode(dtype, block, used, workers, classed) for block in blocks]
    sums = [sum(lane) for lane in zip(*encoded, strict=True)]
    values, misfits = decode(dtype, sums, used, workers, divisor)
    if classed:
        counts = [sum(lane) for lane in zip(*(classify(dtype, block) for block in blocks), strict=True)]
        values = apply_classes(dtype, counts, values)
    return values, misfits
