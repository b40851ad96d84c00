"""What strangers at the control port learn, take and block: counters as an oracle, guesses of secrets, slots, joins
that never fill, connections, and v1 sessions on others' addresses. They may even send from a rank's own socket."""

import random
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress

import grpc
import numpy as np
import pytest

from switchml.aggregator.software import SoftwareDataplane
from switchml.control import client, rpc, v2_pb2
from switchml.control.events import follow
from switchml.control.quotas import Quotas, WrongSecrets
from switchml.control.server import Controller
from switchml.control.v1 import v1_pb2
from switchml.errors import JoinError
from switchml.protocol.packet import CONTRIBUTION
from tests.support.launch import DEADLINE_S, until
from tests.support.packets import V1Packet, V2Packet
from tests.support.started import started

V1_SESSIONS = v1_pb2.DESCRIPTOR.services_by_name["Session"]


class Aggregator:
    """A software aggregator with its control plane. `options` are Controller's."""

    def __init__(self, **options):
        self.dataplane = SoftwareDataplane(port=0).start()
        self.controller = Controller(self.dataplane, control_port=0, metrics_port=0, **options)
        self.addresses = self.controller.start()
        self.address = "{}:{}".format(*self.addresses.control)

    def status(self, secret: str = "") -> v2_pb2.StatusReply:
        return client.status(self.address, secret=secret)

    def join(self, data_address: tuple[str, int], rank: int = 0, world_size: int = 1, **options) -> client.Session:
        options = {"job": "x", "timeout_s": DEADLINE_S} | options
        return client.join(self.address, rank=rank, world_size=world_size, data_address=data_address, **options)

    def stop(self) -> None:
        self.controller.stop()
        self.dataplane.stop()


@pytest.fixture
def start() -> Iterator:
    yield from started(Aggregator, Aggregator.stop)


@pytest.fixture
def sock() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bound:
        bound.bind(("127.0.240.1", 0))
        yield bound


class Observer:
    """Everything that a stranger can read of an aggregator, but for its clock."""

    def __init__(self, aggregator: Aggregator):
        self._aggregator = aggregator
        self.events: list[dict] = []
        self._over = threading.Event()
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def _listen(self) -> None:
        with closing(follow(*self._aggregator.addresses.events, timeout_s=DEADLINE_S)) as events:
            for event in events:
                self.events.append(event)
                if self._over.is_set():
                    return

    def looks(self) -> tuple:
        """Status, the metrics page, and the events of another second."""
        heard = len(self.events)
        until(lambda: len([event for event in self.events[heard:] if event["event"] == "rates"]) > 1)
        reply = self._aggregator.status()
        reply.uptime_s = 0
        with urllib.request.urlopen("http://{}:{}/metrics".format(*self._aggregator.addresses.metrics)) as page:
            metrics = {line for line in page.read().decode().splitlines() if "uptime" not in line}
        events = {
            (name, value if isinstance(value, (int, float)) else str(value))
            for event in self.events[heard:]
            for name, value in event.items()
            if name != "time"
        }
        return reply.SerializeToString(deterministic=True), metrics, events

    def close(self) -> None:
        self._over.set()
        self._listening.join()


