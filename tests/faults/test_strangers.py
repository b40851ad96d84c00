"""Hostile packets and nonsense on the control port at once: no job here notices."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time

import grpc
import numpy as np

from switchml.control import client, rpc, v2_pb2
from switchml.protocol.packet import CONTRIBUTION, RESULT
from tests.support.launch import DEADLINE_S, contribution, good, join_all, leave_all, on_all, total
from tests.support.packets import V1Packet, V2Packet, WaitPacket


class Flood:
    """Random and mutated datagrams for the data port, from a stranger and from a member of another job.

    The mutations start from what really travels: contributions, results and wait packets of the job under attack, its
    tag and sequence numbers included, and v1 packets.
    """

    def __init__(self, target: tuple[str, int], info: client.JobInfo, seed: int):
        self._random = random.Random(seed)
        self._to = target
        values = np.arange(256, dtype=np.int32)
        seeds = []
        for seq in (info.isn, info.isn + 5, info.isn + info.slots, info.isn + 2 * info.slots, info.isn - 1):
            for job_tag in (info.job_tag, info.job_tag ^ 1):
                seeds += [
                    V2Packet(kind, seq % 2**32, job_tag, 3, 2, 1, values, r=r).pack()
                    for kind in (CONTRIBUTION, RESULT)
                    for r in (False, True)
                ]
                seeds.append(WaitPacket(seq % 2**32, job_tag, (0, 1)).pack())
        seeds += [
            V1Packet(1, 2, slot, slot & 1, 3, 4, values[:lanes]).pack() for slot in (0, 5, 8191) for lanes in (64, 256)
        ]
        self._seeds = seeds

    def datagram(self) -> bytes:
        choice = self._random.random()
        if choice < 0.1:
            return self._random.randbytes(
                self._random.choice((0, 1, 9, 10, 42, 266, 1034, 1035, self._random.randrange(2000)))
            )
        data = bytearray(self._random.choice(self._seeds))
        if choice < 0.7:
            for _ in range(self._random.randrange(4)):
                data[self._random.randrange(min(len(data), self._random.choice((10, len(data)))))] = (
                    self._random.randrange(256)
                )
        elif choice < 0.8:
            del data[self._random.randrange(len(data)) :]
        elif choice < 0.9:
            data += self._random.randbytes(self._random.randrange(1, 100))
        return bytes(data)

    def send(self, sock: socket.socket, count: int, pause: int = 64) -> None:
        """`count` datagrams, with a breath after each few so that the job's own packets find room in the socket."""
        for number in range(count):
            sock.sendto(self.datagram(), self._to)
            if number % pause == 0:
                time.sleep(0.0002)


def nonsense_frame(rng: random.Random) -> bytes:
    """The nine bytes that start an HTTP/2 frame (RFC 9113, section 4.1), and a payload that need not fit them."""
    header = struct.pack(">HBBBI", 0, rng.randrange(50), rng.randrange(12), rng.randrange(256), rng.randrange(2**31))
    return header + rng.randbytes(rng.randrange(60))


def garbage_connections(target: tuple[str, int], stop: threading.Event, seed: int) -> int:
    """Random bytes, broken HTTP/2, TLS hellos and connections that say nothing, until `stop`; returns how many."""
    rng = random.Random(seed)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + struct.pack(">HBBBI", 0, 0, 4, 0, 0)
    opened, count = [], 0
    while not stop.is_set():
        with contextlib.suppress(OSError):
            sock = socket.create_connection(target, timeout=5)
            count += 1
            sock.settimeout(5)
            kind = rng.randrange(5)
            if kind == 0:
                sock.sendall(rng.randbytes(rng.randrange(1, 3000)))
            elif kind == 1:
                frames = b"".join(nonsense_frame(rng) for _ in range(20))
                sock.sendall(preface + frames)
            elif kind == 2:
                sock.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(500))
            elif kind == 3:
                sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            opened.append(sock)
            if kind != 4 or len(opened) > 50:  # the silent ones stay half open for a while
                opened.pop(rng.randrange(len(opened))).close()
        time.sleep(0.002)
    for sock in opened:
        sock.close()
    return count


METHODS = (
    "switchml.v2.Jobs/Leave", "switchml.v2.Jobs/Status", "switchml_proto.Session/UdpSession",
    "switchml_proto.Session/RdmaSession", "switchml_proto.Sync/Barrier", "switchml_proto.Sync/Broadcast",
    "no.such.Service/Method",
)  # fmt: skip


