"""Exact sums (docs/protocol.md, section 5): the kernels against rationals, and whole all-reduces over any network."""

import math
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchml.errors import ConfigError
from switchml.protocol import exact, first_round, fixedpoint
from switchml.protocol.packet import CODE_FURTHER, CODE_FURTHER64
from switchml.protocol.pool import Pool
from switchml.protocol.retransmission import MILLISECOND, SECOND
from switchml.protocol.sparse import Sparse
from switchml.protocol.worker import Worker
from tests.support import reference_exact as reference
from tests.support import reference_fixedpoint as numbers
from tests.support.encoded import CODES, FLOAT32_CANONICAL, FLOAT64_CANONICAL, floats
from tests.support.examples import examples
from tests.support.rank_network import Call, Network, Weather

DTYPES = tuple(reference.PRECISION)


def number_of(dtype: str) -> int:
    return fixedpoint.FORMATS[f"{dtype}/exact"]


def as_array(dtype: str, values) -> np.ndarray:
    return np.array(values, reference.element(dtype))


def reduced(dtype: str, blocks, divisor: int = 1) -> tuple[np.ndarray, int]:
    """(result, rounds of the first chunk) of an all-reduce in lockstep; all ranks must have the same bits."""
    n, sources = len(blocks), [as_array(dtype, block) for block in blocks]
    targets = [np.full_like(source, 77) for source in sources]
    pool = Pool(workers=n, slots=1, payload_bytes=1024, wire=0, job_tag=1, isn=0)
    workers = [Worker(rank=r, workers=n, slots=1, job_tag=1, isn=0, payload_bytes=1024) for r in range(n)]
    for worker, source, target in zip(workers, sources, targets, strict=True):
        worker.start(source.ctypes.data, target.ctypes.data, source.size, f"{dtype}/exact", divisor)
    queues, rounds = [worker.receive([], 0) for worker in workers], 0
    while any(queues):
        rounds += 1
        for rank, (packet,) in enumerate(queues):
            outcome = pool.receive(rank, packet)
        assert outcome.action == "multicast"
        queues = [worker.receive([outcome.packet], rounds) for worker in workers]
    assert all(worker.outstanding == 0 and not worker.failure["code"] for worker in workers)
    assert len({target.tobytes() for target in targets}) == 1
    return targets[0], rounds


def off_by(result: float, true: Fraction, dtype: str) -> Fraction:
    """How far a result is from the true one, in units in the last place of that."""
    limit = Fraction(2) ** numbers.SHAPES[reference.element(dtype)][2]
    if math.isinf(result):  # right for every sum that is no smaller than the format's limit
        if abs(true) >= limit and (true > 0) == (result > 0):
            return Fraction(0)
        return abs(math.copysign(1, result) * limit - true) / reference.unit_in_last_place(true, dtype)
    return abs(Fraction(float(result)) - true) / reference.unit_in_last_place(true, dtype)


# -- the kernels --


@pytest.mark.parametrize("dtype", DTYPES)
def test_canonical_codes_are_those_of_no_other_format(dtype):
    first = {fixedpoint.canonical(code, number_of(dtype)) for code in CODES[: 250 if dtype == "float64" else None]}
    further = {CODE_FURTHER, CODE_FURTHER64}
    others = {*FLOAT32_CANONICAL, numbers.INT32, numbers.INT64}
    assert not further & (first | others | set(FLOAT64_CANONICAL))
    if dtype == "float64":
        assert first == set(FLOAT64_CANONICAL)
    else:
        assert first & others == {126} and not first & set(FLOAT64_CANONICAL)


def some_values(data, dtype: str) -> list[float]:
    return data.draw(st.lists(floats(dtype), min_size=1, max_size=40))


def finite(values) -> list[Fraction]:
    return [Fraction(x if math.isfinite(x) else 0) for x in values]


@given(st.data(), st.sampled_from(["float32", "float64"]), st.sampled_from([1, 2, 3, 8, 31, 256]))
def test_first_rounds_that_count_in_each_lane(data, dtype, workers):
    values, guard = some_values(data, dtype), numbers.guard_bits(workers)
    top = reference.first_top(dtype, numbers.need(dtype, list(map(float, finite(values)))))
    source, lanes = as_array(dtype, values), np.full(len(values), 0x55, ">i4")
    exact.encode_first(number_of(dtype), source.ctypes.data, source.size, lanes.view(np.uint32), top, guard)
    parts = [reference.split(x, top - reference.digits(workers)) for x in finite(values)]
    assert lanes.tolist() == [whole * 2 ** (guard + 1) + (rest != 0) for whole, rest in parts]


