"""Tensors to lanes and back: the compiled code against exact rationals, and what the format promises.

The promises: lanes never overflow, zeros and subnormals are exact, integers are exact or reported, infinities and NaN
come out as IEEE addition has them, and a float32 sum is within the bound that `test_float32_sums_are_within_the_bound`
states.
"""

import math
import random
import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from switchml.protocol import fixedpoint
from tests.support import reference_fixedpoint as reference

FLOATS, INTEGERS, NARROW = ("float32", "float64"), ("int32", "int64"), ("float32/int16", "float32/int8")
ELEMENT = {dtype: reference.element(dtype) for dtype in reference.LANES}
LANE = {dtype: np.dtype(f">i{reference.lane_bytes(dtype)}") for dtype in reference.LANES}
EVERY_WORKERS = range(1, 257)
CODES = range(-128, 127)
FLOAT32_CANONICAL = [*range(-128, 125, 4), 126]
FLOAT64_CANONICAL = list(range(-127, 122, 2))
LARGEST = {"float32": (2 - 2**-23) * 2.0**127, "float64": (2 - 2**-52) * 2.0**1023}
SMALLEST = {"float32": 2.0**-149, "float64": 2.0**-1074}
WIDTH = {"float32": 32, "float64": 64}


def room(dtype: str, workers: int) -> int:
    return fixedpoint.headroom(workers)[fixedpoint.WIRES[fixedpoint.FORMATS[dtype]]]


def encode(dtype, values, used, workers, finite_only=False, spare=0) -> list[int]:
    """The compiled encoder, with `spare` unused lanes at the end."""
    source = np.array(values, ELEMENT[dtype])
    lanes = np.full(reference.LANES[dtype] * source.size + spare, 0x55, LANE[dtype])
    fixedpoint.encode(
        fixedpoint.FORMATS[dtype],
        source.ctypes.data,
        source.size,
        lanes.ctypes.data,
        lanes.size,
        used,
        room(dtype, workers),
        finite_only,
    )
    return lanes.tolist()


