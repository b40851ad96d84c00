from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from host_agent import histories
from host_agent.histories import Histories
from switchml.protocol import packet
from tests.support.examples import examples

SLOTS = 8


def new() -> Histories:
    return Histories(SimpleNamespace(identity={"payload": 1024, "large": 0, "workers": 2}, queues=[{"slots": SLOTS}]))


def of(known: Histories, numel: int, dtype: str = "float32"):
    return known.of(dtype, numel)


def guesses(known: Histories, sizes, steps: int) -> list[list[int]]:
    """What is guessed for the tensors of each step; the exponents of tensor i are i + 1 in every step."""
    found = []
    for _ in range(steps):
        step = []
        for number, size in enumerate(sizes):
            codes = of(known, size)
            step.append(int(codes[0]))
            codes[:] = number + 1
        found.append(step)
    return found


@pytest.mark.parametrize(
    "sizes",
    [[100], [100, 200], [300, 578, 867, 578], [1026] * 5 + [130], [7, 7, 9, 7, 7, 7, 9], [5, 5, 5, 6] * 2 + [1]],
)
def test_equally_large_tensors_keep_their_own_exponents(sizes):
    found = guesses(new(), sizes, 5)
    right = list(range(1, len(sizes) + 1))
    assert found[0][0] == packet.CODE_ZERO and found[3:] == [right, right]


def test_what_comes_in_between_costs_one_step_at_most():
    known, sizes = new(), [578, 867, 578, 867, 100]
    guesses(known, sizes, 3)
    for numel in (1, 578, 2):  # an evaluation's
        of(known, numel)[:] = 77
    right = list(range(1, len(sizes) + 1))
    assert guesses(known, sizes, 3)[1:] == [right, right]


def test_a_new_shape_guesses_nothing_and_an_old_one_in_a_new_place_what_it_had_last():
    known = new()
    of(known, 100)[:] = 5
    assert of(known, 101)[0] == packet.CODE_ZERO
    assert of(known, 100)[0] == 5 and of(known, 100, "float64")[0] == packet.CODE_ZERO
    assert len(of(known, 256 * 3 + 1)) == 4 and len(of(known, 256 * 100)) == SLOTS
    assert of(known, 100, "int32") is None and of(known, 100, "int64") is None


@examples(50)
@given(st.lists(st.sampled_from([10, 20, 30]), min_size=1, max_size=6), st.integers(0, 40))
def test_two_ranks_guess_alike_and_forget_alike(sizes, others):
    one, other = new(), new()
    most, histories._MOST = histories._MOST, 16
    try:
        for known in (one, other):
            for numel in range(others):
                of(known, numel + 1)
        assert guesses(one, sizes, 6) == guesses(other, sizes, 6)
        assert len(one._log) <= 32 and all(place >= one._forgotten for place in one._last.values())
    finally:
        histories._MOST = most


def test_a_tensor_of_which_nothing_is_known_is_not_confused_with_those_under_way():
    """Exponents that another tensor may go on with are copied, not shared."""
    known = new()
    first, second, third = of(known, 50), of(known, 60), of(known, 50)
    assert not np.shares_memory(first, third) and not np.shares_memory(second, third)
