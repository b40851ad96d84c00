"""Tensors to lanes and back: the compiled code against exact rationals, and what the format promises.

The promises: lanes never overflow, zeros and subnormals are exact, integers are exact or reported, infinities and NaN
come out as IEEE addition has them, and a float32 sum is within the bound that `test_float32_sums_are_within_the_bound`
states.
"""

import math
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from switchml.protocol import fixedpoint
from tests.support import reference_fixedpoint as reference
from tests.support.encoded import (
    CODES,
    ELEMENT,
    EVERY_WORKERS,
    FLOAT32_CANONICAL,
    FLOAT64_CANONICAL,
    FLOATS,
    INTEGERS,
    LANE,
    LARGEST,
    NARROW,
    SMALLEST,
    apply_classes,
    below,
    bits,
    classified,
    decode,
    encode,
    floats,
    headroom,
    need,
)
from tests.support.examples import examples

# -- codes --

BLOCKS = [dtype for dtype in reference.LANES if dtype not in reference.DIGITS]
"""Formats whose chunks are done in one round."""


def test_guard_bits_make_room_for_all_workers():
    assert [fixedpoint.guard_bits(n) for n in EVERY_WORKERS] == [reference.guard_bits(n) for n in EVERY_WORKERS]
    assert fixedpoint.guard_bits(1) == 0 and fixedpoint.guard_bits(256) == 8


@pytest.mark.parametrize("dtype", BLOCKS)
def test_canonical_codes_lie_on_a_grid_and_grow_with_the_code(dtype):
    fmt = fixedpoint.FORMATS[dtype]
    codes = [fixedpoint.canonical(code, fmt) for code in CODES]
    assert codes == [reference.canonical(dtype, code) for code in CODES]
    assert [fixedpoint.canonical(code, fmt) for code in codes] == codes
    assert codes == sorted(codes)
    if dtype not in INTEGERS:
        assert all(up >= code for up, code in zip(codes, CODES, strict=True))


def test_no_two_dtypes_share_a_canonical_code():
    """So ranks that call all-reduce with different dtypes differ in `used` whatever their values, and get MIXED.

    Only a float32 rank can need more than 121; it alone has to differ from the others then. Narrow lanes have another
    packet type, which the aggregator tells apart itself.
    """
    for code in CODES:
        used = {dtype: fixedpoint.canonical(code, fixedpoint.FORMATS[dtype]) for dtype in FLOATS + INTEGERS}
        assert used["float32"] not in (used["float64"], used["int32/limbs"], used["int64/limbs"])
        assert code > 121 or len(set(used.values())) == 4, code


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_code_at_every_power_of_two(dtype):
    """A power of two needs the next exponent, the number just below it its own; signs don't matter."""
    _, lowest, too_large = reference.SHAPES[dtype]
    for e in range(lowest - 20, too_large):
        for x in (2.0**e, -(2.0**e), below(e, dtype)):
            assert need(dtype, [0, x, -x / 4]) == reference.need(dtype, [x]), (x, e)
    for x in (LARGEST[dtype], -LARGEST[dtype], SMALLEST[dtype], 0.0, -0.0):
        assert need(dtype, [x]) == reference.need(dtype, [x])
    assert need("float32", [LARGEST["float32"]]) == 126 and need("float64", [LARGEST["float64"]]) == 121


@given(st.sampled_from(FLOATS).flatmap(lambda d: st.tuples(st.just(d), st.lists(floats(d), min_size=1, max_size=9))))
@example(("float32", [float("nan")]))
@example(("float64", [float("inf"), 0.0]))
def test_the_code_of_any_block(block):
    dtype, values = block
    assert need(dtype, values) == reference.need(dtype, values)
    assert need(dtype, values, finite_only=True) == reference.need(dtype, values, finite_only=True)


# -- encoding and decoding, bit by bit --


def blocks_of(dtype: str):
    """A dtype and finite values of it."""
    one = floats(dtype, allow_nan=False, allow_infinity=False) if dtype in FLOATS else st.integers(
        int(np.iinfo(ELEMENT[dtype]).min), int(np.iinfo(ELEMENT[dtype]).max)
    )  # fmt: skip
    return st.tuples(st.just(dtype), st.lists(one, min_size=1, max_size=9))


