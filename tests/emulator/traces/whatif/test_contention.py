"""Operators that all-reduces disturb: found in traces, taken away and given back where what-ifs move all-reduces."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.traces.intervals import covered
from emulator.traces.join import join_each
from emulator.traces.whatif import changes, contention
from emulator.traces.whatif.predict import predicted
from tests.support import ddp_traces as traces


def job(**more) -> traces.Job:
    """All-reduces of 2 ms, and 24 ms for each MB. Two of the four operators of backward run beside the first."""
    return traces.Job(sizes=(1e6, 1e6, 3e6, 3e6), reduce=(50.0, 146.0), **more)


@pytest.fixture(scope="module")
def iterations():
    return join_each(traces.ddp(job(disturbed=1.2), ranks=2, iterations=16, seed=3))


def contended(iterations):
    """Each knows how much longer operators take beside all-reduces."""
    measured = contention.measure(iterations)
    return [dataclasses.replace(one, contention=measured) for one in iterations]


def mean_s(changed) -> float:
    return predicted(changed).iteration_s


def test_one_bucket_disturbs_nobody(iterations):
    """As a job takes that has one bucket: its all-reduce runs when all operators are done."""
    one = dataclasses.replace(job(), buckets=(0, 0, 0, 0), reduce=(194.0,))
    real_s = mean_s(join_each(traces.ddp(one, ranks=2, iterations=16)))
    known = contended(iterations)
    assert mean_s([changes.buckets(each, [25 << 20]) for each in known]) == pytest.approx(real_s, rel=0.01)
    unaware_s = mean_s([changes.buckets(each, [25 << 20]) for each in iterations])
    assert unaware_s > 1.05 * real_s, "the disturbance would have been kept"


def test_the_same_buckets_are_disturbed_the_same(iterations):
    same = [changes.buckets(each, [2e6, 6e6]) for each in contended(iterations)]
    assert mean_s(same) == pytest.approx(mean_s(iterations), rel=0.01)


def test_more_buckets_disturb_more(iterations):
    """An all-reduce after the first gradient already: the second operator runs beside it, and takes as much longer as
    the third and fourth did in the mean."""
    known = contended(iterations)
    factors = list(known[0].contention.factor.values())
    assert factors == pytest.approx([2.2, 2.2], abs=0.5)
    earlier = changes.buckets(known[0], [1e6, 1e6, 6e6])
    elapsed_s = earlier.costs.op_type_s[earlier.graph.ops.op_type]
    backward = [op for op in range(len(elapsed_s)) if earlier.graph.op_name(op).startswith("aten::mm")]
    of_rank = earlier.graph.op_rank()[backward]
    first, second = (np.array([np.array(backward)[of_rank == rank][i] for rank in range(2)]) for i in range(2))
    assert elapsed_s[first] == pytest.approx(8e-3, rel=0.01)
    assert elapsed_s[second] == pytest.approx(8e-3 * np.array(factors), rel=0.05)


def test_undisturbed_operators_lose_nothing():
    quiet = join_each(traces.ddp(job(), ranks=2, iterations=8))
    known = contended(quiet)
    assert list(known[0].contention.factor.values()) == pytest.approx([1.0, 1.0])
    cap = [25 << 20]
    assert mean_s([changes.buckets(one, cap) for one in known]) == pytest.approx(
        mean_s([changes.buckets(one, cap) for one in quiet]), rel=1e-6
    )


def test_a_faster_accelerator_first(iterations):
    """Shares of what ops take, not seconds: they hold after other changes."""
    twice = [changes.buckets(changes.accelerator(one, 2), [25 << 20]) for one in contended(iterations)]
    half = [changes.accelerator(changes.buckets(one, [25 << 20]), 2) for one in contended(iterations)]
    assert mean_s(twice) == pytest.approx(mean_s(half), rel=1e-6)


SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), min_size=1, max_size=8)


@given(SPANS, SPANS)
def test_shares_that_are_covered(spans, others):
    """Beside counting whole seconds."""
    (start, length), (begin, size) = (np.array(rows).T for rows in (spans, others))
    found = covered(*(column.astype(float) for column in (start, start + length, begin, begin + size)))
    seconds = {t for a, n in others for t in range(a, a + n)}
    counted = [sum(t in seconds for t in range(a, a + n)) / n if n else 0.0 for a, n in spans]
    assert found == pytest.approx(counted)


def test_few_iterations_do_not_tell(iterations):
    assert contention.measure(iterations[:3]) is None
    assert changes.buckets(contended(iterations[:3])[0], [25 << 20]).contention is None
