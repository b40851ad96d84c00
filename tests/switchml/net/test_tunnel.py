"""The ZeroMQ tunnel: trains of packets both ways, and clients that come and go.

The aggregator of most tests is a plain UDP socket that the test reads and writes itself, and so is the agent.
"""

from __future__ import annotations

import gc
import logging
import os
import socket
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from switchml.errors import ConfigError, JoinError
from switchml.net import libc, sockets, tunnel, udp
from switchml.net.tunnel import messages
from tests.support.examples import examples
from tests.support.launch import until
from tests.support.sleepers import threads_named, until_asleep

DEADLINE_S = 100.0


class Plain:
    """A UDP socket on loopback that takes and sends packets one by one."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.settimeout(DEADLINE_S)
        sockets.grow_buffers(self.socket, 4 << 20)
        self.address = self.socket.getsockname()
        self.io = udp.new_udp_io(self.socket)
        self.socket.setsockopt(libc.SOL_UDP, libc.UDP_GRO, 0)

    def send(self, datagrams: list[bytes], to: tuple[str, int]) -> None:
        """All in as few system calls as it takes."""
        arrays = [np.frombuffer(data or b"-", np.uint8) for data in datagrams]
        packets = udp.new_packets(max(len(arrays), 1))
        for i, (array, data) in enumerate(zip(arrays, datagrams, strict=True)):
            packets.address[i], packets.length[i] = array.ctypes.data, len(data)
            packets.endpoint[i] = udp.endpoint(*to)
        assert udp.send_batch(self.io, packets, len(arrays)) == 0

    def take(self, count: int) -> list[tuple[tuple[str, int], bytes]]:
        return [self.socket.recvfrom(65536)[::-1] for _ in range(count)]

    def close(self) -> None:
        self.socket.close()


class Pair:
    """A server with its aggregator, and clients with their agents."""

    def __init__(self, **options):
        self.aggregator = Plain()
        self.server = tunnel.TunnelServer(self.aggregator.address, **options)
        self.agents: list[Plain] = []
        self.clients: list[tunnel.TunnelClient] = []

    def connect(self, kind: str = "tcp", **options) -> tuple[tunnel.TunnelClient, Plain]:
        url = next(url for url in self.server.addresses if url.startswith(kind))
        agent = Plain()
        self.agents.append(agent)
        client = tunnel.TunnelClient(url, agent.address, **{"timeout_s": DEADLINE_S} | options)
        self.clients.append(client)
        return client, agent

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.server.close()
        for plain in (self.aggregator, *self.agents):
            plain.close()


@pytest.fixture
def pair():
    new_pair = Pair(grace_s=0.4)
    yield new_pair
    new_pair.close()


@pytest.fixture(scope="module")
def steady():
    """A pair that many tests share, with one client by tcp and one by ipc."""
    new_pair = Pair()
    yield new_pair, {kind: new_pair.connect(kind) for kind in ("tcp", "ipc")}
    new_pair.close()


def numbered(count: int, size: int) -> list[bytes]:
    return [(b"%08d" % i * (size // 8 + 1))[:size] for i in range(count)]


# Packets


@pytest.mark.parametrize("kind", ["tcp", "ipc"])
@pytest.mark.parametrize(("count", "size"), [(1, 10), (60, 1034), (61, 266), (150, 1034), (3, 9000), (1, 65_507)])
def test_trains_both_ways(steady, kind, count, size):
    new_pair, ends = steady
    client, agent = ends[kind]
    datagrams = numbered(count, size)
    agent.send(datagrams, client.address)
    assert new_pair.aggregator.take(count) == [(client.data_address, data) for data in datagrams]
    new_pair.aggregator.send(datagrams, client.data_address)
    assert agent.take(count) == [(client.address, data) for data in datagrams]


@given(st.lists(st.sampled_from([0, 1, 42, 266, 266, 1034, 1034, 1034, 1400]), min_size=1, max_size=120))
@examples(30)
def test_mixed_lengths_arrive_in_order(steady, sizes):
    new_pair, ends = steady
    client, agent = ends["tcp"]
    datagrams = [bytes([i]) * size for i, size in enumerate(sizes)]
    agent.send(datagrams, client.address)
    assert [data for _, data in new_pair.aggregator.take(len(sizes))] == datagrams
    new_pair.aggregator.send(datagrams, client.data_address)
    assert [data for _, data in agent.take(len(sizes))] == datagrams


def test_a_batch_is_one_message_with_a_run_for_each_length():
    """The bytes of docs/protocol.md section 7."""
    sender, receiver = Plain(), Plain()
    try:
        receiver.socket.setblocking(False)
        sender.send([b"abc", b"def", b"", b"gh"], receiver.address)
        packets, message = udp.new_packets(udp.RECEIVE_PACKETS), np.zeros(messages.MESSAGE_BYTES, np.uint8)
        size = messages.gather(receiver.io, packets, message)
        runs = bytes.fromhex("0003 0002  0000 0001  0002 0001")
        assert message[:size].tobytes() == bytes.fromhex("04 01 0003") + runs + b"abcdefgh"
        assert messages.gather(receiver.io, packets, message) == 0
    finally:
        sender.close()
        receiver.close()


@pytest.mark.parametrize(
    "message",
    [
        "",
        "0401",
        "0401 0001",
        "0401 0001 0002 0001 aa",  # a byte too few
        "0401 0001 0002 0001 aabbcc",  # one too many
        "0401 0001 0000 ffff",  # more packets than a batch has
        "0402 0001 0001 0001 aa",
        "0501 0001 0001 0001 aa",
    ],
)
def test_what_is_no_message_sends_nothing(message):
    plain = Plain()
    try:
        data = np.frombuffer(bytes.fromhex(message) or b"-", np.uint8)
        packets, to = udp.new_packets(udp.RECEIVE_PACKETS), udp.endpoint(*plain.address)
        assert messages.scatter(plain.io, packets, data.ctypes.data, len(bytes.fromhex(message)), to) == -1
    finally:
        plain.close()


def test_strangers_on_loopback_are_not_relayed(pair):
    client, agent = pair.connect()
    stranger = Plain()
    try:
        stranger.send([b"forged"], client.address)
        stranger.send([b"forged"], client.data_address)
        agent.send([b"real"], client.address)
        assert pair.aggregator.take(1) == [(client.data_address, b"real")]
        pair.aggregator.send([b"result"], client.data_address)
        assert agent.take(1) == [(client.address, b"result")]
    finally:
        stranger.close()


# Clients that come and go


def test_many_clients_are_told_apart(pair):
    ends = [pair.connect("ipc" if i % 2 else "tcp") for i in range(20)]
    assert len({client.data_address for client, _ in ends}) == 20 == pair.server.clients
    for i, (client, agent) in enumerate(ends):
        agent.send([b"from %d" % i] * 3, client.address)
    arrived = pair.aggregator.take(60)
    sent = [(client.data_address, b"from %d" % i) for i, (client, _) in enumerate(ends)]
    assert sorted(arrived) == sorted(sent * 3)
    for i, (client, _) in enumerate(ends):
        pair.aggregator.send([b"to %d" % i], client.data_address)
    for i, (client, agent) in enumerate(ends):
        assert agent.take(1) == [(client.address, b"to %d" % i)]


def test_goodbye_frees_the_socket_at_once(pair):
    client, _ = pair.connect()
    other, agent = pair.connect()
    client.close()
    client.close()
    until(lambda: pair.server.clients == 1)
    agent.send([b"still here"], other.address)
    assert pair.aggregator.take(1) == [(other.data_address, b"still here")]


def test_a_client_whose_connection_is_gone_is_forgotten(pair):
    """What a killed process leaves: the connection closes, nobody says goodbye."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(pair.server.addresses[0])
        dealer.send(bytes((messages.HELLO, messages.VERSION)))
        assert dealer.recv()[0] == messages.WELCOME and pair.server.clients == 1
    until(lambda: pair.server.clients == 0, DEADLINE_S)