def nonsense_calls(address: str, stop: threading.Event, seed: int) -> int:
    """Random bytes and random field values to every method of the control port; returns how many calls."""
    rng = random.Random(seed)
    count = 0
    with grpc.insecure_channel(address) as channel:
        raw = [channel.unary_unary(f"/{method}", lambda data: data, lambda data: data) for method in METHODS]
        jobs = rpc.client(channel, client.JOBS)
        while not stop.is_set():
            count += 1
            with contextlib.suppress(grpc.RpcError):
                rng.choice(raw)(rng.randbytes(rng.randrange(60)), timeout=0.5)
            request = v2_pb2.JoinRequest(
                protocol=rng.choice((2, 2, 2, 3)),
                job=rng.choice(("attacked", "attacked", "", "x" * 300, "\n")),
                rank=rng.choice((0, 1, 2, 2**31)),
                world_size=rng.choice((3, 2, 0, 256, 2**31)),
                secret=rng.choice(("", "guess")),
                data_address=v2_pb2.Address(
                    ip=rng.choice(("127.0.0.1", "nonsense", "0.0.0.0")), port=rng.choice((0, 1, 2**17))
                ),
                slots=rng.choice((0, 3, 2**31)),
                payload_bytes=rng.choice((1024, 7)),
            )
            with contextlib.suppress(grpc.RpcError):
                next(jobs.Join(request, timeout=0.5))
            time.sleep(0.002)
    return count


def test_200_000_datagrams_and_a_besieged_control_port_change_nothing(start):
    """The job's sums stay exact, nothing dies, and what was refused is counted."""
    aggregator = start()
    agents = join_all(aggregator.address, 3, job="attacked", secret="ours")
    info = agents[0]._session.info
    stop, attackers_done = threading.Event(), threading.Event()
    rounds = 0

    def work(agent):
        nonlocal rounds
        seed = 0
        while True:
            dtype = ("float32", "int64", "float64")[seed % 3]
            result = agent.allreduce(contribution(seed, agent.rank, 3000, dtype), timeout_s=DEADLINE_S)
            np.testing.assert_array_equal(result, total(seed, 3, 3000, dtype))
            seed += 1
            if agent.allreduce(np.array([attackers_done.is_set()], "int32"), timeout_s=DEADLINE_S)[0]:
                rounds = seed
                return

    sending = [0, 0]
    with contextlib.ExitStack() as cleanup:
        stranger, member = (cleanup.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(2))
        stranger.bind(("127.0.0.1", 0))
        member.bind(("127.0.250.1", 0))
        insider = cleanup.enter_context(
            client.join(aggregator.address, job="other", rank=0, world_size=1, data_address=member.getsockname())
        )

        def attack(which: int):
            host, port = aggregator.address.split(":")
            if which == 0:
                Flood(aggregator.data_address, info, 1).send(stranger, 150_000)
            elif which == 1:
                Flood(aggregator.data_address, info, 2).send(member, 50_000)
            elif which == 2:
                sending[0] = garbage_connections((host, int(port)), stop, 3)
            else:
                sending[1] = nonsense_calls(aggregator.address, stop, 4)

        attackers = threading.Thread(target=lambda: outcomes.extend(on_all(range(2), attack, 90)))
        others = threading.Thread(target=lambda: outcomes.extend(on_all((2, 3), attack, 100)))
        outcomes: list = []
        workers = threading.Thread(target=lambda: outcomes.extend(on_all(agents, work, 100)))
        for thread in (workers, attackers, others):
            thread.start()
        attackers.join()
        stop.set()
        others.join()
        attackers_done.set()
        workers.join()
        good(outcomes)
        assert rounds > 3 and sending[0] > 20 and sending[1] > 5

        status = aggregator.status("ours")
        # What a full socket buffer lost was never seen; most of it got through.
        assert 75_000 < status.refused["refused_address"] <= 150_000
        (other,) = (job for job in status.jobs if job.job_id == insider.info.job_id)
        refused = {name: other.ranks[0].counters[name] for name in ("refused_format", "refused_tag")}
        assert min(refused.values()) > 5000 and sum(refused.values()) <= 50_000
        (attacked,) = (job for job in status.jobs if job.name == "attacked")
        assert (
            attacked.state == "running"
            and [rank.counters["refused_tag"] + rank.counters["refused_format"] for rank in attacked.ranks] == [0] * 3
        )
        assert aggregator.process.poll() is None
    leave_all(agents)
    again = join_all(aggregator.address, 2, job="afterwards")
    good(on_all(again, lambda agent: agent.allreduce(np.ones(1000, "float32"))))
    leave_all(again)
    assert aggregator.stop() == 0
