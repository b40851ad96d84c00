"""Exact sums, written to be read: docs/protocol.md section 5, "Exact sums", with rationals. Slow on purpose; shares no
code with `switchml/`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from tests.support import reference_fixedpoint as numbers

PRECISION = {"float32": 24, "float64": 53, "float16": 11, "bfloat16": 8}


def element(dtype: str) -> str:
    """What the tensor's elements are: half precision has been widened."""
    return "float64" if dtype == "float64" else "float32"


def digits(workers: int) -> int:
    """B."""
    return 30 - 2 * numbers.guard_bits(workers)


def first_top(dtype: str, need: int) -> int:
    """The Q that all ranks use in a first round when the largest need is `need`."""
    if dtype == "float64":
        return numbers.block_exponent("float64", numbers.canonical("float64", need))
    return next(e for e in range(-116, 129, 4) if e >= need + 2)


def code_of_rest(dtype: str, rest: Fraction) -> int:
    """What a rank announces in a further round whose largest rest is `rest`."""
    if rest == 0:
        return numbers.ZERO
    exponent = numbers.exponent(rest)
    return 2 * -(-(exponent + 1074) // 17) - 127 if dtype == "float64" else max(exponent, -126) - 2


def bound(dtype: str, code: int) -> int:
    """The power of two that all with this code is below."""
    return numbers.block_exponent("float64", code if code % 2 else code + 1) if dtype == "float64" else code + 2


def top_of(dtype: str, blocks: Sequence[Sequence[float]]) -> int:
    """The `top` of a first round without history: ranks that guess alike keep their guess, else the need decides."""
    kind = element(dtype)
    needs = [numbers.need(kind, block) for block in blocks]
    if len({first_top(dtype, need) for need in needs}) == 1 or kind == "float64":
        return first_top(dtype, max(needs))
    return max(max(needs) + 2, -126)


def is_wide(dtype: str, workers: int) -> bool:
    """Whether first rounds have lanes of full width, with the counts beside them."""
    return dtype == "float32" and workers <= 8


def split(x: Fraction, step: int) -> tuple[int, Fraction]:
    """(multiples of 2^step in x, toward zero, and the rest)."""
    whole = math.trunc(x / Fraction(2) ** step)
    return whole, x - whole * Fraction(2) ** step


def split_to_nearest(x: Fraction, step: int) -> tuple[int, Fraction]:
    whole = round(x / Fraction(2) ** step)
    return whole, x - whole * Fraction(2) ** step


def is_decided(total: Fraction, holders: int, unit: Fraction, dtype: str, bits: int) -> bool:
    return holders == 0 or (total != 0 and abs(to_53_bits(total)) >= holders * unit * 2 ** (PRECISION[dtype] + bits))


def to_53_bits(value: Fraction) -> Fraction:
    """Rounded to the nearest number of 53 bits, with any exponent."""
    if value == 0:
        return value
    unit = Fraction(2) ** (numbers.exponent(value) - 53)
    return round(value / unit) * unit


def all_reduce(dtype: str, blocks: Sequence[Sequence[float]], divisor: int = 1) -> tuple[list[float], int]:
    """(the results of a chunk's elements, how many rounds with digits it took). `dtype`: a key of PRECISION."""
    workers, count = len(blocks), len(blocks[0])
    kind, results, rounds = element(dtype), [math.nan] * count, 1
    rests = [[Fraction(x if math.isfinite(x) else 0) for x in block] for block in blocks]
    sums, undecided = [Fraction(0)] * count, set(range(count))
    wide, top = is_wide(dtype, workers), top_of(dtype, blocks)
    step = top - (31 - numbers.guard_bits(workers)) if wide else top - digits(workers)

    def add_digits(how) -> None:
        for rest in rests:
            for i in undecided:
                whole, rest[i] = how(rest[i], step)
                sums[i] += whole * Fraction(2) ** step

    def decide(unit: Fraction) -> None:
        for i in sorted(undecided):
            holders, bits = sum(rest[i] != 0 for rest in rests), 2
            if wide and rounds == 1:
                holders, bits = holders and 2 ** (holders - 1).bit_length(), 0
            if is_decided(sums[i], holders, unit, dtype, bits):
                undecided.remove(i)
                quotient = to_53_bits(to_53_bits(sums[i]) / divisor)
                results[i] = numbers.rounded(quotient, "float64")
                if kind == "float32":
                    results[i] = numbers.rounded(Fraction(results[i]), kind)

    add_digits(split_to_nearest if wide else split)
    decide(Fraction(2) ** step)
    top = step
    while undecided:
        rounds += 1
        step = top - digits(workers)
        add_digits(split)
        code = max(code_of_rest(dtype, max(abs(rest[i]) for i in undecided)) for rest in rests)
        top = min(step, bound(dtype, code))
        decide(Fraction(2) ** top)
    return results, rounds


def unit_in_last_place(value: Fraction, dtype: str) -> Fraction:
    """Of the numbers of a type's precision around `value`; half precision has float32's range here."""
    least = numbers.SHAPES[element(dtype)][1]
    exponent = max(numbers.exponent(value) - 1, least) if value else least
    return Fraction(2) ** (exponent - PRECISION[dtype] + 1)