def test_bisecting_a_tag_and_a_sequence_number_learns_nothing(start, sock, attempts):
    """Every question of a bisection is answered alike, whether tags or numbers are right: forged from the rank's very
    socket."""
    aggregator = start()
    lie = np.full(256, 666, np.int32)
    sent = 0
    with aggregator.join(sock.getsockname(), secret="ours") as session, closing(Observer(aggregator)) as observer:
        info = session.info
        before = observer.looks()
        behind, ahead = info.isn - 3 * info.slots, info.isn + 4 * info.slots
        for seq, tags in (
            (info.isn + 4 * info.slots, range(0, 65536, max(65536 // attempts.scaled(1000), 1))),
            (behind, [info.job_tag] * attempts.scaled(500)),
            (ahead, [info.job_tag] * attempts.scaled(500)),
        ):
            for job_tag in tags:
                forged = V2Packet(CONTRIBUTION, seq % 2**32, job_tag, 0, 0, 0, lie, r=True)
                sock.sendto(forged.pack(), aggregator.addresses.data)
            sent += len(tags)
            assert observer.looks() == before
        with pytest.raises(JoinError, match="has another secret"):
            aggregator.join(("127.0.240.2", 9), secret="")
        # The job's own people see all of it.
        ((rank,),) = [job.ranks for job in aggregator.status("ours").jobs]
        assert rank.counters["refused_tag"] > 500 and rank.counters["stale"] > 200
        assert rank.counters["refused_window"] > 200 and rank.counters["accepted"] == 0
        assert (rank.address.ip, rank.address.port) == sock.getsockname()
    attempts.record("forged packets to bisect a tag and a number", sent)


def test_strangers_see_totals_and_nothing_else(start, sock):
    aggregator = start()
    with aggregator.join(sock.getsockname(), job="private", secret="ours"):
        for secret in ("", "wrong"):
            reply = aggregator.status(secret)
            assert not reply.jobs and reply.hidden_jobs == 1 and not any(reply.totals.values())
            assert "private" not in str(reply) and sock.getsockname()[0] not in str(reply)
        assert [job.name for job in aggregator.status("ours").jobs] == ["private"]
    until(lambda: [job.state for job in aggregator.status("ours").jobs] == ["ended"])
    assert not aggregator.status().jobs


def test_secrets_are_not_found_by_trying(start, sock, attempts):
    """The right one is among the guesses, and does not stand out."""
    aggregator = start()
    guesses = [f"{number:04}" for number in range(attempts.scaled(1000))]
    random.Random(1).shuffle(guesses)
    right = guesses[len(guesses) // 2]
    refusals, begun = [], time.monotonic()
    with (
        aggregator.join(sock.getsockname(), world_size=1, secret=right),
        grpc.insecure_channel(aggregator.address) as channel,
    ):
        jobs = rpc.client(channel, client.JOBS)
        request = v2_pb2.JoinRequest(
            protocol=2, job="x", rank=0, world_size=1, payload_bytes=1024,
            data_address=v2_pb2.Address(ip="127.0.241.1", port=1),
        )  # fmt: skip
        for guess in guesses:
            request.secret = guess
            with pytest.raises(grpc.RpcError) as caught:
                next(jobs.Join(request, timeout=DEADLINE_S))
            refusals.append(caught.value)
        looked = sum("has another secret" in refusal.details() for refusal in refusals)
        assert WrongSecrets.FREE <= looked < 20 + (time.monotonic() - begun) / WrongSecrets.LONGEST_S
        assert {refusal.code().name for refusal in refusals} == {"PERMISSION_DENIED"}
        for guess in guesses:
            with suppress(grpc.RpcError):
                assert not jobs.Status(v2_pb2.StatusRequest(secret=guess), timeout=DEADLINE_S).jobs
    attempts.record("guesses of a secret", 2 * len(guesses))


def test_joins_that_never_fill_end_without_a_trace(start, sock, attempts):
    """Many ranks of jobs that never fill, gone at once: everybody else is answered all the while."""
    aggregator = start(quotas=Quotas(ranks=400, jobs=200))
    refused = 0
    with ExitStack() as stack:
        running = stack.enter_context(aggregator.join(sock.getsockname(), job="running", secret="ours"))
        streams = []
        channel = stack.enter_context(grpc.insecure_channel(aggregator.address))
        jobs = rpc.client(channel, client.JOBS)
        for number in range(attempts.scaled(500)):
            request = v2_pb2.JoinRequest(
                protocol=2,
                job=f"never {number}",
                rank=0,
                world_size=2,
                payload_bytes=1024,
                data_address=v2_pb2.Address(ip="127.0.241.1", port=1 + number % 60000),
                timeout_s=3600,  # or else the first make room for others before the last have come
            )
            stream = jobs.Join(request)
            try:
                assert next(stream).joined.token
                streams.append(stream)
            except grpc.RpcError as error:
                refused += 1
                assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "(--client-jobs)" in error.details()
        assert len(streams) == 199 and refused == attempts.scaled(500) - 199
        channel.close()
        until(lambda: [job.name for job in aggregator.status("ours").jobs if job.state == "running"] == ["running"])
        until(lambda: not any(job.state == "forming" for job in aggregator.status("ours").jobs))
        assert running.info.slots
    attempts.record("joins that never fill", attempts.scaled(500))


def test_idle_connections_are_closed(start, sock, attempts):
    aggregator = start()
    rounds = attempts.scaled(1)
    with aggregator.join(sock.getsockname()) as session:
        heard: list = []
        session.events(heard.append)
        for _ in range(rounds):
            with ExitStack() as stack:
                silent = [
                    stack.enter_context(socket.create_connection(aggregator.addresses.control)) for _ in range(400)
                ]
                for connection in silent:
                    connection.setblocking(False)
                until(lambda silent=silent: sum(map(is_closed, silent)) >= len(silent) - Quotas.connections)
                assert aggregator.status().version and heard == []
        with aggregator.join(("127.0.240.3", 1), job="y"):
            pass
    attempts.record("idle control connections", 400 * rounds)


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side has closed a connection that does not block."""
    try:
        while connection.recv(4096):
            pass
        return True
    except BlockingIOError:
        return False
    except OSError:
        return True


@pytest.mark.parametrize("protocol", [1, 2])
def test_no_rank_has_the_aggregators_own_address(start, protocol):
    """Else it sends results to itself, and answers them for good."""
    aggregator = start(v1=True)
    ip, port = aggregator.addresses.data
    if protocol == 2:
        with pytest.raises(JoinError, match=f"data address {ip}:{port} is the aggregator's own"):
            aggregator.join((ip, port))
        return
    with grpc.insecure_channel(aggregator.address) as channel:
        request = v1_request(session_id=1, ip=ip)
        with pytest.raises(grpc.RpcError, match=f"worker address {ip} is the aggregator's own"):
            rpc.client(channel, V1_SESSIONS).UdpSession(request, timeout=DEADLINE_S)


def v1_request(session_id: int, ip: str) -> v1_pb2.UdpSessionRequest:
    return v1_pb2.UdpSessionRequest(
        session_id=session_id,
        rank=0,
        num_workers=1,
        ipv4=int.from_bytes(socket.inet_aton(ip), "big"),
        packet_size=v1_pb2.MTU_256,
    )


def test_v1_is_not_served_unless_asked_for(start, sock):
    aggregator = start()
    with grpc.insecure_channel(aggregator.address) as channel, pytest.raises(grpc.RpcError, match="UNIMPLEMENTED"):
        rpc.client(channel, V1_SESSIONS).UdpSession(v1_request(1, sock.getsockname()[0]), timeout=DEADLINE_S)
    sock.sendto(V1Packet(1, 0, 0, 0, 0, 0, np.zeros(64, np.int32)).pack(), aggregator.addresses.data)
    until(lambda: aggregator.status().refused["refused_address"] == 1)


def test_v1_sessions_block_neither_addresses_nor_jobs(start, sock, attempts):
    """A call names the victim's address, and hundreds more name others'."""
    aggregator = start(v1=True, v1_idle_timeout_s=3600.0)
    refused = 0
    victim = sock.getsockname()[0]
    with grpc.insecure_channel(aggregator.address) as channel:
        sessions = rpc.client(channel, V1_SESSIONS)
        for number in range(attempts.scaled(300)):
            ip = victim if number == 0 else f"127.2.{number // 250 % 250}.{1 + number % 250}"
            try:
                sessions.UdpSession(v1_request(number, ip), timeout=DEADLINE_S)
            except grpc.RpcError as error:
                assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                refused += 1
    assert refused == attempts.scaled(300) - Quotas.jobs
    with aggregator.join(sock.getsockname()) as session:
        assert session.info.slots
    attempts.record("v1 sessions on others' addresses", attempts.scaled(300))
