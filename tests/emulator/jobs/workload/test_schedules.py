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


def test_one_forward_one_backward():
    """The second of three stages: one forward pass to fill, then by turns, then what is left."""
    order = passes(Job(gpus=3, pp=3, batch=3), 1)
    assert order.tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 0], [1, 2, 0], [0, 1, 0], [0, 2, 0]]


@pytest.mark.parametrize("stage", range(4))
def test_one_forward_one_backward_bounds_what_is_in_flight(stage):
    order = passes(Job(gpus=4, pp=4, batch=16), stage)
    assert np.cumsum(np.where(order[:, 0] == 1, 1, -1)).max() == 4 - stage