@given(st.data(), st.sampled_from([1, 2, 3, 4, 5, 8]), st.sampled_from([64, 256]))
def test_first_rounds_that_count_beside(data, workers, lane_count):
    values, guard = some_values(data, "float32"), numbers.guard_bits(workers)
    top = max(numbers.need("float32", list(map(float, finite(values)))) + 2, -126)
    source, lanes = as_array("float32", values), np.full(lane_count, 0x55, ">i4")
    marks = np.full(lane_count, 0x55, np.uint32)
    first_round.encode(source.ctypes.data, source.size, lanes.ctypes.data, lane_count, top, guard, marks)
    capacity = first_round.elements(lane_count, guard)
    parts = [reference.split_to_nearest(x, top - (31 - guard)) for x in finite(values)]
    assert lanes[:capacity].tolist() == [whole for whole, _ in parts] + [0] * (capacity - len(values))
    columns, counts = lane_count - capacity, lanes[capacity:].astype(np.int64)
    fields = [counts[i % columns] >> (guard + 1) * (i // columns) & (2 ** (guard + 1) - 1) for i in range(capacity)]
    assert fields == [rest != 0 for _, rest in parts] + [0] * (capacity - len(values))


@given(st.data(), st.sampled_from(["float32", "float64"]), st.sampled_from([1, 2, 3, 8, 31, 256]))
def test_digits_of_a_list(data, dtype, workers):
    values, guard = [x for x in some_values(data, dtype) if math.isfinite(x)], numbers.guard_bits(workers)
    sums, lanes = np.zeros(len(values), exact.SUM), np.full(len(values) + 2, 0x55, ">i4")
    sums["rest"] = values
    sums["top"] = [numbers.exponent(Fraction(abs(x))) + data.draw(st.integers(0, 40)) if x else 0 for x in values]
    code = exact.encode_digits(number_of(dtype), sums, len(values), lanes.view(np.uint32), guard)
    parts = [
        reference.split(Fraction(x), int(top) - reference.digits(workers))
        for x, top in zip(values, sums["top"], strict=True)
    ]
    assert lanes.tolist() == [whole * 2 ** (guard + 1) + (rest != 0) for whole, rest in parts] + [0, 0]
    assert [Fraction(rest) for rest in sums["rest"].tolist()] == [rest for _, rest in parts]
    assert code == max((reference.code_of_rest(dtype, abs(rest)) for _, rest in parts), default=numbers.ZERO)


def test_decided_elements_leave_the_list():
    target, sums, lanes = np.zeros(4, np.float32), np.zeros(3, exact.SUM), np.zeros(3, ">i4")
    sums["where"], sums["low"] = [3, 0, 2], [5, 0, 7]
    lanes[:] = [8 << 24, 1 << 2 | 1, 9 << 24]  # the second has something left, and a small sum so far
    left = exact.take_digits(number_of("float32"), lanes.ctypes.data, target.ctypes.data, sums, 3, 1, -30, 1)
    assert left == 1 and sums["where"][0] == 0 and (sums["step"][0], sums["top"][0]) == (-28, -28)
    assert target.tolist() == [0, 0, 7 + 9 * 2.0**-6, 5 + 8 * 2.0**-6]


# -- whole sums --


def blocks_of(dtype: str, workers: int, count: int):
    kind = reference.element(dtype)
    value = st.one_of(
        floats(kind, allow_nan=False, allow_infinity=False), st.sampled_from([0.0, 1.0, -1.0, 4e30, -4e30])
    )
    return st.lists(st.lists(value, min_size=count, max_size=count), min_size=workers, max_size=workers)


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("dtype", DTYPES)
@given(st.data())
@examples(60)
def test_sums_are_within_one_unit_in_the_last_place(dtype, data):
    workers, count = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 6))
    blocks = as_array(dtype, data.draw(blocks_of(dtype, workers, count))).tolist()
    result, rounds = reduced(dtype, blocks)
    expected, expected_rounds = reference.all_reduce(dtype, blocks)
    assert result.tolist() == expected
    assert rounds - expected_rounds in (0, 1)  # a first round is repeated if the ranks' guesses differ
    for i, value in enumerate(result.tolist()):
        assert off_by(value, sum(Fraction(block[i]) for block in blocks), dtype) <= 1


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("workers", [2, 3, 16, 200])
def test_cancellation_and_wide_spreads(dtype, workers):
    chooser = np.random.default_rng(workers)
    reach = 120 if dtype == "float32" else 1000
    blocks = as_array(dtype, chooser.standard_normal((workers, 250)) * 2.0 ** chooser.integers(-reach, reach - 8, 250))
    blocks[1, :50] = -blocks[0, :50]
    blocks[1, 50:100] = -blocks[0, 50:100] * (1 + 2 * np.finfo(dtype).eps)
    blocks[2:, :100] *= 2.0**-70
    result, _ = reduced(dtype, blocks)
    for i, column in enumerate(blocks.T.tolist()):
        assert off_by(result[i], sum(map(Fraction, column)), dtype) <= 1
        assert result[i] == as_array(dtype, math.fsum(column)) or workers > 2