def test_a_connection_that_comes_back_in_time_goes_on(pair):
    """The name of the client decides, not the connection: the aggregator sees the same address."""
    addresses = []
    for _ in range(2):
        with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
            dealer.linger = 0
            dealer.setsockopt(zmq.ROUTING_ID, b"the same one")
            dealer.connect(pair.server.addresses[0])
            dealer.send(bytes((messages.HELLO, messages.VERSION)))
            while (answer := dealer.recv()) == messages.plain(messages.PROBE):
                pass  # is the connection still there? It may come before the second welcome
            addresses.append(answer)
            assert pair.server.clients == 1
    assert addresses[0] == addresses[1] and addresses[0][0] == messages.WELCOME


def test_a_server_that_was_started_again_is_said(caplog):
    first = Pair()
    client, agent = first.connect()
    port, lost = first.server.address[1], []
    client.on_lost(lost.append)
    first.server.close()
    second = tunnel.TunnelServer(first.aggregator.address, port=port)
    try:
        with caplog.at_level(logging.WARNING):
            until(lambda: agent.send([b"hello?"], client.address) or lost, DEADLINE_S)
        assert "does not know this rank any more" in lost[0] and lost[0] in caplog.text
        client.on_lost(lost.append)  # too late for the first call: called at once
        assert len(lost) == 2 and lost[0] == lost[1]
    finally:
        second.close()
        first.close()


