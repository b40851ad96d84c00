"""Upper limit of all-reduce throughput on this machine: the cost of each step, measured alone, summed over all ranks
and divided by the cores.

For every element, each of n ranks scans its block for the exponent, quantizes it to a big-endian lane, sends it,
receives the sum and decodes it; the aggregator receives n lanes, adds them and sends n. The cost of a step on one core
is measured with the kernels that the agents use, on a tensor in memory and packets in cache, as in a real run.
Everything else is left out: slot rules, window and timers, wake-ups, packets that no process waits for.

The transport determines the cost of sending and receiving. udp: trains of packets over loopback, with segmentation and
receive offload where the kernel supports them. zmq: bytes through a stream socket, a lower bound for ZeroMQ. shm: zero,
as packets are read where they were written.
"""

import contextlib
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from switchml.net import libc, sockets, udp
from switchml.protocol import fixedpoint
from switchml.protocol.lanes import add_int8, add_int16, add_int32
from switchml.protocol.packet import CODE_BIAS, HEADER_BYTES
from switchml.protocol.sizes import LANE_BYTES, PAYLOAD_BYTES
from switchml.runtime.jit import compile_once, kernel
from switchml.runtime.memory import copy_bytes

PACKET_BYTES = HEADER_BYTES + PAYLOAD_BYTES
FORMATS = {"int32": fixedpoint.FLOAT32, "int16": fixedpoint.FLOAT32_INT16, "int8": fixedpoint.FLOAT32_INT8}

_SOURCE_BYTES = 32 << 20
"""Size of the source tensor; larger than a second-level cache."""
_PACKETS = 240
"""Packets per round: four trains of 60, which fit any socket's default buffer."""
_ROUNDS = 400
"""Rounds of about 50 µs each. The median is used, so rounds in which another process had the core don't count."""
_STREAM_BYTES = 64 << 10
_SCAN, _ENCODE, _ADD, _DECODE, _COPY = range(5)
_EXPONENT = 4
"""Exponent of the blocks' scale: standard normal values are below 16."""


@dataclass(frozen=True)
class Limit:
    """CPU nanoseconds per element of the tensor for each step, and the resulting limit for `workers` ranks on `cores`
    cores."""

    workers: int
    cores: int
    transport: str
    wire: str
    scan: float
    encode: float
    send: float
    receive: float
    add: float
    decode: float
    copy: float
    """For comparison only: copying four bytes of a tensor in memory."""

    @property
    def rank_ns(self) -> float:
        """CPU nanoseconds per element on one rank."""
        return self.scan + self.encode + self.send + self.receive + self.decode

    @property
    def aggregator_ns(self) -> float:
        """CPU nanoseconds on the aggregator for one element of every rank."""
        return self.workers * (self.receive + self.add + self.send)

    @property
    def together_ns(self) -> float:
        """CPU nanoseconds per element on all ranks and the aggregator together."""
        return self.workers * self.rank_ns + self.aggregator_ns

    @property
    def elements_per_s(self) -> float:
        """Elements per second with all cores always busy, and at most the rate of one rank on its own core."""
        return 1e9 * min(self.cores / self.together_ns, 1 / self.rank_ns)

    def terms(self) -> dict[str, float]:
        """Nanoseconds per element, by name."""
        names = ("scan", "encode", "send", "receive", "add", "decode", "copy")
        return {name: getattr(self, name) for name in names} | {"rank": self.rank_ns, "aggregator": self.aggregator_ns}

    def explain(self) -> list[str]:
        """The formula with its numbers, as lines of text."""
        terms = {name: f"{value:.3f}" for name, value in self.terms().items()}
        return [
            f"What this machine could do, ns of one core an element ({self.transport}, {self.wire}):",
            "  rank       = scan {scan} + quantize {encode} + send {send} + receive {receive} + decode {decode}"
            " = {rank}".format(**terms),
            f"  aggregator = {self.workers} x (receive {terms['receive']} + add {terms['add']} + send {terms['send']})"
            f" = {terms['aggregator']}; one thread alone: {1e3 / self.aggregator_ns:,.0f} M elements/s",
            f"  limit      = min({self.cores} cores / ({self.workers} x rank + aggregator), 1 / rank)"
            f"; a memory copy of a float32 costs {terms['copy']}",
        ]


def measure(*, workers: int, transport: str, wire: str, cores: int) -> Limit:
    """Measure the steps (about half a second) and add them up. `transport`: udp, shm or zmq."""
    scan, encode, add, decode, copy = (
        _arithmetic(step, wire, workers) for step in (_SCAN, _ENCODE, _ADD, _DECODE, _COPY)
    )
    carry: dict[str, Callable[[], tuple[float, float]]] = {"udp": _datagrams, "zmq": _stream, "shm": lambda: (0.0, 0.0)}
    send, receive = (per_byte * LANE_BYTES[wire] for per_byte in carry[transport]())
    return Limit(workers, cores, transport, wire, scan, encode, send, receive, add, decode, copy)


