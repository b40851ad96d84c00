"""What each quantizer promises: bounds of its error, and a right mean where it claims one."""

import itertools
import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from switchml.codecs import CODECS, StepContext, parse, together
from switchml.codecs.hadamard import rotate, rotate_back
from switchml.codecs.thc import table
from switchml.codecs.u8bit import magnitudes

VECTORS = hnp.arrays(np.float32, st.integers(1, 50), elements=st.floats(-1e6, 1e6, width=32))
UNBIASED = ["qsgd:levels=3", "qsgd:levels=127,norm=max", "globalqsgd:levels=2", "terngrad:clip=0", "natural"]


def decoded(spec: str, x: np.ndarray, step: int = 0) -> np.ndarray:
    codec = parse(spec)
    return codec.decompress(codec.compress(codec.new_state(), x, StepContext("w", step)), x.size)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("spec", [*UNBIASED, "randomk:ratio=0.2,unbiased=true"])
def test_mean_over_many_draws_is_right(spec):
    """At each of 60 elements the mean of 10,000 draws is within 5 standard errors (of rare draws: within 8 of them)."""
    assert parse(spec).is_unbiased
    random = np.random.default_rng(4)
    x = np.concatenate([random.laplace(size=50), random.standard_normal(10) * 1e-3]).astype(np.float32)
    draws = np.stack([decoded(spec, x, step) for step in range(10_000)]).astype(np.float64)
    error = np.abs(draws.mean(axis=0) - x)
    assert (error <= 5 * draws.std(axis=0) / math.sqrt(len(draws)) + 8 * np.abs(draws).max() / len(draws)).all()


def test_who_claims_a_right_mean_is_tested():
    claims = {name for name in CODECS if parse(name).is_unbiased} - {"none"}
    assert claims <= {spec.partition(":")[0] for spec in UNBIASED}
    assert not parse("terngrad").is_unbiased, "clipped by default"


@pytest.mark.parametrize("spec", ["globalqsgd:levels=2", "terngrad:clip=0"])
def test_ranks_draw_for_themselves(spec):
    """If all ranks rounded alike, their errors would add up in place of averaging out."""
    codec, x = parse(spec), np.random.default_rng(0).standard_normal(5000).astype(np.float32)
    errors = []
    for world in (1, 16):
        contexts = [StepContext("w", rank=rank, world=world) for rank in range(world)]
        outcome = together([codec.exchange(None, x, context) for context in contexts])[0]
        errors.append(np.linalg.norm(outcome.mean - x))
    assert errors[1] < errors[0] / 3


@given(VECTORS)
def test_fp16_and_bf16(x):
    with np.errstate(over="ignore"):
        assert np.array_equal(decoded("fp16", x), x.astype(np.float16).astype(np.float32))
    assert (np.abs(decoded("bf16", x) - x) <= np.maximum(np.abs(x) * 2.0**-8, 2.0**-133)).all()


@given(VECTORS, st.integers(1, 300), st.sampled_from(["l2", "max"]))
def test_qsgd_is_within_a_step(x, levels, norm):
    y = decoded(f"qsgd:levels={levels},bucket=16,norm={norm}", x)
    for start in range(0, x.size, 16):
        part = x[start : start + 16].astype(np.float64)
        step = (np.linalg.norm(part) if norm == "l2" else np.abs(part).max()) / levels
        assert (np.abs(y[start : start + 16] - part) <= step * 1.0001 + 1e-40).all()


@given(VECTORS)
def test_natural_is_a_power_of_two_beside(x):
    y = decoded("natural", x)
    with np.errstate(divide="ignore"):
        floor = np.maximum(2.0 ** np.floor(np.log2(np.abs(x.astype(np.float64)))), 2.0**-126)
    least = max(2.0 ** (math.floor(math.log2(np.abs(x).max())) - 125), 2.0**-126) if x.any() else 0
    is_small = np.abs(x) < least
    beside = (np.abs(y) == floor) | (np.abs(y) == 2 * floor)
    assert (beside | (is_small & ((y == 0) | (np.abs(y) == np.float32(least)))) | ((x == 0) & (y == 0))).all()
    assert ((y == 0) | (np.signbit(y) == np.signbit(x))).all()


@given(VECTORS)
def test_u8bit_takes_the_nearest(x):
    y, scale = decoded("u8bit", x), np.abs(x).max()
    for value, got in zip(x, y, strict=True):
        nearest = np.abs(magnitudes().astype(np.float64) * scale - abs(value)).min()
        assert abs(abs(float(got)) - abs(float(value))) <= nearest * 1.0001 + scale * 1e-7
        assert got == 0 or (got < 0) == (value < 0)
    assert np.abs(y).max() == scale


def test_u8bit_magnitudes():
    assert magnitudes().size == 128 and magnitudes()[0] == 0 and magnitudes()[-1] == 1
    assert (np.diff(magnitudes()) > 0).all()
    assert np.diff(magnitudes()).max() / 2 <= 0.0107


@given(VECTORS, st.floats(1e-9, 2))
def test_inceptionn_keeps_its_bound(x, bound):
    y = decoded(f"inceptionn:bound={bound}", x)
    assert (np.abs(x.astype(np.float64) - y) <= np.float32(bound)).all()


