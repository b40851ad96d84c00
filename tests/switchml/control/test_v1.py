"""v1 hosts: the calls that p4app-switchML's client makes, and what a session does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from switchml.control import client, rpc
from switchml.control.membership import Reason, Refused
from switchml.control.sessions import V1Sessions
from switchml.control.v1 import v1_pb2
from tests.support.fake_dataplane import FakeDataplane
from tests.support.launch import until
from tests.switchml.control.conftest import DEADLINE_S


class Host:
    """One v1 worker, written after grpc_client.cc and dpdk_backend.cc."""

    def __init__(self, address: str, rank: int, workers: int):
        self.rank, self.workers = rank, workers
        self.channel = grpc.insecure_channel(address)
        self.sync = rpc.client(self.channel, v1_pb2.DESCRIPTOR.services_by_name["Sync"])
        self.session = rpc.client(self.channel, v1_pb2.DESCRIPTOR.services_by_name["Session"])

    def barrier(self) -> None:
        self.sync.Barrier(v1_pb2.BarrierRequest(num_workers=self.workers), timeout=DEADLINE_S)

    def broadcast(self, value: int, root: int = 0) -> int:
        request = v1_pb2.BroadcastRequest(value=value, rank=self.rank, num_workers=self.workers, root=root)
        return self.sync.Broadcast(request, timeout=DEADLINE_S).value

    def open(self, session_id: int, **changes) -> v1_pb2.UdpSessionResponse:
        fields = {
            "session_id": session_id, "rank": self.rank, "num_workers": self.workers, "mac": 0x020000000000 + self.rank,
            "ipv4": 0x0A000001 + self.rank, "packet_size": v1_pb2.MTU_1024,
        }  # fmt: skip
        return self.session.UdpSession(v1_pb2.UdpSessionRequest(**{**fields, **changes}), timeout=DEADLINE_S)

    def setup(self, timestamp: int) -> v1_pb2.UdpSessionResponse:
        session_id = self.broadcast(timestamp)
        if self.rank == 0:
            answer = self.open(session_id)
            self.barrier()
        else:
            self.barrier()
            answer = self.open(session_id)
        self.barrier()
        return answer


@pytest.fixture
def aggregator(start):
    return start(v1=True)


@pytest.fixture
def hosts(aggregator) -> Iterator:
    created: list[Host] = []

    def make(workers: int) -> list[Host]:
        created.extend(Host(aggregator.address, rank, workers) for rank in range(workers))
        return created[-workers:]

    yield make
    for host in created:
        host.channel.close()


def side_by_side(calls) -> list:
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(DEADLINE_S) for future in [pool.submit(call) for call in calls]]


def test_the_reference_sequence(aggregator, hosts):
    for session_id in (7_000_000_000_000, 7_000_000_000_001):  # the second run ends the first's session
        answers = side_by_side(
            [lambda host=host, session_id=session_id: host.setup(session_id + host.rank) for host in hosts(4)]
        )
        assert {(answer.session_id, answer.mac, answer.ipv4) for answer in answers} == {
            (session_id, 0x001122334455, 0x7F000001)
        }
        ((job_id, spec),) = aggregator.plane.jobs.items()
        assert (spec.protocol, spec.workers, spec.slots, spec.payload_bytes, spec.job_tag) == (1, 4, 8192, 1024, 0)
        assert aggregator.plane.rank_addresses[job_id] == [(f"10.0.0.{1 + rank}", 0) for rank in range(4)]
        job = next(job for job in client.status(aggregator.address).jobs)
        assert (job.name, job.protocol, job.state, len(job.ranks)) == (f"v1 session {session_id}", 1, "running", 4)


def test_v1_and_v2_live_side_by_side(aggregator, hosts):
    aggregator.join()
    (host,) = hosts(1)
    host.setup(5)
    assert sorted(spec.protocol for spec in aggregator.plane.jobs.values()) == [1, 2]


def test_barriers_of_different_sizes_do_not_meet(hosts):
    pair, trio = hosts(2), hosts(3)
    with ThreadPoolExecutor(5) as pool:
        waiting = [pool.submit(host.barrier) for host in (pair[0], trio[0], trio[1])]
        pool.submit(pair[1].barrier).result(DEADLINE_S)
        waiting[0].result(DEADLINE_S)
        assert not waiting[1].done() and not waiting[2].done()
        trio[2].barrier()
        waiting[1].result(DEADLINE_S), waiting[2].result(DEADLINE_S)


def test_a_broadcast_waits_for_its_root(hosts):
    trio = hosts(3)
    assert side_by_side([lambda host=host: host.broadcast(100 + host.rank, root=2) for host in trio]) == [102] * 3
    for turn in range(5):
        assert (
            side_by_side([lambda host=host, turn=turn: host.broadcast(10 * turn + host.rank) for host in trio])
            == [10 * turn] * 3
        )


@pytest.mark.parametrize(("mac", "told"), [(0x020000000001, 0x020000000001), (0, 0x001122334455)])
def test_hosts_are_told_the_mac_address_of_the_data_plane(start, mac, told):
    """On the loopback interface, which has none, that of the reference's switch."""
    aggregator = start(v1=True)
    aggregator.plane.mac = mac
    host = Host(aggregator.address, 0, 1)
    assert host.open(7).mac == told
    host.channel.close()


