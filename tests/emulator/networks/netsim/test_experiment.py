"""Whole networks: the packet-level run meets the closed forms where they apply, and does what one expects elsewhere."""

import dataclasses

import pytest

from emulator.cluster import cluster as clusters
from emulator.cluster.cluster import Switch
from emulator.cluster.collectives import cost
from emulator.cluster.topology import place
from emulator.networks.netsim import bounds, ring
from emulator.networks.netsim.config import JobConfig, LinkConfig, NetworkConfig, RackConfig, SwitchConfig
from emulator.networks.netsim.experiment import run
from switchml.errors import SwitchMLError

MIB = 1 << 20


def one(job: JobConfig, **network):
    return run(NetworkConfig(jobs=(job,), **network)).jobs[0]


@pytest.mark.slow(keep=4)
@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize(
    ("rate_bps", "delay_s", "slots"),
    [(10e9, 1e-6, 512), (1e9, 50e-6, 512), (10e9, 100e-6, 64), (100e9, 10e-6, 128)],
    ids=["line rate", "slow", "window", "small window"],
)
def test_aggregation_meets_the_closed_form(workers, rate_bps, delay_s, slots):
    """Bound by the line or by the window: RTT + packets at the slower of both (facts of a sliding window)."""
    job = JobConfig(workers=workers, size_bytes=MIB, slots=slots, repeats=2)
    result = one(job, link=LinkConfig(rate_bps=rate_bps, delay_s=delay_s))
    assert result.bound_s == bounds.aggregation_s(job, LinkConfig(rate_bps=rate_bps, delay_s=delay_s), slots)
    # A worker begins with 128 in flight; the first tensor may feel that.
    assert result.seconds[1] == pytest.approx(result.bound_s, rel=0.01)
    assert result.retransmitted == result.repeated_rounds == 0