def decode(dtype, sums, used, workers, divisor=1) -> tuple[np.ndarray, int]:
    """The compiled decoder: (values, misfits)."""
    lanes = np.array(sums, LANE[dtype])
    target = np.full(lanes.size // reference.LANES[dtype], 77, ELEMENT[dtype])
    misfits = fixedpoint.decode(
        fixedpoint.FORMATS[dtype],
        lanes.ctypes.data,
        target.ctypes.data,
        target.size,
        used,
        room(dtype, workers),
        divisor,
    )
    return target, misfits


def need(dtype, values, finite_only=False) -> int:
    source = np.array(values, ELEMENT[dtype])
    return fixedpoint.need_of(fixedpoint.FORMATS[dtype], source.ctypes.data, source.size, finite_only)


def bits(dtype, values) -> list[bytes]:
    """What two results must agree in: all bits, but one NaN is as good as another."""
    pack = {"float32": ">f", "float64": ">d", "int32": ">i", "int64": ">q"}[ELEMENT[dtype]]
    return [b"NaN" if x != x else struct.pack(pack, x) for x in np.asarray(values, ELEMENT[dtype]).tolist()]


def floats(dtype, **options):
    """Floats of all magnitudes alike: hypothesis alone seldom leaves the neighbourhood of 1."""
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


# -- codes --


def test_guard_bits_make_room_for_all_workers():
    assert [fixedpoint.guard_bits(n) for n in EVERY_WORKERS] == [reference.guard_bits(n) for n in EVERY_WORKERS]
    assert fixedpoint.guard_bits(1) == 0 and fixedpoint.guard_bits(256) == 8


@pytest.mark.parametrize("dtype", reference.LANES)
def test_canonical_codes_lie_on_a_grid_and_grow_with_the_code(dtype):
    fmt = fixedpoint.FORMATS[dtype]
    codes = [fixedpoint.canonical(code, fmt) for code in CODES]
    assert codes == [reference.canonical(dtype, code) for code in CODES]
    assert [fixedpoint.canonical(code, fmt) for code in codes] == codes
    assert codes == sorted(codes)
    if dtype not in INTEGERS:
        assert all(up >= code for up, code in zip(codes, CODES, strict=True))


def test_float32_wastes_at_most_three_bits():
    codes = [fixedpoint.canonical(code, fixedpoint.FLOAT32) for code in CODES]
    assert set(codes) == set(FLOAT32_CANONICAL)
    assert max(up - code for up, code in zip(codes, CODES, strict=True)) == 3


def test_no_two_dtypes_share_a_canonical_code():
    """So ranks that call all-reduce with different dtypes differ in `used` whatever their values, and get MIXED.

    Only a float32 rank can need more than 121; it alone has to differ from the others then. Narrow lanes have another
    packet type, which the aggregator tells apart itself.
    """
    for code in CODES:
        used = {dtype: fixedpoint.canonical(code, fixedpoint.FORMATS[dtype]) for dtype in FLOATS + INTEGERS}
        assert used["float32"] not in (used["float64"], used["int32"], used["int64"])
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


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_need_no_exponent(dtype):
    assert need(dtype, [0, -1, np.iinfo(dtype).max]) == reference.ZERO


# -- encoding and decoding, bit by bit --


@given(
    st.sampled_from(FLOATS).flatmap(
        lambda d: st.tuples(
            st.just(d), st.lists(floats(d, allow_nan=False, allow_infinity=False), min_size=1, max_size=9)
        )
    ),
    st.sampled_from(EVERY_WORKERS),
    st.integers(0, 40),
    st.integers(0, 5),
)
@settings(max_examples=400)
@example(("float32", [float(2**100 - 2**76), -float(2**100 - 2**76)]), 256, 0, 0)
@example(("float32", [2.0**-149, -(2.0**-149)]), 1, 0, 0)
@example(("float32", [LARGEST["float32"]]), 1, 0, 0)
@example(("float64", [LARGEST["float64"], SMALLEST["float64"]]), 256, 0, 0)
@example(("float64", [SMALLEST["float64"], -SMALLEST["float64"], 0.0, -0.0]), 1, 0, 0)
def test_encoding_is_the_specification(block, workers, above, spare):
    """At the block's own canonical code and at larger ones, which other ranks may need."""
    dtype, values = block
    codes = codes_of(dtype)
    lowest = codes.index(reference.canonical(dtype, reference.need(dtype, values)))
    used = codes[min(lowest + above, len(codes) - 1)]
    for classed in (False, True):
        expected = reference.encode(dtype, values, used, workers, classed)
        assert encode(dtype, values, used, workers, finite_only=classed, spare=spare) == expected + [0] * spare


@given(
    st.sampled_from(INTEGERS).flatmap(
        lambda d: st.tuples(st.just(d), st.lists(st.integers(np.iinfo(d).min, np.iinfo(d).max), min_size=1, max_size=9))
    ),
    st.integers(0, 5),
)
@example(("int64", [-(2**63), 2**63 - 1, -1, 0]), 0)
@example(("int32", [-(2**31), 2**31 - 1, -1, 0]), 3)
def test_encoding_integers(block, spare):
    dtype, values = block
    used = reference.canonical(dtype, reference.ZERO)
    assert encode(dtype, values, used, 256, spare=spare) == reference.encode(dtype, values, used, 256) + [0] * spare


@given(
    st.sampled_from(FLOATS).flatmap(
        lambda d: st.tuples(st.just(d), st.sampled_from(FLOAT32_CANONICAL if d == "float32" else FLOAT64_CANONICAL))
    ),
    st.sampled_from(EVERY_WORKERS),
    st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(-300, 300), min_size=3, max_size=3),
    st.booleans(),
)
@settings(max_examples=400)
@example(("float32", 126), 256, [2**31 - 1, -(2**31), 0], False)
@example(("float64", 121), 1, [2**31 - 1, 2**31 - 1, 2**31 - 1], True)
@example(("float64", -127), 256, [0, 0, -1], True)
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
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        return chooser.choice(
            [
                int(info.min),
                int(info.max),
                -1,
                0,
                1,
                chooser.randint(int(info.min), int(info.max)),
                chooser.randint(-1000, 1000),
            ]
        )
    _, lowest, too_large = reference.SHAPES[dtype]
    sign = chooser.choice([-1.0, 1.0])
    e = chooser.randint(lowest, too_large - 1)
    return sign * chooser.choice(
        [
            0.0,
            SMALLEST[dtype],
            LARGEST[dtype],
            2.0**e,
            below(e, dtype),
            2.0**lowest,
            float(np.dtype(dtype).type(chooser.random() * 2.0 ** chooser.choice([0, 1, e]))),
        ]
    )


