"""Schedules: every pass once, in an order that can be played."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.jobs.workload.job import Job
from emulator.jobs.workload.schedules import passes


@st.composite
def pipelines(draw):
    stages, pieces = draw(st.integers(2, 6)), draw(st.integers(1, 3))
    schedule = "interleaved" if pieces > 1 else draw(st.sampled_from(["1f1b", "gpipe"]))
    count = stages * draw(st.integers(1, 4)) if pieces > 1 else draw(st.integers(1, 12))
    return Job(gpus=stages, pp=stages, batch=count, schedule=schedule, virtual_stages=pieces)


@given(pipelines())
def test_every_pass_once_and_backward_after_forward(job):
    for stage in range(job.pp):
        order = [tuple(row) for row in passes(job, stage).tolist()]
        assert len(set(order)) == len(order) == 2 * job.micro_batches * job.virtual_stages
        for _, micro_batch, piece in (row for row in order if row[0] == 0):
            assert order.index((1, micro_batch, piece)) < order.index((0, micro_batch, piece))


@given(pipelines())
def test_no_two_stages_wait_for_each_other(job):
    """Play all stages: a pass may run once its neighbours' passes that it needs have."""
    orders = [passes(job, stage).tolist() for stage in range(job.pp)]
    last, done, at = job.pp * job.virtual_stages - 1, set(), [0] * job.pp
    moved = True
    while moved:
        moved = False
        for stage, order in enumerate(orders):
            while at[stage] < len(order):
                forward, micro_batch, piece = order[at[stage]]
                place = piece * job.pp + stage
                if forward:
                    needs = {(1, micro_batch, place - 1)} if place else set()
                else:
                    needs = {(0, micro_batch, place + 1)} if place < last else {(1, micro_batch, place)}
                if not needs <= done:
                    break
                done.add((forward, micro_batch, place))
                at[stage] += 1
                moved = True
    assert all(count == len(order) for count, order in zip(at, orders, strict=True))


def played(orders, pass_s):
    """Seconds of a pipeline, pass by pass: each starts once its stage is free and its neighbour has handed over."""
    ends, at, free = {}, [0] * len(orders), [0.0] * len(orders)
    while any(number < len(order) for number, order in zip(at, orders, strict=True)):
        for stage, order in enumerate(orders):
            if at[stage] == len(order):
                continue
            kind, micro_batch, _ = order[at[stage]]
            needed = {1: (1, micro_batch, stage - 1), 0: (0, micro_batch, stage + 1), 2: (0, micro_batch, stage)}[kind]
            if kind == 0 and stage == len(orders) - 1:
                needed = (1, micro_batch, stage)
            if needed in ends or (kind == 1 and stage == 0):
                free[stage] = max(free[stage], ends.get(needed, 0.0)) + pass_s[kind]
                ends[kind, micro_batch, stage] = free[stage]
                at[stage] += 1
    return max(free)


ZERO_BUBBLE = [(stages, count) for stages in (2, 3, 4, 8) for count in (1, 2, 4, 8, 24)]


@pytest.mark.parametrize(("stages", "count"), ZERO_BUBBLE)
def test_gradients_of_weights_come_after_their_backward_pass_and_bound_what_is_in_flight(stages, count):
    job = Job(gpus=stages, pp=stages, batch=count, schedule="zb-h1")
    for stage in range(stages):
        order = [tuple(row) for row in passes(job, stage).tolist()]
        assert sorted(order) == sorted((kind, number, 0) for kind in (0, 1, 2) for number in range(count))
        for number in range(count):
            places = [order.index((kind, number, 0)) for kind in (1, 0, 2)]
            assert places == sorted(places)
        in_flight = np.cumsum([{1: 1, 0: 0, 2: -1}[kind] for kind, _, _ in order])
        assert in_flight.max() <= min(stages, count)


@pytest.mark.parametrize(("stages", "count"), [(stages, count) for stages, count in ZERO_BUBBLE if count >= stages])
@pytest.mark.parametrize("pass_s", [(1.0, 1.0, 1.0), (1.0, 1.5, 0.5), (1.0, 1.2, 0.9)])
def test_zero_bubble_leaves_what_the_paper_says(stages, count, pass_s):
    """Qi et al., 2024, section 2.3: of 1F1B's (p - 1)(F + B + W), (p - 1)(F + B - W)."""
    forward, backward, weights = pass_s
    job = Job(gpus=stages, pp=stages, batch=count, schedule="zb-h1")
    own = played([passes(job, stage).tolist() for stage in range(stages)], (backward, forward, weights))
    plain = job.replace(schedule="1f1b")
    whole = played([passes(plain, stage).tolist() for stage in range(stages)], (backward + weights, forward, 0))
    ideal = count * sum(pass_s)
    assert whole - ideal == pytest.approx((stages - 1) * sum(pass_s))
    assert own - ideal == pytest.approx((stages - 1) * (forward + backward - weights))


def test_one_forward_one_backward():
    """The second of three stages: one forward pass to fill, then by turns, then what is left."""
    order = passes(Job(gpus=3, pp=3, batch=3), 1)
    assert order.tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 0], [1, 2, 0], [0, 1, 0], [0, 2, 0]]


@pytest.mark.parametrize("stage", range(4))
def test_one_forward_one_backward_bounds_what_is_in_flight(stage):
    order = passes(Job(gpus=4, pp=4, batch=16), stage)
    assert np.cumsum(np.where(order[:, 0] == 1, 1, -1)).max() == 4 - stage
