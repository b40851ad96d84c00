"""The job registry: who gets in, what everybody is told, and what must hold whatever happens."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from switchml.control.allocation import DATAGRAM_MEMORY_BYTES, default_slots, draw_isn, draw_tag
from switchml.control.dataplane import JobSpec
from switchml.control.jobs import JobRegistry
from switchml.control.membership import (
    CONTROL_ONLY,
    JoinRequest,
    PeerLeft,
    PeerLost,
    Reason,
    Refused,
    Started,
)
from tests.support.examples import examples
from tests.support.fake_dataplane import FakeDataplane


def request(rank: int = 0, world_size: int = 2, job: str = "x", **changes) -> JoinRequest:
    fields = {"address": ("127.0.0.1", 4000 + rank), "secret": "s", "host": f"node{rank}", "pid": 100 + rank}
    return JoinRequest(job=job, rank=rank, world_size=world_size, **{**fields, **changes})


def running(registry: JobRegistry, world_size: int = 2, **changes) -> tuple[list[int], list[Started]]:
    """Fill a job; returns the tickets and what each rank was told, by rank."""
    tickets, notices = [], []
    for rank in range(world_size):
        ticket, notices = registry.join(request(rank, world_size, **changes), now=0.0)
        tickets.append(ticket)
    assert [ticket for ticket, _ in notices] == tickets
    return tickets, [event for _, event in notices]


def refusal(registry: JobRegistry, wish: JoinRequest) -> Refused:
    with pytest.raises(Refused) as caught:
        registry.join(wish, now=0.0)
    return caught.value


def divided(plane: FakeDataplane, addresses: tuple[int, int], **changes) -> JobSpec:
    """A running job of two ranks that have so many addresses."""
    registry = JobRegistry(plane)
    for rank, count in enumerate(addresses):
        more = tuple(("127.0.0.1", 5000 + 100 * rank + i) for i in range(count - 1))
        _, notices = registry.join(request(rank, more_addresses=more, **changes), now=0.0)
    spec = next(iter(plane.jobs.values()))
    started = notices[0][1]
    assert [(part.job_tag, part.isn, part.key) for part in started.more_parts] == [
        (part.job_tag, part.isn, part.key) for part in spec.more
    ]
    assert registry.slots_allocated == spec.slots * len(spec.parts)
    return spec


def test_a_job_has_as_many_parts_as_all_ranks_have_addresses():
    plane = FakeDataplane()
    plane.most_parts = 8
    plane.authenticates = True
    spec = divided(plane, (7, 4), authenticate=True)
    assert len(spec.parts) == 4 and spec.slots == 2048 and not any(part.more for part in spec.parts)
    assert spec.parts[2].addresses == (("127.0.0.1", 5001), ("127.0.0.1", 5101))
    assert len({part.job_tag for part in spec.parts}) == len({part.key for part in spec.parts}) == 4
    assert all(part.isn % (2 * 2048) == 0 for part in spec.parts)


@pytest.mark.parametrize(("addresses", "most", "slots", "capacity", "parts"), [
    ((1, 4), 8, 0, 65536, 1), ((3, 3), 8, 0, 65536, 2), ((4, 4), 1, 0, 65536, 1), ((4, 4), 8, 512, 65536, 2),
    ((4, 4), 8, 256, 65536, 1), ((4, 4), 8, 0, 500, 1),
])  # fmt: skip
def test_a_job_has_fewer_parts(addresses, most, slots, capacity, parts):
    plane = FakeDataplane(capacity)
    plane.most_parts = most
    spec = divided(plane, addresses, slots=slots)
    assert len(spec.parts) == parts and spec.slots == (256 if capacity == 500 else slots // parts or 2048)


@pytest.mark.parametrize(("sharing", "world_size", "wanted", "slots", "large"), [
    (2, 2, {}, 64, 8192), (1, 2, {}, 2048, 0), (2, 2, {"payload_bytes": 256}, 64, 2048),
    (2, 2, {"slots": 4096}, 4096, 4096), (2, 2, {"slots": 65536}, 65536, 0), (256, 256, {}, 64, 2048),
])  # fmt: skip
def test_packets_are_large_where_all_ranks_say_so(sharing, world_size, wanted, slots, large):
    """As large as the memory allows; with fewer slots, unless the ranks ask for so many."""
    plane = FakeDataplane()
    registry = JobRegistry(plane)
    for rank in range(world_size):
        one = request(rank, world_size=world_size, large_packets=rank < sharing, **wanted)
        registry.join(one, now=0.0)
    (spec,) = plane.jobs.values()
    assert (spec.slots, spec.large_bytes) == (slots, large)


def test_addresses_of_parts_are_checked_like_others():
    registry = JobRegistry(FakeDataplane(), is_own=lambda address: address[1] == 666)
    registry.join(request(more_addresses=(("127.0.0.1", 5000),)), now=0.0)
    for ports, message in (
        ([5000], "127.0.0.1:5000 is used already by rank 0"),
        ([666], "is the aggregator's own"),
        ([0], "data port 0"),
        ([6000, 6000], "each of them once"),
        (range(7000, 7016), "17 data addresses: expected 16 at most"),
    ):
        wish = request(1, more_addresses=tuple(("127.0.0.1", port) for port in ports))
        assert message in str(refusal(registry, wish))


@pytest.mark.parametrize(("changes", "words"), [
    ({"rank": 2}, "rank 2 of 2: expected 0 to 1"), ({"world_size": 257}, "world size 257: expected 1 to 256"),
    ({"world_size": 0}, "world size 0"), ({"slots": 3}, "3 slots: expected 0 or a power of two"),
    ({"slots": 1}, "1 slots: expected 0 or a power of two"),
    ({"payload_bytes": 512}, "payload of 512 bytes: expected one of [256, 1024]"), ({"wire": 3}, "wire format 3"),
    ({"protocol": 3}, "the agent speaks protocol 3, this aggregator 2"), ({"job": ""}, "job name of 0 characters"),
    ({"job": "a\nb"}, "expected 1 to 200 printable ones"),
    ({"address": ("localhost", 1)}, "data address 'localhost': expected an IPv4 address"),
    ({"address": ("0.0.0.0", 1)}, "results can't be sent there"),
    ({"address": ("224.0.0.1", 1)}, "results can't be sent there"),
    ({"address": ("127.0.0.1", 0)}, "data port 0: expected 1 to 65535"),
    ({"timeout_s": float("nan")}, "join timeout of nan s"),
])  # fmt: skip
def test_nonsense_is_refused_in_words(changes, words):
    registry = JobRegistry(FakeDataplane())
    refused = refusal(registry, dataclasses.replace(request(), **changes))
    assert refused.reason is Reason.INVALID and words in str(refused)
    assert registry.live == []


@pytest.mark.parametrize(("changes", "words"), [
    ({"world_size": 3}, "requests world size 3, but job 'x' was started with 2 by rank 0 (node0, pid 100)"),
    ({"payload_bytes": 256}, "requests payload_bytes 256, but job 'x' was started with 1024"),
    ({"wire": 1}, "requests wire format 1, but job 'x' was started with 0"),
    ({"slots": 64}, "requests slots 64, but job 'x' was started with 0"),
])  # fmt: skip
def test_a_mismatch_names_both_values(changes, words):
    registry = JobRegistry(FakeDataplane())
    registry.join(request(0), now=0.0)
    refused = refusal(registry, dataclasses.replace(request(1), **changes))
    assert refused.reason is Reason.CONFLICT and words in str(refused)


def test_a_deadline_needs_sums_that_can_end_early():
    plane = FakeDataplane()
    refused = refusal(JobRegistry(plane), request(deadline_s=0.1))
    assert refused.reason is Reason.CONFLICT and "sums always wait for every rank" in str(refused)
    plane.ends_early = True
    for deadline_s in (0.0, 0.1):
        running(JobRegistry(plane), deadline_s=deadline_s)
        (spec,) = plane.jobs.values()
        assert spec.has_deadline == (deadline_s > 0)
        plane.stop_job(spec.job_id)


def test_a_wrong_secret_learns_nothing_about_the_job():
    registry = JobRegistry(FakeDataplane())
    registry.join(request(0, world_size=7), now=0.0)
    for wish in (request(0, secret="t"), request(1, world_size=7, secret=""), request(3, world_size=4, secret="t")):
        refused = refusal(registry, wish)
        assert refused.reason is Reason.SECRET
        assert "node0" not in str(refused) and "7" not in str(refused) and "4000" not in str(refused)
    assert registry.live[0].secret != b"s" and "secret='s'" not in repr(registry.live[0])


def test_used_ranks_and_addresses_are_refused():
    registry = JobRegistry(FakeDataplane())
    registry.join(request(0), now=0.0)
    assert "rank 0 has joined already from 127.0.0.1:4000 (node0, pid 100)" in str(
        refusal(registry, request(0, address=("127.0.0.1", 5000)))
    )
    same = refusal(registry, request(1, address=("127.0.0.1", 4000)))
    assert same.reason is Reason.DUPLICATE and "used already by rank 0 (node0, pid 100)" in str(same)
    other = refusal(registry, request(0, job="y"))
    assert other.reason is Reason.DUPLICATE and "used already in job 'x'" in str(other)


def test_slots_are_halved_until_they_fit_and_refused_with_numbers():
    plane = FakeDataplane(slot_capacity=700)
    registry = JobRegistry(plane)
    assert running(registry, 1, job="a", address=("127.0.0.1", 1))[1][0].slots == 512
    assert running(registry, 1, job="b", address=("127.0.0.1", 2))[1][0].slots == 128
    for number in range(3, 7):
        running(registry, 1, job=f"c{number}", address=("127.0.0.1", number))
    assert plane.slots_in_use == 700 - 700 % 2
    ticket, notices = registry.join(request(0, 1, job="d", address=("127.0.0.1", 99)), now=0.0)
    ((notified, refused),) = notices
    assert notified == ticket and refused.reason is Reason.CAPACITY
    assert "requests 2048 slots and needs at least 2: 0 of the aggregator's 700 are free" in str(refused)
    assert not registry.knows(ticket) and all(job.name != "d" for job in registry.live)


def test_a_data_plane_that_can_not_start_a_job_refuses_all_ranks():
    plane = FakeDataplane()
    plane.rank_addresses[77] = [("127.0.0.1", 4001)]
    registry = JobRegistry(plane)
    first, _ = registry.join(request(0), now=0.0)
    second, notices = registry.join(request(1), now=0.0)
    assert [ticket for ticket, _ in notices] == [first, second]
    assert all("job 'x' can't start" in str(refused) for _, refused in notices)
    assert registry.live == [] and registry.slots_allocated == 0


@pytest.mark.parametrize(("aggregator_packets", "agent_packets", "slots", "window"), [
    (0, 0, 0, 2048), (64, 0, 0, 32), (0, 100, 0, 100), (64, 10, 0, 10), (1, 1, 0, 4), (0, 1, 2, 2),
    (9999, 9999, 64, 64),
])  # fmt: skip
def test_the_window_fits_both_buffers(aggregator_packets, agent_packets, slots, window):
    plane = FakeDataplane(receive_buffer_bytes=aggregator_packets * DATAGRAM_MEMORY_BYTES)
    _, started = running(JobRegistry(plane), slots=slots, receive_buffer_bytes=agent_packets * DATAGRAM_MEMORY_BYTES)
    assert {event.window for event in started} == {window}


def test_a_job_that_does_not_fill_tells_who_is_missing():
    registry = JobRegistry(FakeDataplane(), join_timeout_s=60.0)
    tickets = [registry.join(request(rank, world_size=6, timeout_s=5.0), now=10.0)[0] for rank in (1, 4)]
    assert registry.expire(now=14.9) == []
    notices = registry.expire(now=15.0)
    assert [ticket for ticket, _ in notices] == tickets
    refused = notices[0][1]
    assert refused.reason is Reason.TIMEOUT
    assert str(refused) == (
        "job 'x' did not fill within 5 s: rank 1 (node1, pid 101), rank 4 (node4, pid 104) joined, "
        "ranks 0, 2-3, 5 are missing"
    )
    assert registry.live == [] and registry.expire(now=99.0) == []


def test_a_loss_fails_the_job_and_frees_everything_at_once():
    plane = FakeDataplane()
    registry = JobRegistry(plane)
    tickets, _ = running(registry, world_size=3)
    notices = registry.lost(tickets[2], "disconnected", now=1.0)
    assert notices == [(ticket, PeerLost((2,), "rank 2 (node2, pid 102) disconnected")) for ticket in tickets[:2]]
    assert plane.jobs == {} and registry.slots_allocated == 0
    # The streams of the failed job close while a new job of that name is there, with the same addresses.
    rejoined, _ = running(registry, world_size=3)
    assert registry.lost(tickets[0], "disconnected", now=2.0) == [] and registry.leave(tickets[1], now=2.0) == []
    assert all(registry.knows(ticket) for ticket in rejoined) and len(plane.jobs) == 1


def test_an_address_that_an_ending_job_still_holds_stops_a_start_in_words():
    registry = JobRegistry(FakeDataplane())
    old, _ = running(registry)
    registry.leave(old[0], now=1.0)
    _, ((_, refused),) = registry.join(request(0, 1, job="y"), now=1.0)
    assert "data address 127.0.0.1:4000 belongs to job 'x' until rank 1 of it left too" in str(refused)


class Registry(RuleBasedStateMachine):
    """Random joins, leaves, losses and time; a model that only counts says who must have been told what."""

    def __init__(self):
        super().__init__()
        self.plane = FakeDataplane(slot_capacity=40)
        self.journal: list[tuple[str, dict]] = []
        self.registry = JobRegistry(
            self.plane,
            join_timeout_s=10.0,
            slots=32,
            journal=lambda kind, **fields: self.journal.append((kind, fields)),
        )
        self.now = 0.0
        self.inside: dict[int, JoinRequest] = {}
        self.started: set[int] = set()

    @rule(
        name=st.sampled_from("abc"), rank=st.integers(0, 2), world_size=st.integers(1, 3), port=st.integers(1, 6),
        secret=st.sampled_from("st"), slots=st.sampled_from([0, 2, 16]),
    )  # fmt: skip
    def join(self, name, rank, world_size, port, secret, slots):
        wish = request(rank, world_size, job=name, address=("127.0.0.1", port), secret=secret, slots=slots)
        try:
            ticket, notices = self.registry.join(wish, self.now)
        except Refused:
            return
        self.inside[ticket] = wish
        self.hear(notices)

    @precondition(lambda self: self.inside)
    @rule(data=st.data(), how=st.sampled_from(["leave", "lost"]))
    def go(self, data, how):
        ticket = data.draw(st.sampled_from(sorted(self.inside)))
        mates = {
            other
            for other, wish in self.inside.items()
            if wish.job == self.inside[ticket].job and other in self.started
        }
        was_started = ticket in self.started
        if how == "leave":
            notices = self.registry.leave(ticket, self.now)
        else:
            notices = self.registry.lost(ticket, "disconnected", self.now)
        del self.inside[ticket]
        self.started.discard(ticket)
        notified = {other for other, _ in notices}
        assert notified <= mates and ticket not in notified, "another job noticed"
        assert was_started or not notified
        self.hear(notices)

    @rule(seconds=st.floats(0.1, 11.0))
    def wait(self, seconds):
        self.now += seconds
        self.hear(self.registry.expire(self.now))

    def hear(self, notices):
        for ticket, event in notices:
            assert ticket in self.inside, "told somebody who is not there"
            if isinstance(event, Started):
                self.started.add(ticket)
                assert event.window <= event.slots
            elif not isinstance(event, PeerLeft):
                del self.inside[ticket]
                self.started.discard(ticket)

    @invariant()
    def members_are_who_we_think(self):
        assert {ticket for ticket in self.inside if self.registry.knows(ticket)} == set(self.inside)
        assert {member.ticket for job in self.registry.live for member in job.present} == set(self.inside)
        assert all(job.present for job in self.registry.live)

    @invariant()
    def no_slot_leaks(self):
        assert self.registry.slots_allocated == self.plane.slots_in_use <= self.plane.slot_capacity
        assert set(self.plane.jobs) == {job.job_id for job in self.registry.live if job.job_id}

    @invariant()
    def nothing_is_shared(self):
        tags = [spec.job_tag for spec in self.plane.jobs.values()]
        addresses = [address for spec in self.plane.jobs.values() for address in spec.addresses]
        present = [wish.address for wish in self.inside.values()]
        names = [job.name for job in self.registry.live if job.state != "ending"]
        for things in (tags, addresses, present, names):
            assert len(set(things)) == len(things)

    def teardown(self):
        for ticket in list(self.inside):
            self.registry.lost(ticket, "disconnected", self.now)
        assert self.plane.jobs == {} and self.registry.live == [] and self.registry.slots_allocated == 0
        for name in "abc":
            _, notices = self.registry.join(
                request(0, 1, job=name, address=("127.0.0.1", ord(name)), slots=2), self.now
            )
            assert isinstance(notices[0][1], Started), "the name is not free again"
        begun = sum(kind == "job_forming" for kind, _ in self.journal)
        assert begun == sum(kind == "job_ended" for kind, _ in self.journal) + 3


Registry.TestCase.settings = examples(60, stateful_step_count=30)
TestRegistry = Registry.TestCase


def test_tags_and_sequence_numbers_are_drawn_as_the_protocol_says():
    assert draw_tag(set(range(1 << 16)) - {7}) == 7
    for slots in (2, 512, 1 << 16):
        assert all(draw_isn(slots) % (2 * slots) == 0 and draw_isn(slots) < 1 << 32 for _ in range(50))
    assert len({draw_isn(512) for _ in range(50)}) > 40


def test_slots_without_a_request_shrink_with_the_number_of_ranks():
    assert [default_slots(n) for n in (1, 2, 3, 4, 8, 16, 256)] == [2048, 2048, 1024, 1024, 512, 512, 512]


# Jobs that are a membership alone


def test_a_job_without_packets_takes_nothing_from_the_data_plane():
    """Ranks learn who the others are and what becomes of them; addresses and slots are nobody's."""
    plane = FakeDataplane()
    registry = JobRegistry(plane)
    same = {"transport": CONTROL_ONLY, "address": ("", 0)}
    tickets, started = running(registry, 3, **same)
    assert plane.jobs == {} and registry.slots_allocated == 0
    assert (started[0].slots, started[0].window, started[0].segment, started[0].link) == (0, 0, "", None)
    assert [peer.host for peer in started[0].peers] == ["node0", "node1", "node2"]
    assert registry.leave(tickets[0], now=1.0) == [
        (t, PeerLeft((0,), "rank 0 (node0, pid 100) left the job")) for t in tickets[1:]
    ]
    assert registry.lost(tickets[1], "disconnected", now=2.0) == [
        (tickets[2], PeerLost((1,), "rank 1 (node1, pid 101) disconnected"))
    ]
    assert not registry.live and registry.ended[0].final is None


def test_ranks_with_and_without_packets_do_not_mix():
    registry = JobRegistry(FakeDataplane())
    registry.join(request(0, transport=CONTROL_ONLY), now=0.0)
    assert refusal(registry, request(1)).reason is Reason.CONFLICT
