"""Which elements the sparsifiers send, and what PowerSGD's two matrices approximate."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchml.codecs import StepContext, parse, together
from switchml.codecs.powersgd import matrix_shape


def gradient(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).laplace(size=n).astype(np.float32)


def sent(spec: str, x: np.ndarray, step: int = 0, state=None) -> np.ndarray:
    """Indices of what is not 0 after decoding, which must be as it was."""
    codec = parse(spec)
    payload = codec.compress(codec.new_state() if state is None else state, x, StepContext("w", step))
    y = codec.decompress(payload, x.size)
    indices = np.flatnonzero(y)
    assert np.array_equal(y[indices], x[indices])
    return indices


def test_top_k_sends_the_k_largest():
    x = gradient(20_000)
    assert np.array_equal(sent("topk:ratio=0.001", x), np.sort(np.argsort(-np.abs(x))[:20]))


def test_threshold():
    x = gradient(5000)
    assert np.array_equal(sent("threshold:threshold=2", x), np.flatnonzero(np.abs(x) > 2))


@pytest.mark.slow(keep=3)
@pytest.mark.parametrize("spec", ["dgc", "sidco", "sidco:fit=pareto"])
@pytest.mark.parametrize("ratio", [0.1, 0.01, 0.001])
def test_estimated_thresholds_are_near(spec, ratio):
    """Within 30 % of the wanted share for DGC; within the 20 % that SIDCo's stages steer to, plus its estimate's."""
    name, colon, rest = spec.partition(":")
    codec = parse(f"{name}:ratio={ratio}" + (f",{rest}" if rest else ""))
    state = codec.new_state()
    shares = [sent(str(codec), gradient(200_000, step), step, state).size / 200_000 for step in range(30)]
    assert 0.6 * ratio < np.mean(shares[10:]) < 1.5 * ratio
    x = gradient(200_000)
    chosen = sent(str(codec), x)
    assert np.abs(x[chosen]).min() >= np.abs(np.delete(x, chosen)).max(), "the largest are sent"


def test_sidco_needs_more_stages_for_heavy_tails():
    codec, state = parse("sidco:ratio=0.001"), parse("sidco").new_state()
    shares = []
    for step in range(60):
        x = np.random.default_rng(step).standard_t(2.5, 100_000).astype(np.float32)
        shares.append(sent(str(codec), x, step, state).size / x.size)
    assert shares[0] > 0.002, "one exponential is far off"
    assert state.count > 1 and 0.0005 < np.mean(shares[-20:]) < 0.0016


def test_hard_threshold_finds_one_and_keeps_it():
    codec = parse("hardthreshold:ratio=0.01,warmup=5")
    state = codec.new_state()
    for step in range(5):
        assert sent(str(codec), gradient(10_000, step), 0, state).size == 100
    threshold = state.threshold
    x = gradient(10_000, 99)
    assert np.array_equal(sent(str(codec), x, 0, state), np.flatnonzero(np.abs(x) > threshold))
    assert sent(str(codec), 3 * x, 0, state).size > 500, "more when gradients are large"
    assert sent(str(codec), x / 3, 0, state).size < 10, "and less when they are small"
    assert state.threshold == threshold
    assert np.array_equal(sent("hardthreshold:threshold=2.5", x), np.flatnonzero(np.abs(x) > 2.5))


def test_adaq_sends_two_means():
    x = gradient(10_000)
    y = parse("adaq").decompress(parse("adaq").compress(None, x), x.size)
    for sign in (1, -1):
        side = np.flatnonzero(sign * x > 0)
        k = -(-side.size // 100)
        chosen = np.sort(side[np.argsort(-np.abs(x[side]))[:k]])
        assert np.array_equal(np.flatnonzero(sign * y > 0), chosen)
        np.testing.assert_allclose(y[chosen], x[chosen].mean(dtype=np.float64), rtol=1e-6)


# Random-k


@given(st.integers(1, 3000), st.floats(0.001, 1), st.integers(0, 2**32))
def test_random_k_draws_different_indices(n, ratio, seed):
    codec = parse(f"randomk:ratio={ratio}")
    drawn = codec._drawn(StepContext(seed=seed).shared_key(), n)
    assert drawn.size == codec.k(n) and np.unique(drawn).size == drawn.size
    assert drawn.min(initial=0) >= 0 and drawn.max(initial=0) < n


def test_random_k_draws_anew_and_evenly():
    counts = np.zeros(1000)
    for step in range(2000):
        counts[parse("randomk:ratio=0.05")._drawn(StepContext("w", step).shared_key(), 1000)] += 1
    assert counts.sum() == 2000 * 50
    assert counts.min() > 60 and counts.max() < 140, "each about 100 times (the deviation is 10)"


def test_random_k_ranks_agree_without_talking():
    xs = [gradient(1000, rank) for rank in range(3)]
    codec = parse("randomk:ratio=0.1")
    outcomes = together([codec.exchange(None, x, StepContext("w", 5, 7, rank, 3)) for rank, x in enumerate(xs)])
    drawn = np.flatnonzero(outcomes[0].mean)
    assert drawn.size == 100
    np.testing.assert_allclose(outcomes[0].mean[drawn], np.mean(xs, axis=0)[drawn], rtol=1e-5, atol=1e-7)


# PowerSGD


def test_power_sgd_of_a_matrix_of_low_rank_is_exact():
    """All ranks together have rank 2, which one iteration finds whatever it starts with."""
    random = np.random.default_rng(0)
    left, right = random.standard_normal((40, 2)), random.standard_normal((2, 60))
    xs = [(left * (rank + 1) @ right).astype(np.float32).reshape(-1) for rank in range(3)]
    codec = parse("powersgd:rank=2")
    contexts = [StepContext("w", rank=rank, world=3, shape=(40, 60)) for rank in range(3)]
    outcomes = together([codec.exchange(codec.new_state(), x, t) for x, t in zip(xs, contexts, strict=True)])
    np.testing.assert_allclose(outcomes[0].mean, np.mean(xs, axis=0), rtol=1e-3, atol=1e-4)


def test_power_sgd_iterates_towards_the_best_approximation():
    random = np.random.default_rng(1)
    spectrum = np.diag(2.0 ** -np.arange(50))
    x = np.linalg.qr(random.standard_normal((50, 50)))[0] @ spectrum @ np.linalg.qr(random.standard_normal((50, 50)))[0]
    x = x.astype(np.float32).reshape(-1)
    codec = parse("powersgd:rank=3")
    state, errors = codec.new_state(), []
    for step in range(8):
        [outcome] = together([codec.exchange(state, x, StepContext("w", step, shape=(50, 50)))])
        errors.append(np.linalg.norm(outcome.mean - x))
    best = np.linalg.norm(np.diag(spectrum)[3:])
    assert errors[0] > 1.1 * best and errors[-1] < 1.01 * best


@pytest.mark.parametrize(("n", "shape", "wanted"), [
    (12, (3, 4), (3, 4)), (24, (2, 3, 4), (2, 12)), (12, (12,), (1, 12)), (12, (5, 5), (3, 4)), (10, None, (3, 4)),
    (0, None, (1, 0)),
])  # fmt: skip
def test_matrices(n, shape, wanted):
    assert matrix_shape(n, shape) == wanted


def test_power_sgd_sends_small_and_flat_tensors_as_they_are():
    x = gradient(100)
    for shape in ((100,), (10, 10)):
        codec = parse("powersgd:rank=5")
        [outcome] = together([codec.exchange(codec.new_state(), x, StepContext(shape=shape))])
        assert np.array_equal(outcome.mean, x) and np.array_equal(outcome.own, x)