@given(
    st.sampled_from(list(reference.LANES)),
    st.sampled_from([1, 2, 3, 5, 8, 17, 64, 100, 128, 129, 200, 256]),
    st.integers(0, 2**32),
    st.booleans(),
    st.sampled_from([0.0, 0.0, 0.2]),
)
@settings(max_examples=150)
def test_a_whole_all_reduce_bit_by_bit(dtype, workers, seed, mean, oddities):
    """Encode every rank's block, add lanes, decode: the reference's bits, special values included."""
    chooser = random.Random(seed)
    if dtype in NARROW and not reference.steps(dtype, workers):
        workers //= 4  # int8 lanes have no room for more than 127 ranks
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
@settings(max_examples=300)
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
        m = room(dtype, workers)
        assert m == reference.steps(dtype, workers)
        assert workers * m <= np.iinfo(LANE[dtype]).max < workers * (m + 1)
    assert [n for n in EVERY_WORKERS if not room(dtype, n)] == (
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


@pytest.mark.parametrize("dtype", INTEGERS)
def test_no_integer_lane_overflows(dtype):
    for value in (np.iinfo(dtype).min, np.iinfo(dtype).max, -1):
        for lane in encode(dtype, [value], reference.canonical(dtype, 0), 256):
            assert -(2**31) <= 256 * lane < 2**31


@pytest.mark.parametrize("dtype", FLOATS)
def test_zeros_and_subnormals_are_exact(dtype):
    """A sum of subnormals is the exact sum rounded once, for all n, zeros of either sign give +0."""
    top = 2 ** (reference.SHAPES[dtype][0] - 1)
    counts = (0, 1, -1, 2, 3, top - 1, 1 - top, top // 3)
    values = [float(k * Fraction(SMALLEST[dtype])) for k in counts]
    zero = reference.canonical(dtype, reference.ZERO)
    for workers in EVERY_WORKERS:
        used = fixedpoint.canonical(need(dtype, values), fixedpoint.FORMATS[dtype])
        sums = workers * np.array(encode(dtype, values, used, workers), np.int64)
        expected = [reference.rounded(workers * Fraction(x), dtype) for x in values]
        assert bits(dtype, decode(dtype, sums, used, workers)[0]) == bits(dtype, expected)
        assert encode(dtype, [0.0, -0.0], zero, workers) == [0] * 2 * reference.LANES[dtype]
        assert bits(dtype, decode(dtype, [0] * reference.LANES[dtype], zero, workers)[0]) == bits(dtype, [0.0])


@given(st.sampled_from([1, 2, 7, 16, 33, 128, 256]), st.integers(-126, 127), st.integers(0, 2**32))
@settings(max_examples=100)
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
@settings(max_examples=300)
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
@settings(max_examples=150)
def test_integer_sums_are_exact_or_reported(dtype, workers, seed, fits):
    """Means truncate toward zero; elements that fit are right even next to one that does not."""
    chooser = random.Random(seed)
    info = np.iinfo(dtype)
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


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_sums_at_the_edge(dtype):
    info = np.iinfo(dtype)
    used = reference.canonical(dtype, 0)
    for values, fits in (([info.max, 0], True), ([info.max, 1], False), ([info.min, 0], True), ([info.min, -1], False)):
        sums = np.sum([encode(dtype, [x], used, 2) for x in values], axis=0)
        got, misfits = decode(dtype, sums, used, 2)
        assert misfits == (not fits)
        assert not fits or got[0] == sum(map(int, values))


# -- infinities and NaN --


def classified(dtype, values) -> list[int]:
    source = np.array(values, ELEMENT[dtype])
    lanes = np.full(reference.LANES[dtype] * source.size + 1, 0x55, LANE[dtype])
    fixedpoint.classify(fixedpoint.FORMATS[dtype], source.ctypes.data, source.size, lanes.ctypes.data, lanes.size)
    assert lanes[-1] == 0
    return lanes.tolist()[:-1]


def apply_classes(dtype, counts, values: np.ndarray) -> None:
    """Summed lanes of a CLASSIFY round, kept as the worker keeps them, over `values`."""
    lanes, kept = np.array(counts, LANE[dtype]), np.full(values.size, 0x55, np.uint32)
    fixedpoint.keep_classes(fixedpoint.FORMATS[dtype], lanes.ctypes.data, values.size, kept)
    fixedpoint.apply_classes(fixedpoint.FORMATS[dtype], kept, values.ctypes.data, values.size)


ANY_KIND = st.sampled_from([0.0, 1.5, -2.0, math.inf, -math.inf, math.nan])


@given(
    st.sampled_from(FLOATS),
    st.integers(1, 6).flatmap(lambda n: st.lists(st.lists(ANY_KIND, min_size=n, max_size=n), min_size=1, max_size=8)),
)
def test_infinities_and_nan_add_as_ieee_has_it(dtype, blocks):
    lanes = [classified(dtype, block) for block in blocks]
    assert lanes == [reference.classify(dtype, block) for block in blocks]
    finite = np.array([[x if math.isfinite(x) else 0.0 for x in block] for block in blocks]).sum(axis=0)
    got = finite.astype(dtype)
    apply_classes(dtype, np.sum(lanes, axis=0), got)
    with np.errstate(invalid="ignore"):
        expected = np.array(blocks).sum(axis=0)
    assert bits(dtype, got) == bits(dtype, expected)


@pytest.mark.parametrize("kind", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("dtype", FLOATS)
def test_the_class_counters_hold_256_ranks(dtype, kind):
    counts = 256 * np.array(classified(dtype, [kind, 1.0]))
    assert counts.max() < 2**31
    got = np.array([5.0, 6.0], dtype)
    apply_classes(dtype, counts, got)
    assert bits(dtype, got) == bits(dtype, [kind, 6.0])


@pytest.mark.parametrize(
    ("dtype", "workers"),
    [("float32/int8", 1), ("float32/int8", 127), ("float32/int16", 1), ("float32/int16", 255), ("float32/int16", 256)],
)
def test_narrow_lanes_make_nan_of_what_is_not_finite(dtype, workers):
    """On one rank or on all: 256 of them count beyond a byte."""
    lanes = np.array(classified(dtype, [math.inf, -math.inf, math.nan, 1.0]))
    assert lanes.tolist() == reference.classify(dtype, [math.inf, -math.inf, math.nan, 1.0]) == [1, 1, 1, 0]
    for ranks in (1, workers):
        got = np.array([1, 2, 3, 4], np.float32)
        apply_classes(dtype, ranks * lanes, got)
        assert bits("float32", got) == [b"NaN"] * 3 + bits("float32", [4])


def test_values_that_are_not_finite_count_as_zero_once_classified():
    for dtype in (*FLOATS, *NARROW):
        used = reference.canonical(dtype, reference.need(dtype, [1.0]))
        values = [math.inf, 1.0, -math.inf, math.nan, -1.0]
        assert encode(dtype, values, used, 3, finite_only=True) == reference.encode(dtype, values, used, 3, True)
