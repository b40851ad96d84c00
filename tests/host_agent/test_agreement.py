"""Ranks whose calls differ in what packets do not show: no rank gets a result, and all hear what two of them called."""

import numpy as np
import pytest

from host_agent.signatures import Signature
from switchml.errors import RanksDisagree
from tests.support.agents import on_all

F32 = "float32"


def ones(numel: int, dtype: str = F32) -> np.ndarray:
    return np.ones(numel, dtype)


CASES = {
    "sizes of one packet": ("allreduce", [ones(1000), ones(1020)], {}, ["of 1,000 float32", "of 1,020 float32"]),
    "sizes of whole packets": ("allreduce", [ones(256), ones(512)], {}, ["of 256 float32", "of 512 float32"]),
    "nothing and something": ("allreduce", [ones(0), ones(3)], {}, ["of 0 float32", "of 3 float32"]),
    "half precision": ("allreduce", [ones(9, "float16"), ones(9)], {}, ["of 9 float16", "of 9 float32"]),
    "all_gather": ("all_gather", [ones(5), ones(3)], {}, ["all-gather of 5", "all-gather of 3"]),
    "bytes as another type": ("all_gather", [ones(5), ones(5, "int32")], {}, ["of 5 float32", "of 5 int32"]),
    "broadcast": ("broadcast", [ones(5), ones(3)], {}, ["broadcast of 5", "broadcast of 3"]),
    "reduce_scatter": ("reduce_scatter", [ones(10), ones(6)], {}, ["scatter of 5", "scatter of 3"]),
    "max": ("allreduce", [ones(5), ones(3)], {"op": "max"}, ["of 5 float32 (max)", "of 3 float32 (max)"]),
}


@pytest.mark.parametrize("case", CASES)
def test_calls_that_differ(join, case):
    method, arrays, options, named = CASES[case]
    agents = join(2)
    errors = on_all(agents, lambda agent: getattr(agent, method)(arrays[agent.rank], **options))
    assert all(isinstance(error, RanksDisagree) for error in errors), errors
    assert all(words in str(error) for error in errors for words in named), errors


def test_ops_that_differ(join):
    """The least of some numbers is the largest of others, so packets look the same."""
    agents = join(2)
    errors = on_all(agents, lambda agent: agent.allreduce(ones(4), op=["min", "max"][agent.rank]))
    assert all(isinstance(error, RanksDisagree) and "(min)" in str(error) for error in errors), errors


def test_a_size_that_differs_later(join):
    """Results before are right, and what follows in the same packets is not mistaken for it."""
    agents = join(2)

    def calls(agent):
        np.testing.assert_array_equal(agent.allreduce(ones(300)), 2 * ones(300))
        sizes = [(256, 512), (512, 256)][agent.rank]
        handles = [agent.allreduce(ones(size), async_op=True) for size in sizes]
        return handles[0].wait()

    assert all(isinstance(error, RanksDisagree) for error in on_all(agents, calls))


def test_sizes_near_each_other_have_other_numbers():
    numbers = {Signature("all_reduce", numel, F32).number for numel in range(60_000)}
    assert len(numbers) == 60_000 and min(numbers) >= 1 and max(numbers) < 1 << 16
    assert Signature("all_reduce", 7, F32).number != Signature("all_reduce", 7, F32, note=" of shape [7, 1]").number