@given(
    st.sampled_from(FLOATS + INTEGERS).flatmap(blocks_of),
    st.sampled_from(EVERY_WORKERS),
    st.integers(0, 40),
    st.integers(0, 5),
)
@examples(500)
@example(("float32", [float(2**100 - 2**76), -float(2**100 - 2**76)]), 256, 0, 0)
@example(("float32", [2.0**-149, -(2.0**-149)]), 1, 0, 0)
@example(("float32", [LARGEST["float32"]]), 1, 0, 0)
@example(("float64", [LARGEST["float64"], SMALLEST["float64"]]), 256, 0, 0)
@example(("float64", [SMALLEST["float64"], -SMALLEST["float64"], 0.0, -0.0]), 1, 0, 0)
@example(("int64/limbs", [-(2**63), 2**63 - 1, -1, 0]), 256, 0, 0)
@example(("int32/limbs", [-(2**31), 2**31 - 1, -1, 0]), 256, 0, 3)
def test_encoding_is_the_specification(block, workers, above, spare):
    """At the block's own canonical code and at larger ones, which other ranks may need; integers have one."""
    dtype, values = block
    if dtype in INTEGERS:
        used = reference.canonical(dtype, reference.ZERO)
    else:
        codes = codes_of(dtype)
        lowest = codes.index(reference.canonical(dtype, reference.need(dtype, values)))
        used = codes[min(lowest + above, len(codes) - 1)]
    for classed in (False, True) if dtype in FLOATS else (False,):
        expected = reference.encode(dtype, values, used, workers, classed)
        assert encode(dtype, values, used, workers, finite_only=classed, spare=spare) == expected + [0] * spare


@given(
    st.sampled_from(FLOATS).flatmap(
        lambda d: st.tuples(st.just(d), st.sampled_from(FLOAT32_CANONICAL if d == "float32" else FLOAT64_CANONICAL))
    ),
    st.sampled_from(EVERY_WORKERS),
    st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(-300, 300), min_size=3, max_size=3),
    st.booleans(),
)
@examples(400)
@example(("float32", 126), 256, [2**31 - 1, -(2**31), 0], False)
@example(("float64", 121), 1, [2**31 - 1, 2**31 - 1, 2**31 - 1], True)
@example(("float64", -127), 256, [0, 0, -1], True)
@example(("float64", 121), 9, [1179648, 0, 0], True)  # the mean is too large as well
def test_decoding_is_the_specification(format_, workers, lanes, mean):
    """Any lanes: more than honest ranks can send, so every shift and every rounding comes up."""
    dtype, used = format_
    divisor = workers if mean else 1
    got, misfits = decode(dtype, lanes, used, workers, divisor)
    expected, _ = reference.decode(dtype, lanes, used, workers, divisor)
    assert bits(dtype, got) == bits(dtype, expected) and misfits == 0


def codes_of(dtype: str) -> list[int]:
    """Every code that a result of finite values may come with."""
    return {"float32": FLOAT32_CANONICAL, "float64": FLOAT64_CANONICAL}.get(dtype, list(CODES))


def spread_values(dtype: str, chooser: random.Random) -> float | int:
    """A value of a kind that has its own corner: extremes, powers of two and just below, subnormals, anything."""
    if dtype.startswith("int"):
        info = np.iinfo(ELEMENT[dtype])
        return chooser.choice([
            int(info.min), int(info.max), -1, 0, 1, chooser.randint(int(info.min), int(info.max)),
            chooser.randint(-1000, 1000),
        ])  # fmt: skip
    _, lowest, too_large = reference.SHAPES[dtype]
    sign = chooser.choice([-1.0, 1.0])
    e = chooser.randint(lowest, too_large - 1)
    return sign * chooser.choice([
        0.0, SMALLEST[dtype], LARGEST[dtype], 2.0**e, below(e, dtype), 2.0**lowest,
        float(np.dtype(dtype).type(chooser.random() * 2.0 ** chooser.choice([0, 1, e]))),
    ])  # fmt: skip