def test_a_host_that_gives_up_is_removed(hosts):
    pair = hosts(2)
    for call in (
        pair[1].sync.Barrier.future(v1_pb2.BarrierRequest(num_workers=2)),
        pair[1].sync.Broadcast.future(v1_pb2.BroadcastRequest(value=66, rank=1, num_workers=2, root=0)),
    ):
        with pytest.raises(grpc.FutureTimeoutError):
            call.result(timeout=0.3)
        call.cancel()
    # A root that starts anew: had the old value stayed, rank 1 would get it.
    assert pair[0].broadcast(66) == 66
    assert pair[0].broadcast(77) == 77
    assert pair[1].broadcast(0) == 77
    met = threading.Event()
    waiting = threading.Thread(target=lambda: (pair[0].barrier(), met.set()))
    waiting.start()
    assert not met.wait(0.3), "met a host that had gone"
    pair[1].barrier()
    waiting.join()


@pytest.mark.parametrize(("changes", "code", "words"), [
    ({"rank": 1}, "INVALID_ARGUMENT", "rank 1 of 1: expected 0 to 0"),
    ({"num_workers": 33}, "INVALID_ARGUMENT", "num_workers 33: expected 1 to 32"),
    ({"num_workers": 0}, "INVALID_ARGUMENT", "num_workers 0"),
    ({"packet_size": 0}, "INVALID_ARGUMENT", "packet_size 0: expected MTU_256"),
    ({"packet_size": 2}, "INVALID_ARGUMENT", "packet_size 2"),
    ({"ipv4": 0}, "INVALID_ARGUMENT", "data address 0.0.0.0"),
    ({"rank": 1, "num_workers": 2}, "FAILED_PRECONDITION", "session 9 is not open: rank 0 calls UdpSession first"),
])  # fmt: skip
def test_errors_have_text(hosts, changes, code, words):
    (host,) = hosts(1)
    with pytest.raises(grpc.RpcError) as caught:
        host.open(9, **changes)
    assert caught.value.code().name == code and words in caught.value.details()


def test_other_calls_have_limits_too(hosts):
    (host,) = hosts(1)
    for call, code in (
        (lambda: host.sync.Barrier(v1_pb2.BarrierRequest(num_workers=33)), "INVALID_ARGUMENT"),
        (lambda: host.broadcast(1, root=1), "INVALID_ARGUMENT"),
        (lambda: host.session.RdmaSession(v1_pb2.RdmaSessionRequest(num_workers=1)), "UNIMPLEMENTED"),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            call()
        assert caught.value.code().name == code


# The state machine alone.


def opened(sessions: V1Sessions, session_id: int, workers: int = 2, first: int = 0x0A000001, now: float = 0.0):
    return [sessions.open(session_id, rank, workers, 1, first + rank, 0, now) for rank in range(workers)][-1]


def test_rank_0_wipes_its_session():
    plane = FakeDataplane()
    sessions = V1Sessions(plane)
    before = opened(sessions, 1)
    after = sessions.open(1, 0, 2, 1, 0x0A000001, 0, 1.0)
    assert list(plane.jobs) == [after.job_id] != [before.job_id]
    assert plane.rank_addresses[after.job_id] == [("10.0.0.1", 0), None] and after.missing == [1]


def test_sessions_on_other_hosts_live_on():
    plane = FakeDataplane()
    sessions = V1Sessions(plane)
    first, second = opened(sessions, 1), opened(sessions, 2, first=0x0A000101)
    assert set(plane.jobs) == {first.job_id, second.job_id}
    third = opened(sessions, 3, first=0x0A000101)
    assert set(plane.jobs) == {first.job_id, third.job_id} and set(sessions.live) == {1, 3}


def test_mismatches_name_both_values():
    sessions = V1Sessions(FakeDataplane())
    sessions.open(1, 0, 3, 1, 0x0A000001, 0, 0.0)
    for arguments, words in (
        ((1, 1, 2, 1, 0x0A000002, 0, 0.0), "requests num_workers 2, but rank 0 opened session 1 with 3"),
        ((1, 1, 3, 3, 0x0A000002, 0, 0.0), "requests payload bytes 1024, but rank 0 opened session 1 with 256"),
        ((1, 1, 3, 1, 0x0A000001, 0, 0.0), "10.0.0.1 is rank 0 of session 1 already"),
    ):
        with pytest.raises(Refused) as caught:
            sessions.open(*arguments)
        assert caught.value.reason in (Reason.CONFLICT, Reason.DUPLICATE) and words in str(caught.value)


def test_an_idle_session_ends():
    plane = FakeDataplane()
    sessions = V1Sessions(plane, idle_timeout_s=60.0)
    session = opened(sessions, 1)
    sessions.expire(59.0)
    plane.counts[session.job_id][1]["received_packets"] += 1
    sessions.expire(100.0)
    sessions.expire(159.0)
    assert sessions.live == {1: session}
    sessions.expire(160.0)
    assert sessions.live == {} and plane.jobs == {} and sessions.ended_totals["received_packets"] == 1


@pytest.mark.slow
def test_an_idle_session_ends_in_a_running_aggregator(start):
    aggregator = start(v1=True, v1_idle_timeout_s=0.1)
    host = Host(aggregator.address, 0, 1)
    host.open(3)
    until(lambda: not aggregator.plane.jobs)
    host.channel.close()
