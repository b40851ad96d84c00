"""Racks that aggregate: the rules of docs/protocol.md, section 9, packet by packet, and whole networks."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.networks.netsim.aggregator import PARTIAL, Aggregator, rack_address, slots_in_tree
from emulator.networks.netsim.config import (
    FRAMING_BYTES,
    JobConfig,
    LinkConfig,
    NetworkConfig,
    RackConfig,
    SwitchConfig,
)
from emulator.networks.netsim.experiment import run
from emulator.networks.netsim.packets import Packet
from switchml.protocol.packet import ADDRESSED_BYTES, CONTRIBUTION, FLAG_OVERFLOW, R_FLAG, RESULT, WAIT
from switchml.protocol.pool import Pool
from tests.support.examples import examples

MIB = 1 << 20
TAG, ISN, SLOTS = 7, 0, 2
POOL = partial(Pool, slots=SLOTS, payload_bytes=256, job_tag=TAG, isn=ISN)
RACKS = ((0, 1), (2, 3))


class Tree:
    """Two racks of two ranks; what each switch sends up and down, kept for the test to carry."""

    def __init__(self):
        self.up = [[], []]
        self.down, self.to_hosts = [], []
        self.racks = [Aggregator(self.to_hosts.append, self.up[rack].append) for rack in (0, 1)]
        self.core = Aggregator(self.down.append)
        below, above = slots_in_tree(RACKS, (0, 1), (10, 11, 12, 13), 1, POOL)
        for rack, job_slots in zip(self.racks, below, strict=True):
            rack.add(0, job_slots)
        self.core.add(0, above)

    def send(self, rank, value=1, seq=0, is_retransmission=False, need=0):
        data = np.zeros(266, np.uint8)
        data[0] = CONTRIBUTION << 4 | (R_FLAG if is_retransmission else 0) | 1
        data[2:6] = np.frombuffer(int(seq).to_bytes(4, "big"), np.uint8)
        data[6:8] = (0, TAG)
        data[8] = need
        data[10:] = np.full(64, value, ">i4").view(np.uint8)
        self.racks[rank // 2].receive(Packet(data, 0, rank))

    def lanes(self, packet):
        return packet.data[10:266].view(">i4")


def missing(wait):
    return np.flatnonzero(np.unpackbits(wait.data[10:], bitorder="little")).tolist()


def test_a_rack_sends_one_sum_up_and_the_result_to_all():
    tree = Tree()
    for rank in range(3):
        tree.send(rank, value=rank + 1, need=rank)
    assert not tree.up[1] and len(tree.up[0]) == 1
    partial = tree.up[0].pop()
    assert partial.length == 268 and partial.data[0] == CONTRIBUTION << 4 | PARTIAL | 1
    assert partial.data[8] == 1 and partial.data[-2:].tolist() == [0, 0] and (tree.lanes(partial) == 3).all()
    tree.core.receive(partial)
    tree.send(3, value=4, need=9)
    tree.core.receive(tree.up[1].pop())
    assert [packet.to for packet in tree.down] == [rack_address(0), rack_address(1)]
    for rack, packet in enumerate(tree.down):
        assert packet.data[0] >> 4 == RESULT and (tree.lanes(packet) == 10).all() and packet.data[8] == 9
        tree.racks[rack].receive_result(packet)
    assert [(packet.rank, packet.to) for packet in tree.to_hosts] == [(0, 10), (1, 11), (2, 12), (3, 13)]
    assert all((tree.lanes(packet) == 10).all() for packet in tree.to_hosts)


def test_who_asks_again_is_answered_by_the_nearest_that_knows():
    tree = Tree()
    tree.send(0)
    tree.send(0, is_retransmission=True)  # rank 1 is missing: its own rack says so
    wait = tree.to_hosts.pop()
    assert wait.data[0] >> 4 == WAIT and missing(wait) == [1]
    tree.send(1)
    first = tree.up[0].pop()  # and is lost
    tree.send(1)  # not a retransmission: nobody asks
    assert not tree.up[0]
    tree.send(1, is_retransmission=True)
    again = tree.up[0].pop()
    assert again.data[0] & R_FLAG and np.array_equal(again.data[1:], first.data[1:])
    tree.core.receive(again)
    tree.send(0, is_retransmission=True)
    tree.core.receive(tree.up[0].pop())  # the core lacks the other rack: all of its ranks
    wait = tree.down.pop()
    assert missing(wait) == [2, 3]
    tree.to_hosts.clear()
    tree.racks[0].receive_result(wait)
    assert [packet.rank for packet in tree.to_hosts] == [0, 1]
    for rank in (2, 3):
        tree.send(rank)
    tree.core.receive(tree.up[1].pop())
    tree.racks[0].receive_result(tree.down[0])
    tree.to_hosts.clear()
    tree.racks[0].receive_result(tree.down[0])  # twice: it has it
    assert not tree.to_hosts
    tree.send(1, is_retransmission=True)  # a lost result: the rack has it
    assert tree.to_hosts.pop().data[0] & R_FLAG and not tree.up[0]


def test_overflow_below_is_told_above():
    tree = Tree()
    for rank in range(4):
        tree.send(rank, value=2**31 - 1 if rank < 2 else 1)
    assert tree.up[0][0].data[-2] == FLAG_OVERFLOW and tree.up[1][0].data[-2] == 0
    for partials in tree.up:
        tree.core.receive(partials[0])
    assert tree.down[0].data[9] == FLAG_OVERFLOW


def test_ranks_send_no_partial_sums_and_switches_nothing_else():
    tree = Tree()
    tree.send(0)
    tree.send(1)
    partial = tree.up[0].pop()
    tree.racks[0].receive(Packet(partial.data, 0, 0))
    plain = partial.data[:-2].copy()
    plain[0] &= ~PARTIAL & 0xFF
    tree.core.receive(Packet(plain, 0, 0))
    assert not tree.down and not tree.to_hosts and not tree.up[0]


# Whole networks; every run checks its sums


def one(job, **network):
    return run(NetworkConfig(jobs=(job,), **network)).jobs[0]


@pytest.mark.slow
def test_a_tree_meets_the_closed_form_and_spares_the_uplinks():
    job = JobConfig(workers=8, size_bytes=MIB, slots=512, repeats=2)
    racks = RackConfig(hosts=4, rate_bps=10e9)
    tree = run(NetworkConfig(jobs=(job,), racks=RackConfig(hosts=4, rate_bps=10e9, aggregate=True)))
    flat = run(NetworkConfig(jobs=(job,), racks=racks))
    assert tree.jobs[0].seconds[1] == pytest.approx(tree.jobs[0].bound_s, rel=0.01)
    assert tree.links["rack 0 up"].packets == tree.jobs[0].sent / 8
    assert flat.jobs[0].seconds[1] > 3.5 * tree.jobs[0].seconds[1]


@examples(12)
@given(
    workers=st.integers(1, 9),
    hosts=st.integers(1, 4),
    wire=st.sampled_from(["int32", "int8"]),
    trains=st.sampled_from([1, 8]),
    seed=st.integers(0, 99),
)
def test_sums_are_exact_whatever_is_lost(workers, hosts, wire, trains, seed):
    link = LinkConfig(loss=0.03, duplicate=0.02, late=0.03, late_s=1e-4)
    job = JobConfig(workers=workers, size_bytes=40_000, slots=16, repeats=3, wire=wire, train_packets=trains)
    racks = RackConfig(hosts=hosts, loss=0.03, aggregate=True)
    result = one(job, link=link, racks=racks, seed=seed, switch=SwitchConfig(latency_s=1e-6))
    assert len(result.seconds) == 3 and min(result.seconds) > 0


@pytest.mark.parametrize("collective", ["reduce_scatter", "all_gather", "broadcast", "fsdp"])
def test_data_cross_a_link_only_where_ranks_need_them(collective):
    """Of three racks each sends up what others own, or what it owns for others; and the same downwards."""
    job = JobConfig(workers=6, size_bytes=6 << 14, slots=64, collective=collective)
    racks = RackConfig(hosts=2, rate_bps=10e9, aggregate=True)
    result = run(NetworkConfig(jobs=(job,), racks=racks))
    share, chunks = job.size_bytes // 3, job.size_bytes // 1024
    up, down = {
        "reduce_scatter": (2 * share, share),
        "all_gather": (share, 2 * share),
        "broadcast": (3 * share, 0),
        "fsdp": (3 * share, 3 * share),
    }[collective]
    without_data = ADDRESSED_BYTES + FRAMING_BYTES
    packets = len(job.kinds) * chunks * without_data
    assert result.links["rack 0 up"].bytes == up + packets
    assert result.links["rack 0 down"].bytes == down + packets


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("kind", ["reduce_scatter", "all_gather", "broadcast", "fsdp", "sparse"])
def test_other_collectives_and_streams_survive_what_is_lost(kind):
    link = LinkConfig(loss=0.03, duplicate=0.02, late=0.03, late_s=1e-4)
    racks = RackConfig(hosts=2, loss=0.03, aggregate=True)
    special = {"block": 64, "density": 0.3} if kind == "sparse" else {"collective": kind}
    job = JobConfig(workers=5, size_bytes=40_000, slots=16, repeats=2, payload_bytes=256, **special)
    result = one(job, link=link, racks=racks)
    assert len(result.seconds) == 2 and result.retransmitted > 10


def test_jobs_share_a_tree():
    hosts = ((0, 1, 4, 5), (2, 3, 6, 7))
    jobs = tuple(JobConfig(workers=4, size_bytes=MIB // 4, slots=64, hosts=own) for own in hosts)
    both = run(NetworkConfig(jobs=jobs, racks=RackConfig(hosts=4, aggregate=True), link=LinkConfig(loss=0.005)))
    assert all(result.median_s > 0 for result in both.jobs)