@kernel
def _timed_work(
    step: int,
    fmt: int,
    lane_bytes: int,
    source: np.ndarray,
    packets: np.ndarray,
    sums: np.ndarray,
    headroom: int,
    times: np.ndarray,
) -> int:
    """Fill `times` int64[rounds] with the nanoseconds that one step takes for _PACKETS blocks of float32 `source`; each
    round continues where the previous one ended. `packets`, `sums`: uint8[_PACKETS, 1024]."""
    lanes = PAYLOAD_BYTES // lane_bytes
    blocks = source.size // lanes
    used = fixedpoint.canonical(_EXPONENT - CODE_BIAS, fmt)
    clock = np.zeros(8, np.int64)
    done = 0
    for r in range(times.size):
        started = libc.now_ns(clock)
        for i in range(_PACKETS):
            block = r * _PACKETS + i
            at = source.ctypes.data + np.uint64(block % blocks * lanes * 4)
            packet, total = packets[i].ctypes.data, sums[i].ctypes.data
            if step == _SCAN:
                done += fixedpoint.need_of(fmt, at, lanes, False)
            elif step == _ENCODE:
                fixedpoint.encode(fmt, at, lanes, packet, lanes, used, headroom, False)
            elif step == _DECODE:
                done += fixedpoint.decode(fmt, packet, at, lanes, used, headroom, 1)
            elif step == _COPY:
                copy_bytes(at, source.ctypes.data + np.uint64((block + blocks // 2) % blocks * lanes * 4), lanes * 4)
            elif lane_bytes == 4:
                done += add_int32(total, packet, lanes)
            elif lane_bytes == 2:
                done += add_int16(total, packet, lanes)
            else:
                done += add_int8(total, packet, lanes)
        times[r] = libc.now_ns(clock) - started
    return done


def _arithmetic(step: int, wire: str, workers: int) -> float:
    """Nanoseconds per element of one step."""
    values = np.random.default_rng(1).standard_normal(_SOURCE_BYTES // 4, np.float32)
    packets, sums = np.zeros((2, _PACKETS, PAYLOAD_BYTES), np.uint8)
    fmt, lane_bytes = FORMATS[wire], LANE_BYTES[wire]
    headroom = fixedpoint.headroom(workers)[fixedpoint.WIRES[fmt]]
    times = np.zeros(_ROUNDS, np.int64)
    arguments = (step, fmt, lane_bytes, values, packets, sums, headroom, times)
    compile_once(_timed_work, *arguments)
    _timed_work(*arguments)
    return float(np.median(times)) / _PACKETS / (PAYLOAD_BYTES // lane_bytes)


@kernel
def _trains(sender: Any, receiver: Any, outgoing: Any, incoming: Any, times: np.ndarray) -> None:
    """Send and receive _PACKETS packets for each row of `times` float64[rounds, 2]: nanoseconds per packet, to send and
    to receive."""
    clock = np.zeros(8, np.int64)
    for r in range(times.shape[0]):
        started = libc.now_ns(clock)
        udp.send_batch(sender, outgoing, _PACKETS)
        sent = libc.now_ns(clock)
        received = 0
        while received < _PACKETS:
            count = udp.receive_batch(receiver, incoming)
            if count == 0:
                break
            received += count
        times[r, 0] = (sent - started) / _PACKETS
        times[r, 1] = (libc.now_ns(clock) - sent) / max(received, 1)


def _datagrams() -> tuple[float, float]:
    """Nanoseconds per payload byte to send and to receive over UDP loopback."""
    with contextlib.ExitStack() as stack:
        sender, receiver = (stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(2))
        for sock in (sender, receiver):
            sock.bind(("127.0.0.1", 0))
            sockets.grow_buffers(sock, 4 << 20)
        rows = np.zeros((_PACKETS, PACKET_BYTES), np.uint8)
        outgoing, incoming = udp.new_packets(_PACKETS), udp.new_packets(udp.RECEIVE_PACKETS)
        outgoing.address[:] = rows.ctypes.data + np.arange(_PACKETS, dtype=np.uint64) * PACKET_BYTES
        outgoing.length[:] = PACKET_BYTES
        outgoing.endpoint[:] = udp.endpoint(*receiver.getsockname())
        times = np.zeros((_ROUNDS, 2))
        arguments = (udp.new_udp_io(sender), udp.new_udp_io(receiver), outgoing, incoming, times)
        compile_once(_trains, *arguments)
        _trains(*arguments)
    send, receive = np.median(times, axis=0) / PAYLOAD_BYTES
    return float(send), float(receive)


def _stream() -> tuple[float, float]:
    """Nanoseconds per byte to send and to receive over a connected pair of stream sockets, whose buffers hold all that
    is sent before it is received."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        data, buffer = bytes(_STREAM_BYTES), bytearray(_STREAM_BYTES)
        for sock in (ours, theirs):
            sockets.grow_buffers(sock, 4 * _STREAM_BYTES)
        times = np.zeros((_ROUNDS, 2))
        for i in range(_ROUNDS):
            started = time.perf_counter_ns()
            ours.sendall(data)
            sent = time.perf_counter_ns()
            received = 0
            while received < _STREAM_BYTES:
                received += theirs.recv_into(buffer)
            times[i] = sent - started, time.perf_counter_ns() - sent
    send, receive = np.median(times, axis=0) / _STREAM_BYTES
    return float(send), float(receive)