@pytest.mark.parametrize("collective", ["reduce_scatter", "all_gather", "broadcast", "fsdp"])
def test_collectives_meet_the_closed_forms(collective):
    """Of a link's busier direction, which an all-gather and a reduce-scatter at once share nothing but headers of; and
    the cost model of whole jobs says the same. Shares take turns of 16 chunks: who is not the first or the last has two
    of them more to wait for, whatever the size (docs/protocol.md, section 11)."""
    job = JobConfig(workers=4, size_bytes=MIB // 4, collective=collective)
    result = one(job, link=LinkConfig(rate_bps=1e9, delay_s=10e-6))
    turns_s = 0.0 if collective == "broadcast" else 2 * 16 * len(job.kinds) * 8 * 1024 / 1e9
    assert result.bound_s <= result.median_s < 1.01 * result.bound_s + turns_s
    assert result.retransmitted == 0
    dgx = clusters.load("a100-dgx")
    between = dataclasses.replace(dgx.between, ports_per_node=1, port_bps=1e9, efficiency=1.0)
    switch = Switch(slots=result.slots, link_s=10e-6, latency_s=0.0, host_latency_s=0.0)
    links = dataclasses.replace(dgx, accelerators_per_node=1, between=between, switch=switch)
    both = collective == "fsdp"
    what = "all_gather" if both else collective, job.size_bytes, place(4, 1, 1), "switchml"
    assert cost(links, *what, both_ways=both).seconds == pytest.approx(result.bound_s, rel=0.02)


@pytest.mark.parametrize(("wire", "times"), [("int16", 2), ("int8", 4)])
def test_narrow_lanes_take_their_share_of_the_time(wire, times):
    wide = one(JobConfig(workers=2, size_bytes=MIB, slots=512)).median_s
    assert one(JobConfig(workers=2, size_bytes=MIB, slots=512, wire=wire)).median_s == pytest.approx(
        wide / times, rel=0.02
    )


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("workers", [2, 3, 8])
def test_the_ring_meets_its_bound(workers):
    job = JobConfig(workers=workers, size_bytes=2 * MIB, backend="ring")
    link = LinkConfig(rate_bps=1e9, delay_s=1e-6)
    result = one(job, link=link)
    assert result.bound_s < result.median_s < 1.04 * result.bound_s
    assert result.retransmitted < 0.01 * result.sent  # probes while a long queue drains
    share = 1448 / (1448 + 24 + link.framing_bytes)
    # 2(n-1) steps of S/n bytes (Patarasuk and Yuan, JPDC 2009).
    closed_form_s = 2 * (workers - 1) * 8 * job.size_bytes / workers / (1e9 * share)
    assert result.bound_s == pytest.approx(closed_form_s, rel=0.01)


@pytest.mark.parametrize(("workers", "size_bytes"), [(2, 4 * MIB), (4, 1024), (3, 999_996), (8, 64 * MIB)])
def test_the_ring_sends_what_its_schedule_says(workers, size_bytes):
    count, segment_bytes = ring.segments(workers, size_bytes)
    assert count % workers == 0 and count >= 2 * workers and count * segment_bytes >= size_bytes
    sent = ring.sent_bytes(workers, size_bytes)
    assert sent >= 2 * (workers - 1) * (size_bytes // workers) - 2 * segment_bytes
    if count == 2 * workers and size_bytes == count * segment_bytes:
        assert sent == 2 * (workers - 1) * size_bytes // workers


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("burst", [1.0, 5.0])
def test_losses_are_made_good(burst):
    calm = one(JobConfig(workers=3, size_bytes=MIB))
    lossy = one(JobConfig(workers=3, size_bytes=MIB), link=LinkConfig(loss=0.01, burst_packets=burst))
    assert calm.median_s < lossy.median_s < 10 * calm.median_s
    assert lossy.retransmitted > 30


def test_a_lost_chunk_holds_up_its_own_slot_alone():
    """With so few slots that a loss outlasts them, a rank that waited for its lowest chunk would take 2.2 and 2.9 times
    as long."""
    times = {}
    for loss in (0.0, 0.001, 0.003):
        job = JobConfig(workers=4, size_bytes=MIB, slots=64)
        times[loss] = one(job, link=LinkConfig(rate_bps=10e9, delay_s=5e-6, loss=loss)).median_s
    assert times[0.001] < 1.2 * times[0.0] and times[0.003] < 1.5 * times[0.0]


def test_rings_recover_from_losses_too():
    lossy = one(JobConfig(workers=3, size_bytes=MIB, backend="ring"), link=LinkConfig(rate_bps=1e9, loss=0.005))
    assert lossy.retransmitted > 5


def test_a_late_rank_holds_all_up():
    late = one(JobConfig(workers=3, size_bytes=4096, late_ranks={1: 0.05}, repeats=2))
    assert all(0.05 < seconds < 0.052 for seconds in late.seconds)
    assert late.waits > 0


def test_one_slow_link_sets_the_pace():
    slow = one(JobConfig(workers=3, size_bytes=MIB, slots=512), slow_hosts={1: {"rate_bps": 2e9}})
    assert slow.median_s == pytest.approx(slow.bound_s, rel=0.02)
    assert slow.bound_s == pytest.approx(5 * one(JobConfig(workers=3, size_bytes=MIB, slots=512)).bound_s, rel=0.02)


def test_a_slow_pipeline_is_shared_by_all_ranks():
    result = one(JobConfig(workers=4, size_bytes=MIB), switch=SwitchConfig(packets_per_s=1e6))
    assert result.median_s == pytest.approx(4 * 1024 * 1e-6, rel=0.1)


def test_jobs_share_hosts_links_and_slots():
    job = JobConfig(workers=2, size_bytes=MIB, slots=64, hosts=(0, 1))
    alone = one(job)
    both = run(NetworkConfig(jobs=(job, job)))
    assert all(result.median_s > 1.8 * alone.median_s for result in both.jobs)
    config = NetworkConfig(jobs=(JobConfig(slots=64), JobConfig(slots=64)), switch=SwitchConfig(slots=96))
    assert config.slots_of_jobs() == [64, 32]


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_of_a_host_share_its_link(ranks):
    """Each rank's packets take the link's time: the closed form with so many packets a round. A rank's first window
    leaves before the next rank's, so the windows are small here."""
    job = JobConfig(workers=2 * ranks, size_bytes=MIB // 4, slots=16, repeats=2, hosts=(0,) * ranks + (1,) * ranks)
    result = run(NetworkConfig(jobs=(job,)))
    alone = one(dataclasses.replace(job, workers=2, hosts=()))
    shared = result.jobs[0]
    assert shared.bound_s == pytest.approx(ranks * alone.bound_s, rel=0.01)
    assert shared.bound_s <= shared.seconds[1] <= 1.1 * shared.bound_s
    assert result.links["host 0 up"].packets == ranks * alone.sent / 2


def test_ranks_of_a_host_share_its_queue_and_its_bucket():
    """What the bucket lets through at once is saved once for all ranks; what the queue drops is sent again."""
    link = LinkConfig(rate_bps=100e6, burst_bytes=32 << 10)
    job = JobConfig(workers=4, size_bytes=MIB // 8, slots=16, hosts=(0, 0, 1, 1), pause_s=0.1, repeats=2)
    shared = one(job, link=link)
    saved_s = 8 * link.burst_bytes / link.rate_bps
    assert shared.seconds[1] == pytest.approx(shared.bound_s - saved_s, rel=0.05)
    short = one(job, link=dataclasses.replace(link, burst_bytes=0, queue_bytes=24 << 10))
    assert short.retransmitted > 0 and short.seconds[1] > shared.bound_s


def test_an_oversubscribed_rack_is_the_bottleneck():
    job = JobConfig(workers=4, size_bytes=MIB, slots=256)
    wide = run(NetworkConfig(jobs=(job,), racks=RackConfig(hosts=4, rate_bps=40e9)))
    narrow = run(NetworkConfig(jobs=(job,), racks=RackConfig(hosts=4, rate_bps=10e9)))
    assert narrow.jobs[0].seconds[0] > 3 * wide.jobs[0].seconds[0]
    assert narrow.links["rack 0 up"].packets == narrow.jobs[0].sent
    assert narrow.utilisation("rack 0 up") > 0.9


def test_a_ring_inside_a_rack_does_not_leave_it():
    job = JobConfig(workers=4, size_bytes=65536, backend="ring")
    inside = run(NetworkConfig(jobs=(job,), racks=RackConfig(hosts=4)))
    assert inside.links["rack 0 up"].packets == 0
    across = run(NetworkConfig(jobs=(job,), racks=RackConfig(hosts=2)))
    assert across.links["rack 0 up"].packets > 0


def test_a_seed_repeats_a_run():
    config = NetworkConfig(
        jobs=(JobConfig(workers=3, size_bytes=MIB // 4),), link=LinkConfig(loss=0.02, late=0.02, late_s=1e-4)
    )
    first, again = run(config), run(config)
    assert first.jobs == again.jobs and first.links == again.links and first.steps == again.steps
    assert run(dataclasses.replace(config, seed=2)).links != first.links


def test_a_run_that_takes_too_long_is_given_up_with_the_reason():
    config = NetworkConfig(
        jobs=(JobConfig(workers=2, size_bytes=MIB, name="big"),), link=LinkConfig(rate_bps=1e6), limit_s=0.5
    )
    with pytest.raises(
        SwitchMLError, match=r"not done after 0\.5 s of virtual time: job big: all-reduce 1, ranks \[0, 1\]"
    ):
        run(config)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(("overlap", "union"), [("random", 1 - 0.9**4), ("full", 0.1), ("none", 0.4)])
def test_blocks_of_zeros_are_left_out(overlap, union):
    """The union of all ranks' blocks comes down (OmniReduce); sums are checked by the run itself."""
    job = JobConfig(workers=4, size_bytes=MIB, slots=512, block=256, density=0.1, overlap=overlap)
    result = one(job)
    dense_s = one(dataclasses.replace(job, block=0, density=1.0)).bound_s
    assert result.bound_s == pytest.approx(union * dense_s, rel=0.1)
    assert result.bound_s < result.median_s < 1.25 * result.bound_s  # first rounds carry no data