@given(
    st.sampled_from(BLOCKS),
    st.sampled_from([1, 2, 3, 5, 8, 17, 64, 100, 128, 129, 200, 256]),
    st.integers(0, 2**32),
    st.booleans(),
    st.sampled_from([0.0, 0.0, 0.2]),
)
@examples(150)
def test_a_whole_all_reduce_bit_by_bit(dtype, workers, seed, mean, oddities):
    """Encode every rank's block, add lanes, decode: the reference's bits, special values included."""
    chooser = random.Random(seed)
    if dtype in NARROW and not reference.steps(dtype, workers):
        workers //= 4  # int8 lanes have no headroom for more than 127 ranks
    pool = [spread_values(ELEMENT[dtype], chooser) for _ in range(6)]
    blocks = [[chooser.choice(pool) for _ in range(3)] for _ in range(workers)]
    if dtype not in INTEGERS:
        for _ in range(round(oddities * workers)):
            chooser.choice(blocks)[chooser.randrange(3)] = chooser.choice([math.inf, -math.inf, math.nan])
    divisor = workers if mean else 1
    expected, misfits = reference.all_reduce(dtype, blocks, divisor)
    code = max(need(dtype, block, finite_only=True) for block in blocks)
    used = fixedpoint.canonical(code, fixedpoint.FORMATS[dtype])
    classed = any(need(dtype, block) == reference.UNKNOWN for block in blocks)
    encoded = [encode(dtype, block, used, workers, finite_only=classed) for block in blocks]
    sums = np.sum(encoded, axis=0, dtype=np.int64)
    limits = np.iinfo(LANE[dtype])
    assert limits.min <= sums.min() and sums.max() <= limits.max
    got, got_misfits = decode(dtype, sums, used, workers, divisor)
    if classed:
        counts = np.sum([classified(dtype, block) for block in blocks], axis=0)
        apply_classes(dtype, counts, got)
    assert got_misfits == misfits
    if not misfits:
        assert bits(dtype, got) == bits(dtype, expected)


@given(
    st.sampled_from(NARROW),
    st.lists(floats("float32", allow_nan=False, allow_infinity=False), min_size=1, max_size=9),
    st.integers(0, 2**16),
    st.integers(0, 40),
    st.booleans(),
)
@examples(300)
@example("float32/int8", [2.0**-149, -(2.0**-149), 0.0], 126, 0, False)
@example("float32/int16", [LARGEST["float32"], -LARGEST["float32"]], 255, 0, True)
@example("float32/int16", [LARGEST["float32"], -LARGEST["float32"]], 0, 0, False)
def test_narrow_lanes_are_the_specification(dtype, values, workers, above, classed):
    """Encoded and decoded, for every number of ranks that fits; a rank takes m steps at most on either side of zero."""
    workers = 1 + workers % {"float32/int16": 256, "float32/int8": 127}[dtype]
    used = min(need(dtype, values) + above, 126)
    lanes = encode(dtype, values, used, workers, finite_only=classed, spare=3)
    assert lanes == reference.encode(dtype, values, used, workers, classed) + [0] * 3
    assert max(map(abs, lanes)) <= reference.steps(dtype, workers)
    sums = [workers * lane for lane in lanes[:-3]]
    for divisor in (1, workers):
        got, _ = decode(dtype, sums, used, workers, divisor)
        assert bits(dtype, got) == bits(dtype, reference.decode(dtype, sums, used, workers, divisor)[0])


@pytest.mark.parametrize("dtype", NARROW)
def test_narrow_lanes_hold_the_sum_or_refuse_the_ranks(dtype):
    for workers in EVERY_WORKERS:
        m = headroom(dtype, workers)
        assert m == reference.steps(dtype, workers)
        assert workers * m <= np.iinfo(LANE[dtype]).max < workers * (m + 1)
    assert [n for n in EVERY_WORKERS if not headroom(dtype, n)] == (
        [] if dtype == "float32/int16" else list(range(128, 257))
    )