def test_who_hears_that_the_server_is_another_may_close_the_client(monkeypatch):
    """And what had come for the client by then is not read from a socket that somebody else has opened since."""
    going_on, closed = threading.Event(), threading.Event()
    opened: list[Plain] = []
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.linger = 0
        url = f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}"
        monkeypatch.setattr(tunnel.relay.Relay, "deliver", lambda relay, frame: going_on.wait(DEADLINE_S))
        agent, names = Plain(), []

        def welcome() -> None:
            names.append(router.recv_multipart()[0])
            own = socket.inet_aton("127.0.0.1")
            router.send_multipart([names[0], messages.WELCOME_BODY.pack(messages.WELCOME, messages.VERSION, 9, own, 9)])

        server = threading.Thread(target=welcome)
        server.start()
        client = tunnel.TunnelClient(url, agent.address, timeout_s=DEADLINE_S)
        server.join()
        number = client._relay.socket.fileno()

        def close(reason: str) -> None:
            client.close()
            while not opened or opened[-1].socket.fileno() < number:
                opened.append(Plain())
            for each in opened:
                agent.send([b"yours"], each.address)
            closed.set()

        client.on_lost(close)
        for _ in range(messages.TURN):  # the first holds the client up; after them it looks at its UDP socket, too
            router.send_multipart([names[0], messages.plain(messages.PACKETS)])
        router.send_multipart([names[0], messages.plain(messages.STRANGER)])
        agent.send([b"hello?"], client.address)
        going_on.set()
        assert closed.wait(DEADLINE_S)
        client._thread.join(DEADLINE_S)
        assert any(each.socket.fileno() == number for each in opened)
        for each in opened:
            assert each.take(1) == [(agent.address, b"yours")]
            each.close()
        agent.close()


def test_another_version_is_refused(pair):
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(pair.server.addresses[0])
        dealer.send(bytes((messages.HELLO, 9)))
        answer = dealer.recv()
        assert answer[0] == messages.REFUSED and b"it speaks version 1" in answer
        dealer.send(b"")
        dealer.send(b"\4")
        dealer.send_multipart([b"\4\1", b"\0\0"])
        dealer.send(bytes.fromhex("0401 0000"))
        assert dealer.recv() == bytes((messages.STRANGER, messages.VERSION))
    assert pair.server.clients == 0


