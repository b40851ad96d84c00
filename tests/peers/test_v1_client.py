"""A SwitchML v1 client, written here as p4app-switchML's DPDK client behaves, against `switchml aggregate`.

Nothing of our agent is used: plain sockets, the v1 gRPC services, packets from switchml.protocol.packet. What the
client does follows client_lib/src of p4lang/p4app-switchML:

- session (grpc_client.cc, dpdk_backend.cc): Broadcast of rank 0's session id; rank 0 calls UdpSession and then Barrier,
  the others Barrier and then UdpSession; one more Barrier; packets;
- slots (dpdk_worker_thread.cc): packet k of a tensor uses i = (k + shift) mod 2m, m being the window: slot i of set 0
  if i < m, else slot i - m of set 1. After a tensor `shift` grows by its number of packets, so that each slot's sets
  alternate through the whole session;
- floats (cpu_exponent_quantizer_ppp.cc): a tensor begins with a window of packets that carry nothing but exponents;
  packet k has the exponent of block k and the values of block k - m, quantized with the exponent that all agreed on;
- packet numbers are written in the host's byte order, here as little-endian; a result is taken once, by its number and
  the job's.

Workers are told apart by their IPv4 address; all of them use the same UDP port.
"""

from __future__ import annotations

import ipaddress
import socket
import time

import grpc
import numpy as np
import pytest

from switchml.control import rpc
from switchml.control.v1 import v1_pb2
from switchml.protocol.packet import V1Packet
from tests.support.launch import DEADLINE_S, Aggregator, good, on_all

WORKERS = 3
LANES = 64
WINDOW = 32
TIMEOUT_S = 0.02
INT32_MAX = 2**31 - 1


