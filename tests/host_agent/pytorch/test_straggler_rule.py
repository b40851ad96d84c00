"""What the DDP hook for stragglers computes, step by step beside NumPy: the mean over the ranks in time, and error
feedback of the late one. Ranks are threads; halting its agent makes one late. Gradients are whole numbers, so sums are
exact."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from host_agent.pytorch.stragglers import _BUILDING, StragglerState, straggler_hook  # noqa: E402
from switchml.errors import ConfigError, UnsupportedTensor  # noqa: E402
from tests.support.launch import DEADLINE_S, good, on_all  # noqa: E402

KEPT_S = 1.0
"""A deadline that a rank keeps which is not stopped, also on a busy machine."""
SIZES = ((40, 7), (300,))
"""Elements of the parameters of each bucket; the second takes several packets."""
RANKS, STEPS, LATE_STEPS = 3, _BUILDING + 4, (_BUILDING + 2, _BUILDING + 3)
"""The last rank is late for two steps. It has gradients for the first of them, takes the next one as it is, and is
back for the last."""


@dataclass
class Bucket:
    """What the hook uses of DDP's."""

    number: int
    values: torch.Tensor
    places: list

    def index(self):
        return self.number

    def buffer(self):
        return self.values

    def parameters(self):
        return self.places


class Rank:
    """A model's parameters in buckets, and what backward passes make of them."""

    def __init__(self, agent):
        self.agent, self.state = agent, StragglerState(SimpleNamespace(agent=agent))
        self.buckets = [[torch.zeros(n, requires_grad=True) for n in sizes] for sizes in SIZES]

    def backward(self, gradients: list[np.ndarray], dtype=torch.float32) -> list[np.ndarray]:
        """The mean gradients of each bucket."""
        buckets = [
            Bucket(number, torch.from_numpy(values).to(dtype), self.buckets[number])
            for number, values in enumerate(gradients)
        ]
        futures = [straggler_hook(self.state, bucket) for bucket in buckets]
        return [future.wait().float().numpy() for future in futures]

    def gradients(self) -> list[np.ndarray]:
        """Those that `catch_up` has put into the parameters."""
        return [torch.cat([parameter.grad for parameter in bucket]).numpy() for bucket in self.buckets]

    def memory(self) -> list[np.ndarray]:
        return [self.state.buckets[number].late.values.copy() for number in range(len(SIZES))]


def gradients(step: int, rank: int) -> list[np.ndarray]:
    chooser = np.random.default_rng((step, rank))
    return [chooser.integers(-9, 10, sum(sizes)).astype(np.float32) for sizes in SIZES]


def reference() -> tuple[list[list[np.ndarray]], list[list[np.ndarray]]]:
    """Of each step, from the rule alone: the mean of each bucket, and what the last rank then keeps of it."""
    means, memories = [], []
    memory = [np.zeros(sum(sizes), np.float32) for sizes in SIZES]
    for step in range(1, STEPS + 1):
        given = [gradients(step, rank) for rank in range(RANKS)]
        if step == LATE_STEPS[1]:  # it has computed nothing for this one
            given[-1] = [np.zeros_like(values) for values in memory]
        given[-1] = [fresh + kept for fresh, kept in zip(given[-1], memory, strict=True)]
        present = given[:-1] if step in LATE_STEPS else given
        means.append([sum(parts) / len(present) for parts in zip(*present, strict=True)])
        memory = given[-1] if step in LATE_STEPS else [np.zeros_like(values) for values in memory]
        memories.append(memory)
    return means, memories


@pytest.fixture
def ranks(join):
    return [Rank(agent) for agent in join(RANKS, deadline_s=KEPT_S)]


def check(results: list[list[np.ndarray]], expected: list[np.ndarray]) -> None:
    """All ranks have the same bits, which are those of the reference but for the rounding of a mean."""
    for bucket, mean in enumerate(expected):
        assert len({each[bucket].tobytes() for each in results}) == 1
        np.testing.assert_allclose(results[0][bucket], mean, rtol=1e-6)


def test_means_and_memories_are_those_of_the_rule(ranks):
    means, memories = reference()
    late, steps = ranks[-1], iter(range(1, STEPS + 1))

    def take(step, these):
        return good(on_all(these, lambda each: each.backward(gradients(step, each.agent.rank))))

    for _ in range(_BUILDING + 1):
        step = next(steps)
        check(take(step, ranks), means[step - 1])
    late.agent.pause()
    missed = {step: take(step, ranks[:-1]) for step in LATE_STEPS}
    late.agent.resume()

    first, second = LATE_STEPS
    check([*missed[first], late.backward(gradients(first, RANKS - 1))], means[first - 1])
    assert late.state.is_behind
    for kept, expected in zip(late.memory(), memories[first - 1], strict=True):
        np.testing.assert_array_equal(kept, expected)
    assert list(late.state.catch_up(1)) == [None]
    check([*missed[second], late.gradients()], means[second - 1])
    for kept, expected in zip(late.memory(), memories[second - 1], strict=True):
        np.testing.assert_array_equal(kept, expected)

    on_all(ranks, lambda each: each.agent.barrier())  # from here on the others wait for it again
    check(take(STEPS, ranks), means[-1])
    assert not late.state.is_behind and not any(kept.any() for kept in late.memory())
    assert [each.state.steps for each in ranks] == [STEPS] * RANKS


def test_while_ddp_forms_its_buckets_nobody_is_left_out(ranks):
    late = ranks[-1]
    late.agent.pause()
    with ThreadPoolExecutor(RANKS) as pool:
        futures = [pool.submit(each.backward, gradients(1, each.agent.rank)) for each in ranks]
        with pytest.raises(TimeoutError):
            futures[0].result(2 * KEPT_S)
        late.agent.resume()
        check([future.result(DEADLINE_S) for future in futures], reference()[0][0])
    assert not late.state.buckets


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_of_half_precision(ranks, dtype):
    """They are summed, and kept, as float32."""
    for step in range(_BUILDING + 1):
        results = good(on_all(ranks, lambda each, step=step: each.backward(gradients(step, each.agent.rank), dtype)))
        expected = [sum(parts) / RANKS for parts in zip(*(gradients(step, rank) for rank in range(RANKS)), strict=True)]
        check(results, [torch.from_numpy(mean).to(dtype).float().numpy() for mean in expected])


def test_a_loop_that_does_not_catch_up_is_told(ranks, caplog):
    for _ in range(_BUILDING):
        good(on_all(ranks, lambda each: each.backward(gradients(1, each.agent.rank))))
    late = ranks[-1]
    late.agent.pause()
    for _ in range(3):
        good(on_all(ranks[:-1], lambda each: each.backward(gradients(1, each.agent.rank))))
    late.agent.resume()
    for _ in range(3):
        late.backward(gradients(1, RANKS - 1))
    (record,) = [record for record in caplog.records if "catch_up" in record.getMessage()]
    assert f"rank {RANKS - 1}" in record.getMessage()


def test_what_does_not_fit(join, ranks):
    (agent,) = join(1)
    for group in (SimpleNamespace(agent=agent), SimpleNamespace(agent=None)):
        with pytest.raises(ConfigError, match="joined with SWITCHML_DEADLINE"):
            StragglerState(group)
    with pytest.raises(UnsupportedTensor, match="bucket of torch.float64: expected gradients of float32, float16"):
        straggler_hook(ranks[0].state, Bucket(0, torch.zeros(3, dtype=torch.float64), []))
