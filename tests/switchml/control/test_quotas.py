"""What one client may have, and how long it waits after wrong secrets: in virtual time."""

from __future__ import annotations

import dataclasses

import pytest

from switchml.control.jobs import JobRegistry
from switchml.control.membership import JoinRequest, Reason, Refused
from switchml.control.quotas import Quotas, WrongSecrets
from switchml.control.sessions import UNUSED_TIMEOUT_S, V1Sessions
from tests.support.fake_dataplane import FakeDataplane


def request(number: int, client: str, **changes) -> JoinRequest:
    made = JoinRequest(f"job {number}", 0, 1, ("127.0.0.1", 1000 + number), client=client)
    return dataclasses.replace(made, **changes)


def test_a_greedy_client_leaves_half_of_the_slots():
    registry = JobRegistry(FakeDataplane(), quotas=Quotas())
    registry.join(request(0, "greedy", slots=65536), 0.0)
    assert registry.slots_allocated == 65536 // 2
    _, ((_, refused),) = registry.join(request(1, "greedy"), 0.0)
    assert "32768 of the aggregator's 65536 are free" in str(refused) and "this client's, its whole share" in str(
        refused
    )
    registry.join(request(2, "modest", slots=65536), 0.0)
    assert registry.slots_allocated == 65536 * 3 // 4


def test_a_greedy_client_has_so_many_jobs_and_ranks():
    registry = JobRegistry(FakeDataplane(), quotas=Quotas(ranks=5, jobs=3))
    for number in range(3):
        registry.join(request(number, "greedy"), 0.0)
    with pytest.raises(Refused, match="greedy has begun 3 jobs here .* a client may have 3 at a time"):
        registry.join(request(3, "greedy"), 0.0)
    registry.join(request(4, "other", world_size=9), 0.0)
    for rank in (1, 2):
        registry.join(request(4, "greedy", rank=rank, world_size=9, address=("127.1.1.1", rank)), 0.0)
    with pytest.raises(Refused, match="greedy has 5 ranks in jobs here already, and a client may have 5"):
        registry.join(request(4, "greedy", rank=3, world_size=9, address=("127.1.1.1", 3)), 0.0)


def test_guesses_get_slower_and_slower():
    registry = JobRegistry(FakeDataplane())
    registry.join(request(1, "owner", secret="right", world_size=2), 0.0)
    guess = request(1, "guesser", secret="wrong", rank=1, world_size=2)
    looked = []
    for tenth in range(600):
        with pytest.raises(Refused) as caught:
            registry.join(guess, tenth / 10)
        assert caught.value.reason is Reason.SECRET
        if "has another secret" in str(caught.value):
            looked.append(tenth / 10)
    assert looked == [0.0, 0.1, 0.2, 0.3, 0.4, 0.9, 1.9, 3.9, 7.9, 15.9, 31.9]
    right = request(1, "guesser", secret="right", rank=1, world_size=2, address=("127.1.1.1", 1))
    with pytest.raises(Refused, match=r"11 wrong secrets came from guesser: the next try is allowed in 1.9 s"):
        registry.join(right, 60.0)
    registry.join(dataclasses.replace(right, client="somebody else"), 60.0)


def test_waiting_ends_and_is_forgotten():
    waits = WrongSecrets()
    for _ in range(8):
        waits.count("x", "job", 0.0)
    with pytest.raises(Refused):
        waits.check("x", "job", 3.9)
    waits.check("x", "another job", 3.9)
    waits.check("x", "job", 4.1)
    waits.count("x", "job", 4.1 + WrongSecrets.FORGOTTEN_AFTER_S)
    waits.check("x", "job", 4.2 + WrongSecrets.FORGOTTEN_AFTER_S)


def test_v1_sessions_only_hold_addresses_that_packets_came_from():
    plane = FakeDataplane()
    sessions = V1Sessions(plane, quotas=Quotas(jobs=2))
    claimed = sessions.open(1, 0, 1, 1, 0x0A000001, 0, 0.0, "a")
    used = sessions.open(2, 0, 1, 1, 0x0A000002, 0, 0.0, "a")
    plane.counts[used.job_id][0]["received_packets"] += 1
    with pytest.raises(Refused, match="a has begun 2 jobs"):
        sessions.open(3, 0, 1, 1, 0x0A000003, 0, 0.0, "a")
    sessions.evict_unused([("10.0.0.1", 5), ("10.0.0.2", 5)])
    assert sessions.live == {2: used} and claimed.job_id not in plane.jobs
    unused = sessions.open(3, 0, 1, 1, 0x0A000003, 0, 0.0, "a")
    sessions.expire(UNUSED_TIMEOUT_S - 1)
    assert sessions.live == {2: used, 3: unused}
    sessions.expire(UNUSED_TIMEOUT_S)
    assert sessions.live == {2: used}
