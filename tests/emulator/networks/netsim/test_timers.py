"""What ranks send without need, and how soon they make good what is lost, packet by packet: behind token buckets,
which let a train of packets pass at once and then keep their rate; where the rate drops; where packets are lost or
overtake each other."""

import dataclasses

import pytest

from emulator.networks.netsim.config import JobConfig, LinkConfig, NetworkConfig
from emulator.networks.netsim.experiment import JobResult, run

KIB, MIB = 1 << 10, 1 << 20
TRAINS = pytest.mark.parametrize("train_packets", [1, 60], ids=["packets", "trains"])


def play(workers: int, rate_bps: float, size_bytes: int, train_packets: int, repeats: int = 4, **link) -> JobResult:
    """All-reduces with 3 ms between them, over links like those of `switchml bench network`."""
    options = {"delay_s": 0.0, "queue_bytes": 610 * KIB, "burst_bytes": 72 * KIB, "framing_bytes": 42}
    job = JobConfig(workers=workers, size_bytes=size_bytes, repeats=repeats, pause_s=0.003, train_packets=train_packets)
    return run(NetworkConfig(jobs=(job,), link=LinkConfig(rate_bps=rate_bps, **{**options, **link}))).jobs[0]


def needless(result: JobResult) -> float:
    """Share of packets sent again, where nothing is lost."""
    return result.retransmitted / (result.sent - result.retransmitted)


@pytest.mark.slow(keep=1)
@TRAINS
@pytest.mark.parametrize(
    ("workers", "mbit", "queue_bytes"),
    [(2, 10, 610), (4, 10, 610), (2, 20, 256), (8, 20, 610), (4, 50, 610), (2, 200, 610), (4, 200, 4096)],
)
def test_nothing_lost_is_hardly_anything_resent(workers, mbit, queue_bytes, train_packets):
    """A rank that meets the token bucket's first pause asks some thirty times, and then knows."""
    result = play(workers, mbit * 1e6, MIB, train_packets, queue_bytes=queue_bytes * KIB)
    assert needless(result) < 0.01
    assert result.median_s <= result.bound_s / 0.95


@pytest.mark.parametrize("mbit", [10, 20, 50])
def test_small_tensors_neither(mbit):
    """A step's gradients: less than three windows."""
    result = play(2, mbit * 1e6, 280 * KIB, 60, repeats=15)
    assert needless(result) < 0.01
    assert result.median_s <= result.bound_s / 0.95


@pytest.mark.slow
@TRAINS
@pytest.mark.parametrize("workers", [2, 3])
def test_after_a_drop_of_the_rate_what_was_on_the_way_is_waited_for(workers, train_packets):
    """2 MB pass unhindered, the rest at 20 Mbit/s."""
    path = {"burst_bytes": 2_000_000, "delay_s": 1e-4}
    deep = play(workers, 20e6, 4 * MIB, train_packets, repeats=2, queue_bytes=0, **path)
    assert needless(deep) < 0.01 and max(deep.seconds) < deep.bound_s
    shallow = play(workers, 20e6, 4 * MIB, train_packets, repeats=2, queue_bytes=256 * KIB, **path)
    assert needless(shallow) < 0.3  # most of a window found the queue full
    assert shallow.median_s < deep.median_s * 1.15


@pytest.mark.slow
@TRAINS
@pytest.mark.parametrize("workers", [2, 8])
def test_losses_cost_little_goodput(workers, train_packets):
    """One packet in a hundred, on each link, each way: with 8 ranks every sixth chunk meets one."""
    lossy = play(workers, 200e6, 2 * MIB, train_packets, repeats=3, queue_bytes=0, loss=0.01)
    assert lossy.median_s <= lossy.bound_s / 0.85


@TRAINS
def test_the_loss_of_a_tensors_end_is_made_good_in_milliseconds(train_packets):
    """Nothing comes after it that would show the loss; the RTO at its least is 1 ms."""
    small = play(4, 200e6, 50 * KIB, train_packets, repeats=30, queue_bytes=0, loss=0.01)
    assert max(small.seconds[1:]) < 0.03  # the first one begins with an RTO of 10 ms
    assert small.median_s < 0.006


def test_what_is_late_is_not_lost():
    """A tenth of the packets come up to 1 ms late: the margin follows."""
    result = play(4, 200e6, 2 * MIB, 1, repeats=2, late=0.1, late_s=0.001)
    assert needless(result) < 0.01


def test_a_late_rank_is_asked_for_ever_less():
    """One comes 300 ms after the others: those ask for eight rounds at first, in the end for one."""
    job = JobConfig(workers=3, size_bytes=MIB, late_ranks={1: 0.3})
    late = run(NetworkConfig(jobs=(job,), link=LinkConfig(rate_bps=1e9))).jobs[0]
    assert late.waits > 0 and late.retransmitted < 2 * 40
    on_time = run(NetworkConfig(jobs=(dataclasses.replace(job, late_ranks={}),), link=LinkConfig(rate_bps=1e9)))
    assert late.seconds[0] < 0.3 + 1.05 * on_time.jobs[0].seconds[0]
