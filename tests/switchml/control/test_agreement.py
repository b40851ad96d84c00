"""Which reports of two ranks contradict each other (switchml/control/agreement.py), and what the registry does then."""

import itertools
import random

import pytest

from switchml.control.agreement import QueueReport, Report, Reports
from switchml.control.jobs import JobRegistry
from switchml.control.membership import Disagreement
from tests.support.fake_dataplane import FakeDataplane
from tests.switchml.control.test_jobs import running


def report(calls: list[int], done: tuple[int, int]) -> Report:
    """Of a rank that has made these calls, by queue, of which so many are done in each."""
    queues = []
    for number in range(2):
        places = [index for index, queue in enumerate(calls) if queue == number]
        awaited = min(done[number], len(places))
        index = places[awaited] if awaited < len(places) else 0
        queues.append(QueueReport(len(places), awaited, index, f"call in queue {number}"))
    return Report(tuple(queues))


def test_ranks_at_any_place_of_one_order_contradict_nobody():
    chooser = random.Random(1)
    for _ in range(300):
        order = [chooser.randrange(2) for _ in range(8)]
        reports = Reports()
        for rank in range(4):
            made = order[: chooser.randint(0, 8)]
            done = tuple(chooser.randint(0, made.count(queue)) for queue in range(2))
            assert reports.add(0, rank, report(made, done)) == ""


@pytest.mark.parametrize(("one", "other"), [([0], [1]), ([1, 0], [1, 1]), ([0, 1, 1], [0, 1, 0, 0])])
def test_the_first_difference_shows_wherever_ranks_stand(one, other):
    """Both wait in the call in which they differ, and neither has what the other waits for."""
    first = next(i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    common = one[:first]
    done = (common.count(0), common.count(1))
    for ours, theirs in itertools.permutations((one, other)):
        reports = Reports()
        assert reports.add(0, 0, report(ours, done)) == ""
        assert reports.add(1, 1, report(theirs, done)) == "", "another part is another order"
        assert f"waits in its call {first}" in reports.add(0, 1, report(theirs, done))


def test_the_registry_ends_the_job():
    plane = FakeDataplane()
    plane.collectives = True
    registry = JobRegistry(plane)
    tickets, started = running(registry, queues=2)
    assert [event.queues for event in started] == [2, 2]
    assert registry.waiting(tickets[0], 0, report([0, 0], (1, 0))) == []
    assert registry.waiting(tickets[1], 0, Report((QueueReport(1, 0),))) == [], "of one queue: ignored"
    notices = registry.waiting(tickets[1], 0, report([0, 1], (1, 0)))
    assert [ticket for ticket, _ in notices] == tickets
    assert all(isinstance(event, Disagreement) and "rank 0" in event.reason for _, event in notices)
    assert not registry.live and registry.waiting(tickets[0], 0, report([0], (0, 0))) == []


def test_a_rank_that_keeps_one_queue_has_its_way():
    plane = FakeDataplane()
    plane.collectives = True
    registry = JobRegistry(plane)
    _, started = running(registry)
    assert [(event.queues, event.slots) for event in started] == [(1, 2048)] * 2


def test_ranks_that_wait_in_one_place_in_other_calls():
    def waits(*what: str) -> Report:
        return Report(tuple(QueueReport(3, 2, 4, text) for text in what))

    reports = Reports()
    assert reports.add(0, 0, waits("5 floats")) == ""
    assert reports.add(0, 1, waits("5 floats")) == ""
    said = reports.add(0, 2, waits("6 floats"))
    assert "rank 2 waits in its call 4, 6 floats, and rank 0 in its call 4, 5 floats" in said
    assert Reports().add(0, 2, waits("6 floats")) == ""