def test_no_server_is_an_error():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        url = "tcp://{}:{}".format(*listener.getsockname())
        with pytest.raises(JoinError, match=f"tunnel {url} did not answer within 0.5 s"):
            tunnel.TunnelClient(url, ("127.0.0.1", 9), timeout_s=0.5)


def test_a_taken_port_is_an_error(pair):
    port = pair.server.address[1]
    with pytest.raises(ConfigError, match=f"tunnel port 127.0.0.1:{port}: .*choose another with --tunnel-port"):
        tunnel.TunnelServer(("127.0.0.1", 9), port=port)


def test_a_client_that_takes_nothing_costs_bounded_memory(pair):
    """Beyond the queues what the aggregator sends is dropped, and the others get theirs."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as stuck:
        stuck.linger = 0
        stuck.setsockopt(zmq.RCVHWM, 1)
        stuck.setsockopt(zmq.RCVBUF, 1 << 16)
        stuck.connect(pair.server.addresses[0])
        stuck.send(bytes((messages.HELLO, messages.VERSION)))
        _, _, port, ip, _ = messages.WELCOME_BODY.unpack(stuck.recv())
        to = socket.inet_ntoa(ip), port
        client, agent = pair.connect()
        train = numbered(60, 1034)
        deadline = time.monotonic() + 2 * DEADLINE_S
        while not pair.server.dropped:
            assert time.monotonic() < deadline
            pair.aggregator.send(train, to)
            pair.aggregator.send([b"you too"], client.data_address)
            assert agent.take(1) == [(client.address, b"you too")]


def test_idle_tunnels_sleep(pair):
    for _ in range(5):
        pair.connect()
    threads = threads_named("switchml-tunnel")
    assert len(threads) >= 6
    until_asleep(threads)


@pytest.mark.slow
def test_nothing_is_left_behind(pair):
    def resources() -> tuple[int, int, int]:
        gc.collect()
        threads = len(os.listdir("/proc/self/task"))
        return len(os.listdir("/proc/self/fd")), threads, threading.active_count()

    new_pair = Pair()  # what libraries open at first use
    new_pair.connect()
    new_pair.close()
    before = resources()
    for _ in range(3):
        new_pair = Pair()
        for kind in ("tcp", "ipc"):
            client, agent = new_pair.connect(kind)
            agent.send([b"x"], client.address)
        new_pair.aggregator.take(2)
        path = Path(new_pair.server.addresses[1].removeprefix("ipc://"))
        assert path.is_socket() and path.parent.stat().st_mode & 0o077 == 0
        new_pair.close()
        assert not path.parent.exists()
    until(lambda: resources() == before, DEADLINE_S)


@pytest.fixture
def short_path(monkeypatch):
    """For temporary files. The path of a Unix socket has at most 107 characters, and pytest's own folders have many."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def test_what_a_killed_server_left_is_removed_by_the_next(short_path):
    living = tunnel.TunnelServer(("127.0.0.1", 9))
    (own,) = short_path.iterdir()
    fresh, stale = short_path / "switchml-tunnel-abcdefgh.tmp", short_path / "switchml-tunnel-ijklmnop.tmp"
    for folder in (fresh, stale):
        folder.mkdir()
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(stale / "tunnel"))
    for path in (stale, own):
        os.utime(path, (0, 0))
    tunnel.TunnelServer(("127.0.0.1", 9)).close()
    assert fresh.exists() and own.exists() and not stale.exists()
    living.close()
    assert not own.exists()


def test_which_address_is_chosen(tmp_path):
    here = tmp_path / "tunnel"
    here.touch()
    both = ("tcp://0.0.0.0:7", f"ipc://{here}")
    assert tunnel.choose_address(both, "node1") == both[1]
    here.unlink()
    assert tunnel.choose_address(both, "node1") == "tcp://node1:7"
    assert tunnel.choose_address(["tcp://10.0.0.1:7"], "node1") == "tcp://10.0.0.1:7"
    with pytest.raises(JoinError, match="has no ZeroMQ tunnel"):
        tunnel.choose_address((), "node1")