@pytest.mark.parametrize(
    "dtype, values, most",
    [("float32", range(240), 2), ("bfloat16", [2.0**-k for k in range(17)], 2), ("float32", [0.0] * 240, 1)],
)
def test_few_bits_take_one_round(dtype, values, most):
    """Beside the repeat of a wrong guess."""
    _, rounds = reduced(dtype, [list(values), [-x / 2 for x in values]])
    assert rounds <= most


@pytest.mark.parametrize("workers, most", [(2, 1.08), (4, 1.12), (8, 1.35)])
def test_ordinary_gradients_take_little_more_than_one_packet_a_chunk(workers, most):
    """What their chunks leave open goes in a packet for several of them."""
    sources = [np.random.default_rng((3, rank)).standard_normal(20_000).astype(np.float32) for rank in range(workers)]
    ranks = [[Call("float32/exact", 1, source, np.zeros_like(source))] for source in sources]
    network = Network(ranks, slots=16, windows=[16] * workers)
    network.run(limit=600 * SECOND)
    true, unit = sum(source.astype(np.float64) for source in sources), np.spacing(np.abs(sum(sources)))
    assert np.all(np.abs(ranks[0][0].target - true) <= unit)
    lanes = network.ranks[0].identity["payload"] // 4
    chunks = 20_000 / first_round.elements(lanes, numbers.guard_bits(workers))
    assert chunks < network.ranks[0].counters["sent"] < most * chunks


def test_means():
    blocks = [[3.0e38, 1.0, 1e-40], [3.0e38, 1e-9, 3e-40], [3.0e38, -1.0, 0.0]]
    result, _ = reduced("float32", blocks, 3)
    for i, value in enumerate(result.tolist()):
        true = sum(Fraction(float(np.float32(block[i]))) for block in blocks) / 3
        assert off_by(value, true, "float32") <= 1


def test_values_that_are_not_finite():
    blocks = [[math.inf, 4e30, 4.0, math.nan, math.inf], [1.0, 0.0, 1e-20, 1.0, -math.inf]]
    result, _ = reduced("float32", blocks)
    assert result[0] == math.inf and np.isnan(result[3:]).all()
    assert result[1:3].tolist() == [np.float32(4e30), 4.0]


def test_sparse_blocks_are_refused():
    worker, x = Worker(rank=0, workers=1, slots=2, job_tag=0, isn=0), np.zeros(4, np.float32)
    with pytest.raises(ConfigError, match="dense only"):
        worker.start(x.ctypes.data, x.ctypes.data, 4, "float32/exact", blocks=Sparse())


# -- over a network --


@given(st.integers(1, 4), st.sampled_from([1, 4, 16]), st.integers(0, 2**32), st.sampled_from([0.0, 0.1, 0.3]))
@examples(40)
def test_over_any_network(workers, slots, seed, trouble):
    """Lost, doubled and late packets; the tensors overwrite their sources, and dtypes and wires alternate."""
    chooser, generator = random.Random(seed), np.random.default_rng(seed)
    ranks: list[list[Call]] = [[] for _ in range(workers)]
    for _ in range(chooser.randint(1, 4)):
        dtype, numel = chooser.choice(["float32/exact", "float64/exact", "float32"]), chooser.randint(1, 600)
        spread = chooser.choice([1, 3, 100])
        scales = 2.0 ** np.repeat(generator.integers(-spread, spread, -(-numel // 16)), 16)[:numel]
        for calls in ranks:
            source = (generator.standard_normal(numel) * scales).astype(dtype.partition("/")[0])
            calls.append(Call(dtype, 1, source, source.copy()))
    for calls in ranks:
        for call in calls:
            call.target[:] = call.source
    sources = [[call.source.copy() for call in calls] for calls in ranks]
    for calls in ranks:
        for call in calls:
            call.source = call.target
    weather = Weather(trouble, trouble, trouble, 5 * MILLISECOND)
    Network(ranks, slots=slots, windows=[slots] * workers, weather=weather, seed=seed).run(limit=600 * SECOND)
    for number, column in enumerate(zip(*ranks, strict=True)):
        assert len({call.target.tobytes() for call in column}) == 1
        dtype = column[0].dtype.partition("/")[0]
        if column[0].dtype != dtype:
            for i in range(0, column[0].target.size, 7):
                true = sum(Fraction(float(calls[number][i])) for calls in sources)
                assert off_by(column[0].target[i], true, dtype) <= 1


def test_another_wire_is_another_call():
    """A rank that asks for int32 lanes meets one that sums exactly: an error on all, not a wrong sum."""
    values = np.linspace(0.1, 2, 40, dtype=np.float32)
    ranks = [[Call(dtype, 1, values, np.zeros_like(values))] for dtype in ("float32", "float32/exact")]
    network = Network(ranks, slots=4, windows=[4, 4])
    network.run(limit=10 * SECOND)
    assert all(worker.failure["code"] for worker in network.ranks)
