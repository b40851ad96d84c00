"""Every scenario of tests/vectors on every aggregator here: the plain reference and the compiled pool; those of trees
on the reference of a switch."""

import pytest

from switchml.protocol.packet import for_rank
from switchml.protocol.pool import Pool, PoolV1
from tests.support.reference_pool import ReferencePoolV1, ReferencePoolV2
from tests.support.reference_tree import ReferenceSwitch
from tests.support.tree_vectors import load_trees
from tests.support.vectors_io import Scenario, load_all

SCENARIOS = load_all()


def reference(s: Scenario):
    if s.protocol == 1:
        return ReferencePoolV1(s.workers)
    return ReferencePoolV2(s.workers, s.slots, s.payload_bytes, s.wire, s.tag, s.isn)


def compiled(s: Scenario):
    if s.protocol == 1:
        return PoolV1(workers=s.workers, payload_bytes=s.payload_bytes)
    return Pool(workers=s.workers, slots=s.slots, payload_bytes=s.payload_bytes, wire=s.wire, job_tag=s.tag, isn=s.isn)


@pytest.mark.parametrize("build", [reference, compiled], ids=lambda build: build.__name__)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_scenario(scenario, build):
    pool = build(scenario)
    for step in scenario.steps:
        action, counter, packet = pool.receive(step.rank, step.data)
        assert (action, counter) == (step.action, step.counter), step.label
        assert packet == step.reply, step.label
        for rank in range(scenario.workers if action == "multicast" else 0):
            assert for_rank(packet, rank) == step.reply_to(rank), f"{step.label}, to rank {rank}"
        if action == "multicast" and isinstance(pool, Pool):
            row = int.from_bytes(step.data[2:6], "big") % (2 * scenario.slots)
            assert tuple(r for r in range(scenario.workers) if pool.gets_result(row, r)) == step.to, step.label


def test_every_action_and_counter_has_a_scenario():
    seen = {(s.protocol, step.action, step.counter) for s in SCENARIOS for step in s.steps}
    assert seen == {
        (1, "consume", ""), (1, "drop", ""), (1, "multicast", ""), (1, "unicast", ""),
        (2, "consume", "accepted"), (2, "multicast", "accepted"), (2, "unicast", "answered"), (2, "wait", "duplicates"),
        (2, "drop", "duplicates"), (2, "drop", "stale"), (2, "drop", "refused_window"), (2, "drop", "refused_tag"),
        (2, "drop", "refused_format"),
    }  # fmt: skip


def test_replies_belong_to_actions_that_send():
    for scenario in SCENARIOS:
        for step in scenario.steps:
            assert (step.reply is not None) == (step.action in ("multicast", "unicast", "wait")), step.label


@pytest.mark.parametrize("scenario", load_trees(), ids=lambda scenario: scenario.job.name)
def test_switch_of_a_tree(scenario):
    job = scenario.job
    numbers = job.workers, job.slots, job.payload_bytes, job.wire, job.tag, job.isn
    switch = ReferenceSwitch(scenario.below, scenario.above, *numbers)
    for step in scenario.steps:
        assert switch.receive(step.sender, step.data) == (step.action, step.counter, step.sent), step.label