class V1Client:
    """One worker with one worker thread. `connect` opens the session; `all_reduce` takes float32 or int32."""

    def __init__(self, rank: int, ip: str, sock: socket.socket, control: str, data: tuple[str, int], mac: int = 0):
        self.rank, self.ip, self.sock, self.to = rank, ip, sock, data
        self.mac = mac or 0x020000000000 + rank
        self.shift = self.jobs = 0
        self.retransmitted = self.refused = 0
        self._channel = grpc.insecure_channel(control)
        self._session = rpc.client(self._channel, v1_pb2.DESCRIPTOR.services_by_name["Session"])
        self._sync = rpc.client(self._channel, v1_pb2.DESCRIPTOR.services_by_name["Sync"])

    def connect(self) -> None:
        own = time.time_ns() if self.rank == 0 else 0
        request = v1_pb2.BroadcastRequest(value=own, rank=self.rank, num_workers=WORKERS, root=0)
        self.session_id = self._sync.Broadcast(request, timeout=DEADLINE_S).value
        steps = (self._open, self._barrier) if self.rank == 0 else (self._barrier, self._open)
        for step in (*steps, self._barrier):
            step()

    def close(self) -> None:
        self._channel.close()

    def _barrier(self) -> None:
        self._sync.Barrier(v1_pb2.BarrierRequest(num_workers=WORKERS), timeout=DEADLINE_S)

    def _open(self) -> None:
        ip = int(ipaddress.IPv4Address(self.ip))
        request = v1_pb2.UdpSessionRequest(
            session_id=self.session_id,
            rank=self.rank,
            num_workers=WORKERS,
            mac=self.mac,
            ipv4=ip,
            packet_size=v1_pb2.MTU_256,
        )
        self.answer = self._session.UdpSession(request, timeout=DEADLINE_S)
        assert self.answer.session_id == self.session_id
        assert str(ipaddress.IPv4Address(self.answer.ipv4)) == self.to[0]

    def all_reduce(self, values: np.ndarray) -> np.ndarray:
        blocks = -(-len(values) // LANES)
        padded = np.zeros(blocks * LANES, values.dtype)
        padded[: len(values)] = values
        tensor = _Floats(padded) if values.dtype == np.float32 else _Integers(padded)
        self._exchange(tensor)
        return tensor.result[: len(values)]

    def _exchange(self, tensor) -> None:
        """Send the packets of one tensor through the window and take in their results."""
        job, total = self.jobs & 0xFF, tensor.packets
        first = tensor.window
        outstanding: dict[int, tuple[bytes, float]] = {}  # packet number: its bytes, when to send them again
        done = np.zeros(total, bool)

        def send(number: int) -> None:
            position = (number + self.shift) % (2 * WINDOW)
            e0, lanes = tensor.outgoing(number)
            little_endian = int.from_bytes(number.to_bytes(4, "little"), "big")
            packet = V1Packet(job, little_endian, position % WINDOW, position // WINDOW, e0, 0, lanes).pack()
            self.sock.sendto(packet, self.to)
            outstanding[number] = packet, time.monotonic() + TIMEOUT_S

        for number in range(first):
            send(number)
        deadline = time.monotonic() + DEADLINE_S
        while outstanding:
            self.sock.settimeout(max(min(due for _, due in outstanding.values()) - time.monotonic(), 0.001))
            try:
                result = V1Packet.unpack(self.sock.recv(2048))
            except TimeoutError:
                now = time.monotonic()
                assert now < deadline, (
                    f"rank {self.rank}: packets {sorted(outstanding)} of job {job} stay without a result"
                )
                for number, (packet, due) in outstanding.items():
                    if due <= now:
                        self.retransmitted += 1
                        self.sock.sendto(packet, self.to)
                        outstanding[number] = packet, now + TIMEOUT_S
                continue
            number = int.from_bytes(result.tsi.to_bytes(4, "big"), "little")
            if result.job_number != job or number >= total or done[number]:
                self.refused += 1  # an answer to a retransmission whose result has come already
                continue
            done[number] = True
            position = (number + self.shift) % (2 * WINDOW)
            assert (result.slot, result.set) == (position % WINDOW, position // WINDOW)
            del outstanding[number]
            tensor.incoming(number, result)
            if number + first < total:
                send(number + first)
        self.shift = (self.shift + total) % (2 * WINDOW)
        self.jobs += 1


class _Integers:
    """int32: one packet a block, exponents unused."""

    def __init__(self, values: np.ndarray):
        self._blocks = values.reshape(-1, LANES)
        self.packets = len(self._blocks)
        self.window = min(WINDOW, self.packets)
        self.result = np.zeros_like(values)

    def outgoing(self, number: int) -> tuple[int, np.ndarray]:
        return 0, self._blocks[number]

    def incoming(self, number: int, result: V1Packet) -> None:
        self.result[number * LANES : (number + 1) * LANES] = result.values


class _Floats:
    """float32: exponents run one window ahead of the values, or a whole tensor if that is shorter."""

    def __init__(self, values: np.ndarray):
        self._blocks = values.reshape(-1, LANES)
        self.window = min(WINDOW, len(self._blocks))
        self.packets = self.window + len(self._blocks)
        self.result = np.zeros_like(values)
        self._scale: dict[int, np.float64] = {}

    def outgoing(self, number: int) -> tuple[int, np.ndarray]:
        e0 = 0
        if number < len(self._blocks):
            largest = np.abs(self._blocks[number]).max()
            e0 = int(np.frexp(largest)[1]) if largest else -126  # the smallest e with 2^e > largest
        block = number - self.window
        if block < 0:
            return e0, np.full(LANES, -1, np.int32)  # whatever was in the buffer
        return e0, np.rint(self._blocks[block] * self._scale[block]).astype(np.int32)

    def incoming(self, number: int, result: V1Packet) -> None:
        if number < len(self._blocks):
            self._scale[number] = INT32_MAX / (WORKERS * np.float64(2) ** result.e0)
        block = number - self.window
        if block >= 0:
            self.result[block * LANES : (block + 1) * LANES] = result.values / self._scale[block]


@pytest.fixture(params=["clean", "lossy"])
def aggregator(request):
    running = Aggregator("--v1", *(["--loss-rate=0.01", "--seed=11"] if request.param == "lossy" else []))
    running.lossy = request.param == "lossy"
    yield running
    running.kill()


@pytest.fixture
def clients(aggregator):
    """Three connected clients on 127.0.77.x, all with the same port."""
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(WORKERS)]
    connected = []
    try:
        for rank, sock in enumerate(sockets):
            sock.bind((f"127.0.77.{rank + 1}", sockets[0].getsockname()[1]))
            connected.append(V1Client(rank, f"127.0.77.{rank + 1}", sock, aggregator.address, aggregator.data_address))
        good(on_all(connected, lambda client: client.connect()))
        yield connected
    finally:
        for client in connected:
            client.close()
        for sock in sockets:
            sock.close()


def test_all_reduce(aggregator, clients):
    """Integers and floats in turn, of lengths that fill the window, don't, and leave it at an odd place."""
    rng = np.random.default_rng(1)
    for numel, dtype in (
        (20_000, "int32"),
        (30_001, "float32"),
        (1, "float32"),
        (65, "int32"),
        (64 * WINDOW, "float32"),
        (9_999, "int32"),
    ):
        if dtype == "int32":
            inputs = [rng.integers(-(2**31), 2**31, numel).astype("int32") for _ in clients]
        else:
            inputs = [
                (rng.standard_normal(numel) * 10.0 ** rng.integers(-20, 20, numel)).astype("float32") for _ in clients
            ]
            inputs[0][: min(numel, 64)] = inputs[1][: min(numel, 64)] = 0  # a block that only one worker has
        results = good(on_all(clients, lambda client, inputs=inputs: client.all_reduce(inputs[client.rank])))
        assert len({result.tobytes() for result in results}) == 1
        if dtype == "int32":
            with np.errstate(over="ignore"):
                np.testing.assert_array_equal(
                    results[0], inputs[0] + inputs[1] + inputs[2]
                )  # v1 wraps, and so does NumPy
        else:
            exact = sum(array.astype("float64") for array in inputs)
            padded = np.zeros(-(-numel // LANES) * LANES)
            padded[:numel] = np.abs(inputs).max(0)
            # Half a step of n * 2^e / 2^31 for each worker, e being the block's exponent; and the rounding to float32.
            largest = np.repeat(padded.reshape(-1, LANES).max(1), LANES)[:numel]
            bound = WORKERS * WORKERS * 2 * largest / 2**31 + np.abs(exact) * 2.0**-23
            assert (np.abs(results[0] - exact) <= bound).all()

    session = next(job for job in aggregator.status().jobs if job.protocol == 1)
    assert (session.world_size, session.payload_bytes, session.state) == (WORKERS, 256, "running")
    assert aggregator.status().refused["refused_address"] == 0
    retransmitted = sum(client.retransmitted for client in clients)
    assert sum(rank.counters["answered"] + rank.counters["duplicates"] for rank in session.ranks) <= retransmitted
    if aggregator.lossy:
        assert retransmitted > 10
        assert sum(rank.counters["answered"] for rank in session.ranks) > 0


def test_a_new_session_starts_with_clean_slots(aggregator, clients):
    """Rank 0's UdpSession wipes what the last session left, so a restarted client may begin its alternation anew."""
    for _ in range(2):
        for client in clients:
            client.shift = 0  # the job number goes on, so that a late answer to the last session is recognized
        results = good(on_all(clients, lambda client: client.all_reduce(np.full(64 * 7, client.rank, "int32"))))
        assert all((result == 3).all() for result in results)
        good(on_all(clients, lambda client: client.connect()))
    assert len([job for job in aggregator.status().jobs if job.protocol == 1 and job.state == "running"]) == 1