# -- promises --


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("sign", [1, -1])
def test_no_lane_overflows(dtype, sign):
    """n equal ranks with the largest value that a canonical exponent allows, and with the largest of all."""
    codes = codes_of(dtype)
    for workers in EVERY_WORKERS:
        for used in codes[:: 1 if workers in (1, 2, 255, 256) else 9] + [codes[-1]]:
            limit = reference.block_exponent(dtype, used)
            largest = (
                min(below(limit, dtype), LARGEST[dtype]) if limit <= reference.SHAPES[dtype][2] else LARGEST[dtype]
            )
            assert need(dtype, [largest]) <= used
            for lane in encode(dtype, [sign * largest], used, workers):
                assert -(2**31) <= workers * lane < 2**31, (workers, used, lane)


@given(st.sampled_from([1, 2, 7, 16, 33, 128, 256]), st.integers(-126, 127), st.integers(0, 2**32))
@examples(100)
def test_float32_sums_are_within_the_bound(workers, scale, seed):
    """|error| <= n * 2^(Q+L-32) + half a unit in the last place of the result.

    A lane counts units of 2^(Q+L-31); each of the n ranks rounds its value by half a unit at most, which is 2^(Q+L-32)
    (clipping to 2^(31-L) - 1 costs no more: it hits values within half a unit of 2^Q). The sum of lanes is exact, and
    turning it into a float32 rounds once. Q is at most 4 above the exponent of the largest value.
    """
    chooser = random.Random(seed)
    values = [float(np.float32(chooser.uniform(-1, 1) * 2.0**scale)) for _ in range(workers)]
    used = fixedpoint.canonical(max(need("float32", [x]) for x in values), fixedpoint.FLOAT32)
    q = reference.block_exponent("float32", used)
    total = sum(encode("float32", [x], used, workers)[0] for x in values)
    got = decode("float32", [total], used, workers)[0][0].item()
    exact = sum(map(Fraction, values))
    bound = workers * Fraction(2) ** (q + fixedpoint.guard_bits(workers) - 32)
    assume(math.isfinite(got))
    ulp = Fraction(2) ** (max(reference.exponent(Fraction(got)) - 1, -126) - 23) if got else 0
    assert abs(Fraction(got) - exact) <= bound + ulp / 2
    largest = max(abs(Fraction(x)) for x in values)
    assert q == -126 or q <= reference.exponent(largest) + 3


@given(floats("float64", allow_nan=False, allow_infinity=False))
@examples(300)
@example(LARGEST["float64"])
@example(float(1 + 2**-52) * 2.0**-54)
def test_the_largest_float64_of_a_block_keeps_all_its_bits(x):
    """Three limbs hold 69 bits with 256 ranks, a mantissa has 53, and the grid wastes 16 at most."""
    used = fixedpoint.canonical(need("float64", [x]), fixedpoint.FLOAT64)
    for workers in (1, 2, 255, 256):
        bits_a_limb = 31 - reference.guard_bits(workers)
        high, middle, low = encode("float64", [x], used, workers)
        unit = Fraction(2) ** (reference.block_exponent("float64", used) - 3 * bits_a_limb)
        assert (high * 4**bits_a_limb + middle * 2**bits_a_limb + low) * unit == Fraction(x)


@given(st.sampled_from(INTEGERS), st.sampled_from([1, 2, 3, 100, 256]), st.integers(0, 2**32), st.booleans())
@examples(150)
def test_integer_sums_are_exact_or_reported(dtype, workers, seed, fits):
    """Means truncate toward zero; elements that fit are right even next to one that does not."""
    chooser = random.Random(seed)
    info = np.iinfo(ELEMENT[dtype])
    least, most = (int(info.min) // workers, int(info.max) // workers) if fits else (int(info.min), int(info.max))
    blocks = [[chooser.choice([least, most, chooser.randint(least, most)]) for _ in range(4)] for _ in range(workers)]
    used = reference.canonical(dtype, 0)
    sums = np.sum([encode(dtype, block, used, workers) for block in blocks], axis=0, dtype=np.int64)
    exact = [sum(column) for column in zip(*blocks, strict=True)]
    good = [int(info.min) <= x <= int(info.max) for x in exact]
    for divisor in (1, workers):
        got, misfits = decode(dtype, sums, used, workers, divisor)
        assert misfits == good.count(False)
        for x, y, ok in zip(exact, got.tolist(), good, strict=True):
            assert not ok or y == math.trunc(Fraction(x, divisor))
