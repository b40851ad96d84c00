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


def split(x: float, top: int, step: int) -> tuple[int, Fraction]:
    """(signed digits of x from 2^top, excluded, to 2^step, magnitude of what is below)."""
    if not math.isfinite(x):
        return 0, Fraction(0)
    below_top = abs(Fraction(x)) % Fraction(2) ** top
    whole = below_top // Fraction(2) ** step
    return int(math.copysign(1, x)) * whole, below_top - whole * Fraction(2) ** step


def to_53_bits(value: Fraction) -> Fraction:
    """Rounded to the nearest number of 53 bits, with any exponent."""
    if value == 0:
        return value
    unit = Fraction(2) ** (numbers.exponent(value) - 53)
    return round(value / unit) * unit


def all_reduce(dtype: str, blocks: Sequence[Sequence[float]], divisor: int = 1) -> tuple[list[float], int]:
    """(the results of a chunk's elements, how many rounds with digits it took). `dtype`: a key of PRECISION."""
    workers, count = len(blocks), len(blocks[0])
    kind = element(dtype)
    finite = [[x if math.isfinite(x) else 0.0 for x in block] for block in blocks]
    top = first_top(dtype, max(numbers.need(kind, block) for block in finite))
    sums, results, rounds = [Fraction(0)] * count, [math.nan] * count, 0
    undecided = set(range(count))
    while undecided:
        rounds += 1
        step = top - digits(workers)
        rests = {i: [] for i in undecided}
        for block in finite:
            for i in undecided:
                whole, rest = split(block[i], top, step)
                sums[i] += whole * Fraction(2) ** step
                rests[i].append(rest)
        following = step
        if rounds > 1:
            code = max(code_of_rest(dtype, max(rests[i][rank] for i in undecided)) for rank in range(workers))
            following = min(step, bound(dtype, code))
        for i in sorted(undecided):
            holders = sum(rest > 0 for rest in rests[i])
            is_enough = sums[i] != 0 and abs(to_53_bits(sums[i])) >= holders * Fraction(2) ** (
                PRECISION[dtype] + 2 + following
            )
            if holders == 0 or is_enough:
                undecided.remove(i)
                quotient = to_53_bits(to_53_bits(sums[i]) / divisor)
                results[i] = numbers.rounded(quotient, "float64")
                if kind == "float32":
                    results[i] = numbers.rounded(Fraction(results[i]), kind)
        top = following
    return results, rounds


def unit_in_last_place(value: Fraction, dtype: str) -> Fraction:
    """Of the numbers of a type's precision around `value`; half precision has float32's range here."""
    least = numbers.SHAPES[element(dtype)][1]
    exponent = max(numbers.exponent(value) - 1, least) if value else least
    return Fraction(2) ** (exponent - PRECISION[dtype] + 1)
