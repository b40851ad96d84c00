"""A SwitchML v1 client as p4app-switchML's DPDK client behaves, written for tests from plain sockets, the v1 gRPC
services and packets of `packets.py`; nothing of our agent is used.

What it does follows client_lib/src of p4lang/p4app-switchML:

- session (grpc_client.cc, dpdk_backend.cc): Broadcast of rank 0's session id; rank 0 calls UdpSession and then Barrier,
  the others Barrier and then UdpSession; one more Barrier; packets;
- slots (dpdk_worker_thread.cc): packet k of a tensor uses i = (k + shift) mod 2m, m being the window: slot i of set 0
  if i < m, else slot i - m of set 1. After a tensor `shift` grows by its number of packets, so that each slot's sets
  alternate through the whole session;
- floats (cpu_exponent_quantizer_ppp.cc, compiled with VCL as its Makefile does by default): a tensor begins with a
  window of packets that carry nothing but exponents; packet k has the exponent of block k and the values of block
  k - m, in float32 arithmetic: 16 values at a time are rounded half to even, what is left half away from zero;
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

from switchml.control import rpc
from switchml.control.v1 import v1_pb2
from tests.support.launch import DEADLINE_S
from tests.support.packets import V1Packet

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
            session_id=self.session_id, rank=self.rank, num_workers=WORKERS, mac=self.mac, ipv4=ip,
            packet_size=v1_pb2.MTU_256,
        )  # fmt: skip
        self.answer = self._session.UdpSession(request, timeout=DEADLINE_S)
        assert self.answer.session_id == self.session_id
        assert str(ipaddress.IPv4Address(self.answer.ipv4)) == self.to[0]

    def all_reduce(self, values: np.ndarray) -> np.ndarray:
        if values.dtype == np.float32:
            tensor = _Floats(values)
        else:
            tensor = _Integers(np.pad(values, (0, -len(values) % LANES)))
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
        self._blocks = [values[at : at + LANES] for at in range(0, len(values), LANES)]
        self.window = min(WINDOW, len(self._blocks))
        self.packets = self.window + len(self._blocks)
        self.result = np.zeros_like(values)
        self._scale: dict[int, np.float32] = {}

    def outgoing(self, number: int) -> tuple[int, np.ndarray]:
        e0, lanes = 0, np.full(LANES, -1, np.int32)  # lanes: whatever was in the buffer
        if number < len(self._blocks):
            bits = np.abs(self._blocks[number]).max().view(np.int32)
            e0 = ((int(bits) & 0x7F800000) >> 23) - 126
        block = number - self.window
        if block >= 0:
            scaled = self._blocks[block] * self._scale[block]
            even = len(scaled) // 16 * 16
            lanes[:even] = np.rint(scaled[:even])
            rest = scaled[even:].astype(np.float64)  # std::round
            lanes[even : len(scaled)] = np.copysign(np.floor(np.abs(rest) + 0.5), rest)
        return e0, lanes

    def incoming(self, number: int, result: V1Packet) -> None:
        block = number - self.window
        if block >= 0:
            out = self.result[block * LANES : (block + 1) * LANES]
            out[:] = result.values[: len(out)].astype(np.float32) / self._scale[block]
        if number < len(self._blocks):
            power = np.float32(WORKERS) * np.float32(2.0) ** np.float32(result.e0)
            self._scale[number] = np.float32(np.float64(INT32_MAX) / np.float64(power))
