"""Whose packets change a sum: results from sockets that are not the aggregator's, frames that are not the switch's, and
packets that claim a rank's UDP address in a job that shares memory. The attackers know tag and sequence numbers."""

import socket

import numpy as np
import pytest

from host_agent.agent import HostAgent
from switchml.net import frames, udp
from switchml.net.trains import HEADER_BYTES as FRAME_HEADER_BYTES
from switchml.protocol.packet import CODE_UNKNOWN, CODE_ZERO, CONTRIBUTION
from tests.support.forged import LIE, check_sums, forged_results
from tests.support.launch import LocalAggregator, join_all, leave_all, until
from tests.support.p4_served import Served
from tests.support.packets import V2Packet
from tests.support.started import lasting

STRANGER = "127.99.99.99"


aggregator = lasting(LocalAggregator, tunnel=True)
served = lasting(Served)


def from_stranger(packets: list[bytes], to: tuple[str, int], port: int = 0) -> None:
    """Send datagrams from another address of this machine, perhaps from a port that is the aggregator's on its own."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((STRANGER, port))
        for packet in packets:
            sock.sendto(packet, to)


@pytest.mark.parametrize("transport", ["udp", "zmq", "shm"])
def test_results_from_a_strangers_socket(aggregator, attempts, transport):
    """From another address and the aggregator's port, and from another port."""
    agents = join_all(aggregator.address, 2, job=f"stranger {transport}", transport=transport)
    victim = agents[0]._transport.data_address
    sent = 0
    for seed in range(attempts.scaled(20)):
        packets = forged_results(agents[0])
        port = aggregator.dataplane.address[1] if seed % 2 else 0
        check_sums(agents, lambda packets=packets, port=port: from_stranger(packets, victim, port), seed)
        sent += len(packets)
    assert agents[0].stats()["refused"] >= sent // 2  # what a full buffer lost was never seen
    leave_all(agents)
    attempts.record(f"results from a stranger's socket, {transport}", sent)


def framed(packets: list[bytes], ends: frames.Ends) -> list[bytes]:
    """Packets as frames from the switch's end to the worker's."""
    back = frames.Ends(ends.switch_mac, ends.switch_ip, ends.switch_port, ends.mac, ends.ip, ends.port)
    return [frames.headers(back, len(packet)) + packet for packet in packets]


def test_frames_from_a_strangers_socket(served, attempts):
    """They look like the switch's in every byte, but come from another socket than its port's."""
    agents = join_all(served.address, 2, job="framed", transport="frames")
    victim = agents[0]._transport
    sent = 0
    for seed in range(attempts.scaled(5)):
        packets = framed(forged_results(agents[0]), victim.ends)
        check_sums(agents, lambda packets=packets: from_stranger(packets, victim.data_address), seed)
        sent += len(packets)
    assert agents[0].stats()["refused"] >= sent // 2
    leave_all(agents)
    attempts.record("frames from a stranger's socket", sent)


@pytest.mark.parametrize("forged", ["switch_mac", "switch_ip", "switch_port"])
def test_frames_that_the_switch_passes_on(forged):
    """Another host on the switch can send a rank frames, but not from the switch's addresses."""
    ends = frames.Ends(0x02_5A_00_00_00_01, "127.0.1.1", 4000, 0x02_00_00_00_00_FE, "10.0.0.254", 48864)
    strange = ends._replace(**{forged: "10.0.0.9" if forged == "switch_ip" else getattr(ends, forged) + 1})
    port, switch = udp.endpoint("127.0.0.1", 5000), udp.endpoint("10.0.0.254", 48864)
    packet = bytes(1034)
    data = [np.frombuffer(frame, np.uint8) for frame in framed([packet], ends) + framed([packet], strange)]
    listed = udp.new_packets(3)
    for i, (frame, sender) in enumerate([(data[0], port), (data[1], port), (data[0], port + 1)]):
        listed.address[i], listed.length[i], listed.endpoint[i] = frame.ctypes.data, len(frame), sender
    assert frames.strip(listed, 3, frames.new_flow(ends), np.uint64(port)) == 3
    assert listed.endpoint[0] == switch and switch not in listed.endpoint[1:].tolist()
    assert listed.address[0] == data[0].ctypes.data + FRAME_HEADER_BYTES and set(listed.length) == {len(packet)}


def claims(agent: HostAgent, generator: np.random.Generator) -> list[bytes]:
    """From a rank's UDP address: single bytes, right and wrong tags, rounds of the past and the future."""
    worker = agent.core.worker
    slots, isn = len(worker.state.slots), int(worker.identity["isn"])
    ahead = int(worker.state.slots["round"].max()) + 3
    packets = [b"\0", b"\x81", bytes(1034)]
    for seq in (isn, isn + (ahead + 2) * slots, int(generator.integers(2**32))):
        for job_tag in (agent.job_tag, agent.job_tag ^ 1):
            packets.append(V2Packet(CONTRIBUTION, seq, job_tag, CODE_ZERO, 0, CODE_UNKNOWN, LIE).pack())
    return packets


def test_a_ranks_udp_address_in_a_job_that_large_packets(aggregator, attempts):
    """The address is a rank's own: the attacker's packets leave from its very socket."""
    agents = join_all(aggregator.address, 2, job="shared", transport="shm")
    generator = np.random.default_rng(1)
    sent = 0
    for seed in range(attempts.scaled(200)):

        def attack() -> None:
            nonlocal sent
            for packet in claims(agents[0], generator):
                agents[0]._transport.socket.sendto(packet, aggregator.dataplane.address)
                sent += 1

        check_sums(agents, attack, seed)
        for _ in agents:  # and between two calls
            attack()
    before = aggregator.dataplane.refused()["refused_address"]
    assert sum(rank["accepted"] for rank in aggregator.dataplane.counters(agents[0]._session.info.job_id).ranks)
    agents[0]._transport.socket.sendto(b"\0", aggregator.dataplane.address)
    until(lambda: aggregator.dataplane.refused()["refused_address"] > before)
    leave_all(agents)
    attempts.record("packets from the UDP address of a rank that shares memory", sent)