def test_inceptionn_bytes():
    """Nothing, 8, 16 and 32 bits, and 2 for the tag."""
    sizes = [parse("inceptionn").compress(None, np.full(400, v, np.float32)).nbytes for v in (0, 0.5, 1 / 300, 7.1)]
    assert sizes == [12 + 100, 12 + 100 + 400, 12 + 100 + 800, 12 + 100 + 1600]


@given(VECTORS, st.integers(2, 20))
def test_sketch_keeps_order_and_mean(x, buckets):
    y = decoded(f"sketch:buckets={buckets}", x)
    order = np.argsort(x, kind="stable")
    assert (np.diff(y[order].astype(np.float64)) >= -1e-6 * np.abs(x).max()).all()
    assert abs(y.mean(dtype=np.float64) - x.mean(dtype=np.float64)) <= 1e-6 * np.abs(x).max()
    assert np.unique(y).size <= buckets


@given(VECTORS)
def test_onebit_keeps_the_means_of_the_signs(x):
    y = decoded("onebit", x)
    for mask in (x < 0, ~(x < 0)):
        if mask.any():
            np.testing.assert_allclose(y[mask], x[mask].mean(dtype=np.float64), rtol=1e-6, atol=1e-30)


@given(VECTORS)
def test_efsignsgd_is_sign_times_mean_magnitude(x):
    wanted = np.where(x < 0, -1, 1) * np.abs(x).mean(dtype=np.float64)
    least = np.finfo(np.float32).smallest_subnormal  # half of it is not a float32
    np.testing.assert_allclose(decoded("efsignsgd", x), wanted, rtol=1e-6, atol=least)


@pytest.mark.parametrize("name", ["signsgd", "signum"])
@pytest.mark.parametrize("world", [1, 2, 5, 130])
def test_majority_decides(name, world):
    xs = np.random.default_rng(0).standard_normal((world, 200)).astype(np.float32)
    codec = parse(name)
    contexts = [StepContext("w", rank=rank, world=world) for rank in range(world)]
    generators = [codec.exchange(codec.new_state(), x, context) for x, context in zip(xs, contexts, strict=True)]
    wanted = np.sign(np.where(xs < 0, -1, 1).sum(axis=0))
    for outcome in together(generators):
        assert np.array_equal(outcome.mean, wanted)


def test_signum_votes_with_its_momentum():
    codec = parse("signum:momentum=0.75")
    state = codec.new_state()
    for value, wanted in [(1.0, 1), (-1.0, 1), (-1.0, 1), (-1.0, -1)]:  # 1, 0.5, 0.125, -0.156
        [outcome] = together([codec.exchange(state, np.full(3, value, np.float32), StepContext())])
        assert (outcome.mean == wanted).all()


# THC


def test_rotation_is_the_hadamard_matrix():
    n, block, key = 150, 64, 1234567
    unit = np.stack([rotate(row, block, key) for row in np.eye(192, dtype=np.float32)])
    np.testing.assert_allclose(unit @ unit.T, np.eye(192), atol=1e-6)
    np.testing.assert_allclose(np.abs(unit[:64, :64]), 1 / 8, atol=1e-7)
    x = np.random.default_rng(0).standard_normal(n).astype(np.float32)
    np.testing.assert_allclose(rotate_back(rotate(x, block, key), block, key, n), x, atol=1e-5)


def table_error(entries, steps: int, clip: float) -> float:
    limit = NormalDist().inv_cdf(1 - clip / 2)
    places = (np.arange(20_000) + 0.5) / 20_000 * steps
    density = np.exp(-(((places / steps * 2 - 1) * limit) ** 2) / 2)
    index = np.searchsorted(entries, places, side="right") - 1
    below, above = np.take(entries, index), np.take(entries, index + 1)
    return float((density * (places - below) * (above - places)).sum())


@pytest.mark.parametrize(("bits", "steps"), [(1, 4), (2, 6), (2, 10), (3, 10)])
def test_table_is_the_best_there_is(bits, steps):
    found = table(bits, steps, 1 / 32)
    assert found.size == 2**bits and found[0] == 0 and found[-1] == steps and (np.diff(found) > 0).all()
    inner = itertools.combinations(range(1, steps), 2**bits - 2)
    best = min(table_error([0, *middle, steps], steps, 1 / 32) for middle in inner)
    assert table_error(found, steps, 1 / 32) <= best * 1.001


def test_table_of_the_paper_is_finer_in_the_middle():
    gaps = np.diff(table(4, 30, 1 / 32))
    assert gaps.size == 15 and gaps[7] == gaps.min() and gaps[0] == gaps.max() > gaps.min()


def test_thc_error():
    """4 bits of a rotated vector: a seventh of its norm if it looks normal, a quarter if all are alike in size."""
    random = np.random.default_rng(0)
    spike = np.zeros(8192, np.float32)
    spike[77] = 1
    for x in (spike, random.standard_normal(8192).astype(np.float32), random.laplace(size=8192).astype(np.float32)):
        assert np.linalg.norm(decoded("thc", x) - x) < (0.25 if x is spike else 0.17) * np.linalg.norm(x)
