"""Lifetimes of tensors: small blocks worked by hand, and spans against playing them one after the other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.jobs.workload.lifetimes import ACTIVATIONS, CACHED, GRADIENTS, TEMPORARY, Block, Span, change


def mlp():
    """Of 10 bytes in and out: a norm, up to 40, an activation, down, and the sum with what came in."""
    block = Block([10.0])
    normed = block.add(0, 10.0, keeps="in", extra=1.0, weight=2.0)
    up = block.add(normed, 40.0, keeps="in", weight=100.0)
    active = block.add(up, 40.0, keeps="in")
    down = block.add(active, 10.0, keeps="in", weight=100.0)
    block.add((0, down), 10.0, passes=True)
    return block


def test_forward_keeps_what_backward_needs():
    span = mlp().forward()
    # Kept besides the input: statistics, normed, up, active; and the output. `down` goes.
    assert span.net == (1 + 10 + 40 + 40 + 10, 0, 0, 0)
    assert span.peak[ACTIVATIONS] == span.held == span.net[ACTIVATIONS] + 10


def test_backward_frees_it_and_leaves_gradients():
    block = mlp()
    there, back = block.forward(), block.backward()
    # The input and its gradient change places, as do the output and its gradient.
    assert there.net[ACTIVATIONS] + back.net[ACTIVATIONS] == 0
    assert back.net[GRADIENTS] == 202
    # First to run: down's product, 40 bytes of gradient of what went in and 100 of its weight.
    assert back.peak[ACTIVATIONS] + back.peak[GRADIENTS] == pytest.approx(back.held)
    assert back.held >= 140
    summed = block.backward(accumulates=True)
    assert summed.net[GRADIENTS] == 0 and summed.peak[TEMPORARY] in (0, 100)


def test_the_residuals_gradient_is_no_copy_until_both_halves_have_one():
    """x + f(x), f an identity with a copy: 10 bytes come for f's gradient, and are added to those that passed."""
    block = Block([10.0])
    copied = block.add(0, 10.0)
    block.add((0, copied), 10.0, passes=True)
    back = block.backward()
    # The gradient that came in serves both; f makes one of its own, and their sum is in the first.
    assert back.net == (0, 0, 0, 0) and back.held == 10


def test_checkpoints():
    plain, full = mlp(), mlp().checkpoint()
    assert full.forward().net[ACTIVATIONS] == 10, "only the output; the input stays where it is"
    back = full.backward()
    assert back.net[ACTIVATIONS] == -10
    assert back.held > plain.backward().held, "all that forward kept comes again"
    stored = mlp().checkpoint(stored=[2])
    assert stored.forward().net[ACTIVATIONS] == 10 + 40
    part = mlp().checkpoint(range(2, 3))
    assert part.forward().net[ACTIVATIONS] == plain.forward().net[ACTIVATIONS], "down's product needs its input anyway"
    for block in (stored, part):
        assert block.forward().net[ACTIVATIONS] + block.backward().net[ACTIVATIONS] == 0


def test_a_gradient_written_over_what_was_kept():
    """A loss that keeps 40 bytes of softmax: its gradient takes their place."""
    block = Block([40.0])
    block.add(0, 4.0, extra=40.0, overwrites=True)
    assert block.forward().net[ACTIVATIONS] == 4 + 40 - 40, "the logits go"
    back = block.backward()
    assert back.held == 0 and back.net[ACTIVATIONS] == -4


sizes = st.integers(-5, 5)
pieces = st.lists(st.tuples(st.integers(0, 3), sizes), min_size=1, max_size=6)


def played(changes):
    """Bytes by kind at the end, and the most of all of them and of tensors alone."""
    now, most, held = [0] * 4, 0, 0
    for kind, size in changes:
        now[kind] += size
        most, held = max(most, sum(now)), max(held, sum(now[:CACHED]))
    return now, most, held


@given(pieces, pieces, st.integers(1, 5))
def test_spans_are_what_playing_gives(first, second, times):
    spans = [Span().then(*(change(kind, float(size)) for kind, size in part)) for part in (first, second)]
    found = spans[0].times(times).then(spans[1])
    now, most, held = played(first * times + second)
    assert list(found.net) == now and sum(found.peak) == most and found.held == held
