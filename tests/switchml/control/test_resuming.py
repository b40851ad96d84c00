"""Jobs that come from another aggregator: which ranks meet, and where the job goes on or begins."""

from __future__ import annotations

import itertools

import pytest

from switchml.control.jobs import JobRegistry
from switchml.control.membership import JoinRequest, Reason, Refused, Resumption
from tests.support.fake_dataplane import FakeDataplane

SLOTS = 64
BEGINS = None
HAS_NOTHING = Resumption(7, 3, (bytes(SLOTS),), (5,), has_no_result=True)
HAS_OTHER_NOTHING = Resumption(8, 1, (bytes(SLOTS),), (6,), has_no_result=True)
WRAPPED = Resumption(7, 3, (bytes(SLOTS),), (5,))
"""Of a rank with 256 results in each slot: its report is all zeros, too."""
AHEAD = Resumption(7, 4, (b"\1" * SLOTS,), (5,))


def request(rank: int, resumption: Resumption | None, **changes) -> JoinRequest:
    slots = 0 if resumption is None else SLOTS
    fields = {"address": ("127.0.0.1", 4000 + rank), "slots": slots, "resumption": resumption, **changes}
    return JoinRequest(job="x", rank=rank, world_size=3, **fields)


@pytest.mark.parametrize("order", list(itertools.permutations((BEGINS, HAS_NOTHING, HAS_OTHER_NOTHING))))
def test_a_job_without_results_begins_with_ranks_that_go_on_and_ranks_that_begin(order):
    registry = JobRegistry(FakeDataplane())
    for rank, resumption in enumerate(order):
        _, notices = registry.join(request(rank, resumption), now=0.0)
    assert len(notices) == 3
    for _, started in notices:
        assert (started.slots, started.rounds, started.epoch) == (SLOTS, (bytes(SLOTS),), 0)
        assert started.job_tag not in (5, 6)


def test_a_job_with_results_goes_on_with_ranks_that_lack_them():
    registry = JobRegistry(FakeDataplane())
    for rank, resumption in enumerate((HAS_NOTHING, AHEAD, HAS_NOTHING)):
        _, notices = registry.join(request(rank, resumption), now=0.0)
    assert {(started.rounds, started.epoch) for _, started in notices} == {((bytes(SLOTS),), 4)}


@pytest.mark.parametrize("others", [(HAS_NOTHING, WRAPPED), (WRAPPED, HAS_NOTHING), (AHEAD, HAS_NOTHING)])
def test_no_rank_begins_where_another_has_results(others):
    registry = JobRegistry(FakeDataplane())
    for rank, resumption in enumerate(others):
        registry.join(request(rank, resumption), now=0.0)
    for stranger in (BEGINS, HAS_OTHER_NOTHING):
        with pytest.raises(Refused, match="requests to go on with .*, but job 'x' was started with job 7") as caught:
            registry.join(request(2, stranger), now=0.0)
        assert caught.value.reason is Reason.CONFLICT
    registry = JobRegistry(FakeDataplane())
    registry.join(request(2, BEGINS), now=0.0)
    with pytest.raises(Refused, match="to go on with job 7, but job 'x' was started with nothing: it begins"):
        registry.join(request(0, WRAPPED), now=0.0)


def test_results_are_not_denied():
    with pytest.raises(Refused, match="rounds that have results, of a rank that has none"):
        JobRegistry(FakeDataplane()).join(
            request(0, Resumption(7, 1, (b"\1" * SLOTS,), (), has_no_result=True)), now=0.0
        )


def test_who_begins_waits_as_long_as_it_wants():
    """Ranks that go on wait for seconds at one aggregator, and come back; their timeout does not refuse the others."""
    registry = JobRegistry(FakeDataplane())
    ticket, _ = registry.join(request(0, HAS_NOTHING, timeout_s=3.0), now=0.0)
    registry.join(request(1, BEGINS, timeout_s=60.0), now=1.0)
    assert registry.expire(now=5.0) == registry.lost(ticket, "disconnected", now=5.0) == []
    registry.join(request(2, BEGINS), now=6.0)
    _, notices = registry.join(request(0, HAS_NOTHING), now=7.0)
    assert len(notices) == 3


def test_who_goes_on_gets_the_slots_that_it_had():
    registry = JobRegistry(FakeDataplane())
    registry.join(request(0, BEGINS, slots=2 * SLOTS), now=0.0)
    with pytest.raises(Refused, match="requests slots 0, but job 'x' was started with 128"):
        registry.join(request(1, BEGINS), now=0.0)
    registry.join(request(1, BEGINS, slots=2 * SLOTS), now=0.0)
    _, notices = registry.join(request(2, HAS_NOTHING), now=0.0)
    assert {started.slots for _, started in notices} == {SLOTS}
