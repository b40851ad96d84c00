"""Memories and exchanges: nothing is lost that is kept, and all ranks ask for the same."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchml.codecs import (
    CODECS,
    Max,
    StepContext,
    Sum,
    allreduce,
    max_as_sum,
    max_of_sum,
    parse,
    parse_error_feedback,
    together,
)
from switchml.errors import RanksDisagree


def gradients(steps: int, n: int = 400) -> np.ndarray:
    return np.random.default_rng(0).laplace(size=(steps, n)).astype(np.float32)


def run(codec_spec: str, feedback_spec: str, xs: np.ndarray, lrs=None, shape=None):
    """What one rank's all-reduces returned, and the state of its error feedback."""
    codec, feedback = parse(codec_spec), parse_error_feedback(feedback_spec)
    state, kept, means = codec.new_state(), feedback.new_state(), []
    for step, x in enumerate(xs):
        context = StepContext("w", step, lr=lrs[step] if lrs is not None else 1.0, shape=shape)
        means += together([allreduce(codec, feedback, state, kept, x, context)])
    return np.array(means), kept


@pytest.mark.parametrize("codec", ["topk:ratio=0.05", "randomk:ratio=0.05", "onebit", "efsignsgd", "threshold", "thc"])
@pytest.mark.parametrize("feedback", ["residual", "efsignsgd"])
def test_what_was_not_sent_is_kept(codec, feedback):
    """Sent, and kept, are all that there was."""
    xs = gradients(30)
    means, kept = run(codec, feedback, xs)
    np.testing.assert_allclose(means.sum(axis=0) + kept.rest, xs.sum(axis=0), atol=2e-4)


def test_no_memory_forgets():
    means, kept = run("topk:ratio=0.05", "none", gradients(30))
    assert kept is None and np.count_nonzero(means) == 30 * 20


def test_weights_of_the_residual():
    xs = gradients(2)
    means, kept = run("topk:ratio=0.05", "residual:beta=0.5,gamma=2", xs)
    np.testing.assert_allclose(kept.rest + means[1], 0.5 * (2 * xs[0] - means[0]) + 2 * xs[1], rtol=1e-5, atol=1e-6)


def test_efsignsgd_keeps_steps_of_parameters():
    """Parameters that move by lr * mean, and what is kept, make up lr * gradient, though the learning rate changes."""
    xs, lrs = gradients(20), np.linspace(1, 0.05, 20)
    means, kept = run("efsignsgd", "efsignsgd", xs, lrs)
    moved = (lrs[:, None] * means).sum(axis=0) + lrs[-1] * kept.rest
    np.testing.assert_allclose(moved, (lrs[:, None] * xs).sum(axis=0), atol=1e-4)


def test_dgc_is_momentum_sgd_with_delays():
    """With every element sent at each step, velocities are masked at once: plain gradients. With none sent, the total
    is what momentum SGD would have moved."""
    xs = gradients(10)
    means, kept = run("topk:ratio=1", "dgc", xs)
    np.testing.assert_allclose(means, xs, rtol=1e-6)
    means, kept = run("threshold:threshold=1e9", "dgc:momentum=0.9", xs)
    velocity, total = np.zeros(400), np.zeros(400)
    for x in xs:
        velocity = 0.9 * velocity + x
        total += velocity
    assert not means.any()
    np.testing.assert_allclose(kept.total, total, rtol=1e-4, atol=1e-4)


def test_dgc_masks_what_was_sent():
    _, kept = run("topk:ratio=0.05", "dgc", gradients(1))
    assert np.count_nonzero(kept.total == 0) == np.count_nonzero(kept.velocity == 0) == 20


def test_dgc_clips():
    x = gradients(1)
    means, _ = run("topk:ratio=1", "dgc:clip=2", x)
    assert np.linalg.norm(means[0]) == pytest.approx(2, rel=1e-5)


def test_powersgd_memory_keeps_what_the_mean_lacks():
    xs = gradients(5)
    means, kept = run("powersgd:rank=1", "powersgd", xs, shape=(20, 20))
    np.testing.assert_allclose(means.sum(axis=0) + kept.rest, xs.sum(axis=0), atol=1e-4)
    _, kept = run("powersgd:rank=1", "powersgd", xs, shape=(400,))
    assert kept.rest is None


@given(st.lists(st.lists(st.floats(width=32), min_size=3, max_size=3), min_size=1, max_size=5))
def test_maximum_by_integer_sums(rows):
    values = np.array(rows, np.float32)
    contexts = [StepContext(rank=rank, world=len(rows)) for rank in range(len(rows))]
    requests = [max_as_sum(Max(row), context) for row, context in zip(values, contexts, strict=True)]
    total = np.sum([request.values for request in requests], axis=0, dtype=np.int32)
    assert np.array_equal(max_of_sum(total, contexts[0]), np.max(values, axis=0), equal_nan=True)


def asking(*requests):
    yield from requests


def test_ranks_that_ask_for_different_things():
    one = Sum(np.zeros(3, np.float32), "float32")
    for other in (Sum(np.zeros(4, np.float32), "float32"), Max(np.zeros(3, np.float32))):
        with pytest.raises(RanksDisagree, match="expected the same of all"):
            together([asking(one), asking(other)])
    with pytest.raises(RanksDisagree):
        together([asking(one), asking()])


def test_integer_sums_must_fit():
    lanes = Sum(np.full(3, 100, np.int8), "int8")
    with pytest.raises(RanksDisagree, match="a sum of 2 ranks does not fit int8"):
        together([asking(lanes), asking(lanes)])


@pytest.mark.parametrize("codec", sorted(CODECS))
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_a_step_that_is_not_finite_leaves_no_trace(codec, bad):
    """Every rank's results afterwards are those of a training in which one rank's step never happened."""
    steps, spoiled_step = 6, 3
    xs = np.random.default_rng(1).laplace(size=(steps, 2, 400)).astype(np.float32)

    def train(spoils: bool) -> list[np.ndarray]:
        coder = parse(codec)
        feedback = parse_error_feedback(coder.error_feedback)
        states = [(coder.new_state(), feedback.new_state()) for _ in range(2)]
        means = []
        for step in range(steps):
            if step == spoiled_step and not spoils:
                continue
            x = xs[step].copy()
            if step == spoiled_step:
                x[1, 7] = bad
            contexts = [StepContext("w", step, rank=rank, world=2, shape=(20, 20)) for rank in range(2)]
            both = together([allreduce(coder, feedback, *states[rank], x[rank], contexts[rank]) for rank in range(2)])
            np.testing.assert_array_equal(*both)
            if step == spoiled_step:
                assert not np.isfinite(both[0]).all()
            else:
                means.append(both[0])
        return means

    expected = train(spoils=False)
    assert all(np.isfinite(mean).all() for mean in expected)
    np.testing.assert_array_equal(train(spoils=True), expected)


def test_dgc_with_a_clip_forgets_a_step_that_is_not_finite():
    xs = gradients(3)
    xs[1, 0] = np.inf
    means, kept = run("topk:ratio=0.05", "dgc:clip=1", xs)
    assert np.isnan(means[1]).any() and np.isfinite(means[[0, 2]]).all() and np.isfinite(kept.total).all()
