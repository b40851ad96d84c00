"""What-ifs: an unchanged thing changes nothing, a changed one what arithmetic says, and changes compose."""

import dataclasses
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.cluster.algorithms import ALGORITHMS
from emulator.jobs.replay.engine import replay
from emulator.jobs.workload.checks import check
from emulator.jobs.workload.graph import Kind
from emulator.traces import repeated_rounds
from emulator.traces.join import join, join_each
from emulator.traces.readers.read import read
from emulator.traces.whatif import changes, network
from emulator.traces.whatif.codec_costs import CodecCost
from emulator.traces.whatif.edits import with_table
from emulator.traces.whatif.predict import predicted
from emulator.traces.whatif.serial import one_at_a_time
from emulator.traces.whatif.speeds import Speeds, speeds
from emulator.traces.whatif.transfers import all_reduces, arrivals_s, transfer_s
from switchml.errors import ConfigError
from switchml.protocol import sizes
from tests.support import ddp_traces as traces
from tests.support.ddp_jobs import takes_s
from tests.support.examples import examples

LINK_BPS = 2e9  # 1 ms for 250 kB


@pytest.fixture
def joined():
    """Two buckets of 2 and 6 MB, whose all-reduces tell latency and rate apart."""
    job = dataclasses.replace(traces.Job(), sizes=(1e6, 1e6, 3e6, 3e6), reduce=(10.0, 26.0))
    return join(traces.ddp(job, ranks=4))


NOTHING = {
    "bandwidth": lambda one: changes.bandwidth(one, factor=1),
    "latency": lambda one: changes.latency(one, factor=1),
    "all-reduce": lambda one: changes.allreduce(one, "ring"),
    "ranks": lambda one: changes.ranks(one, 4),
    "accelerator": lambda one: changes.accelerator(one, 1),
    "slow": lambda one: changes.slow(one, {2: 1.0}),
    "straggler": lambda one: changes.without_straggler(one, 2),
    "known link": lambda one: changes.bandwidth(changes.with_network(one, link_bps=LINK_BPS * 1.6), factor=1),
}


@pytest.mark.parametrize("name", NOTHING)
def test_nothing_changed(joined, name):
    assert takes_s(NOTHING[name](joined)) == pytest.approx(takes_s(joined), rel=1e-9)


def test_half_the_bandwidth(joined):
    """10 ms for 2 MB and 26 ms for 6 MB are 2 ms and 4 ms for each MB."""
    slower = changes.bandwidth(joined, factor=0.5)
    assert transfer_s(slower.costs) == pytest.approx([18e-3, 50e-3], rel=1e-3)


def test_a_known_link_leaves_the_hosts_part(joined):
    """Of 4 ms for a MB, links of 4 Gbit/s account for 3 ms (1.5 MB pass each, 95.6 % of a link are data)."""
    known = changes.with_network(joined, link_bps=4e9)
    slower = changes.bandwidth(known, bps=2e9)
    wire_s = 1.5 / sizes.TCP_SHARE / 500
    assert transfer_s(slower.costs) == pytest.approx([10e-3 + 2 * wire_s, 26e-3 + 6 * wire_s], rel=1e-6)
    with pytest.raises(ConfigError, match="was it traced on that network"):
        changes.with_network(joined, link_bps=1e9)


def test_algorithms(joined):
    """A ring of 4 passes 1.5 times the buffer, the switch once, a server 4 times, in 6, 2 and 2 steps."""
    ring = network.fit(joined)
    switched = changes.allreduce(joined, "switchml")
    per_mb_s = 4e-3 * (1 / 1.5) * sizes.TCP_SHARE / sizes.SWITCHML_SHARE
    guessed_mb = min(repeated_rounds.guessed_bytes(4) / 1e6, 2.0)  # of the first; the second waits in line
    assert transfer_s(switched.costs) == pytest.approx(
        [
            (2 + repeated_rounds.REPEAT_SHARE["int32"] * guessed_mb) * per_mb_s + 2 * ring.latency_s,
            6 * per_mb_s + 2 * ring.latency_s,
        ],
        rel=1e-3,
    )
    assert transfer_s(changes.allreduce(joined, "ps").costs)[0] == pytest.approx(
        2 * 4e-3 * 4 / 1.5 + 2 * ring.latency_s, rel=1e-3
    )
    back = changes.allreduce(switched, "ring")
    assert takes_s(back) == pytest.approx(takes_s(joined), rel=1e-9)


def test_hosts_spend_time_on_what_they_send(joined):
    """Ranks of a ring send each byte 1.5 times where there are four of them, to an aggregator once."""
    ring = changes.with_network(joined, link_bps=LINK_BPS * 1.6)
    switched = changes.allreduce(ring, "switchml")
    share = sizes.TCP_SHARE / sizes.SWITCHML_SHARE / 1.5
    assert ring.network.host_s_per_byte > 0
    assert switched.network.host_s_per_byte == pytest.approx(share * ring.network.host_s_per_byte)
    assert changes.allreduce(switched, "ring").network.host_s_per_byte == pytest.approx(ring.network.host_s_per_byte)


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "nvls"])
def test_more_ranks_cost_no_less(joined, algorithm):
    elapsed_s = [takes_s(changes.ranks(changes.allreduce(joined, algorithm), count)) for count in (4, 8, 64)]
    assert elapsed_s == sorted(elapsed_s)
    more = changes.ranks(joined, 64)
    assert more.graph.groups.size.tolist() == [64] and more.graph.ranks.weight.sum() == pytest.approx(64)
    assert any("64 ranks in place of 4" in line for line in more.assumptions)


def test_hierarchical_crosses_links_less():
    flat = network.Network("ring", 1e9, 1e-3, per_host=8)
    tiers = dataclasses.replace(flat, algorithm="hierarchical")
    (flat_s, flat_byte_s), (tiers_s, tiers_byte_s) = flat.line(64), tiers.line(64)
    assert flat_byte_s * 1e9 * sizes.TCP_SHARE == pytest.approx(2 * 63 / 64)
    assert tiers_byte_s * 1e9 * sizes.TCP_SHARE == pytest.approx(2 * 7 / 8)
    # Messages between hosts; those inside take no time.
    assert tiers_s == pytest.approx(flat_s) == pytest.approx(2 * 7 * 1e-3)


def test_one_bucket(joined):
    """All gradients in one: as one all-reduce of 8 MB that starts after the last of them."""
    one = changes.buckets(joined, [25 << 20])
    assert len(one.graph.transfers) == 1
    assert transfer_s(one.costs) == pytest.approx([2e-3 + 8 * 4e-3], rel=1e-3)
    played = replay(one.graph, one.costs)
    ready_s = max(played.end_s[op] for op, _, _ in one.gradients)
    assert played.transfer_start_s[0] == pytest.approx(ready_s, abs=1e-3)
    four = changes.buckets(joined, [1])
    assert len(four.graph.transfers) == 4
    assert takes_s(changes.buckets(four, [25 << 20])) == pytest.approx(takes_s(one), rel=1e-6)


def test_the_same_buckets_cost_the_same(joined):
    assert takes_s(changes.buckets(joined, [2e6, 6e6])) == pytest.approx(takes_s(joined), rel=5e-3)


def test_a_codec(joined):
    smaller = changes.codec(joined, CodecCost(wire_share=0.25, bytes_per_s=1e9))
    assert transfer_s(smaller.costs) == pytest.approx([2e-3 + 0.5 * 4e-3, 2e-3 + 1.5 * 4e-3], rel=1e-3)
    spent = smaller.graph.op_kind() == Kind.CODEC
    assert spent.sum() == 16  # each rank, each bucket, before and after
    assert smaller.costs.op_type_s[smaller.graph.ops.op_type[spent]].sum() == pytest.approx(4 * 8e-3)
    check(smaller.graph)


def test_a_slow_rank_holds_up_all(joined):
    slowed = changes.slow(joined, {2: 2.0})
    assert takes_s(slowed) > takes_s(joined) + 0.035  # its 42 ms until the last bucket twice
    assert takes_s(changes.without_straggler(slowed, 2)) == pytest.approx(takes_s(joined), rel=1e-9)
    healed = join(traces.ddp(ranks=4, slowness=[1.0, 1.0, 1.5, 1.0]))
    healthy = join(traces.ddp(ranks=4))
    assert takes_s(changes.without_straggler(healed, 2)) == pytest.approx(takes_s(healthy), rel=1e-3)


def test_an_accelerator_of_twice_the_speed(joined):
    faster = changes.accelerator(joined, 2.0)
    compute_s = 10e-3 + 4 * 8e-3  # up to the last bucket
    assert takes_s(joined) - takes_s(faster) > 0.4 * compute_s
    only_memory = changes.accelerator(joined, 1.0, memory=2.0)
    assert takes_s(faster) < takes_s(only_memory) < takes_s(joined)


def test_overlapping_all_reduces_are_served_in_turn():
    """Two at once, each taking twice as long, are two in turn; the last one ends when it did."""
    recorder_traces = _overlapping()
    joined = join(recorder_traces)
    turned = one_at_a_time(joined)
    assert takes_s(turned) == pytest.approx(takes_s(joined), rel=1e-3)
    reduces = all_reduces(turned)
    assert transfer_s(turned.costs)[reduces].sum() == pytest.approx(40e-3, rel=1e-2)
    halved = changes.bandwidth(joined, factor=0.5)
    assert takes_s(halved) - takes_s(joined) == pytest.approx(40e-3, rel=0.05)


def test_what_follows_all_reduces_on_their_streams_goes_on_doing_so():
    """A capture of all-reduces alone, on several threads of a rank: its iterations end on one of these."""
    capture = Path(__file__).parents[1] / "captures" / "gloo-4-ranks"
    joined = join(read(capture), iteration=4)
    halved = changes.bandwidth(changes.with_network(joined, link_bps=200e6), factor=0.5)
    assert takes_s(halved) > 1.2 * takes_s(joined)


@pytest.mark.parametrize("change", [changes.bandwidth, changes.latency])
def test_the_same_network_changes_nothing(change):
    """Though all-reduces of this capture overlap; and one that is hardly another hardly changes anything."""
    capture = Path(__file__).parents[1] / "captures" / "gloo-4-ranks"
    joined = join(read(capture), iteration=4)
    assert takes_s(change(changes.with_network(joined), factor=1.0)) == pytest.approx(takes_s(joined), rel=1e-9)
    assert takes_s(change(changes.with_network(joined), factor=1.001)) == pytest.approx(takes_s(joined), rel=2e-3)


def test_as_many_ranks_and_the_same_buckets_change_nothing():
    capture = Path(__file__).parents[1] / "captures" / "gloo-4-ranks"
    joined = join(read(capture), iteration=4)
    model = changes.with_network(joined)
    assert takes_s(changes.ranks(model, 4)) == pytest.approx(takes_s(joined), rel=1e-9)
    assert takes_s(changes.buckets(model, (2**20,))) == pytest.approx(takes_s(joined), rel=1e-9)
    assert takes_s(changes.ranks(model, 5)) > takes_s(joined)


def test_all_reduces_that_overlap_still_do_on_another_cluster():
    capture = Path(__file__).parents[1] / "captures" / "gloo-4-ranks"
    joined = changes.with_network(join(read(capture), iteration=4))
    changed = changes.cluster(joined, "a100-dgx")
    assert (changed.graph.ops.stream == joined.graph.ops.stream).all()
    assert len(np.unique(joined.graph.ops.stream[np.isin(joined.graph.ops.transfer, all_reduces(joined))])) > 4
    assert takes_s(changed) < takes_s(joined)


def test_one_bucket_loses_only_what_overlapped_with_computing():
    """All-reduces of this capture overlap with each other, and threads wait for the next one while others are under
    way: none of that makes one large bucket slower. It begins when the last gradient is there."""
    capture = Path(__file__).parents[1] / "captures" / "gloo-4-ranks"
    joined = changes.with_network(join(read(capture), iteration=4))
    arrived_s = np.sort(arrivals_s(joined)[all_reduces(joined)])
    lost_s = arrived_s[1] - arrived_s[0]  # a rank called for its second all-reduce as much later
    assert takes_s(joined) < takes_s(changes.buckets(joined, (25e6,))) < 1.02 * (takes_s(joined) + lost_s)


def test_what_waited_for_a_small_bucket_comes_after_the_gradients_of_a_large_one():
    """The end of an iteration waits for one all-reduce, and stands before what the next one waits for."""
    capture = Path(__file__).parents[1] / "captures" / "gloo-4-ranks"
    joined = join(read(capture), iteration=6)
    for caps in ((25e6,), (2**20, 25 * 2**20)):
        assert takes_s(changes.buckets(changes.with_network(joined), caps)) > 0.5 * takes_s(joined)


def _overlapping():
    """Buckets launched together on two transports, 20 ms of work each, done 40 ms later."""
    given_traces = []
    for rank in range(2):
        recorder = traces.Recorder(rank, 2)
        recorder.add("aten::mm", traces.What.COMPUTE, 0.0, 10e-3)
        launches = []
        for at in (10e-3, 10.1e-3):
            launches.append(recorder.add("c10d::allreduce_", traces.What.LAUNCH, at, at + 50e-6))
            recorder.add(traces.NODE, traces.What.SCOPE, at - 10e-6, at + 60e-6)
        recorder.all_reduce(launches[0], 10.02e-3, 50e-3, 1e6, lane=1)
        recorder.all_reduce(launches[1], 10.12e-3, 50.1e-3, 1e6, lane=2)
        recorder.add("aten::add_", traces.What.COMPUTE, 50.2e-3, 55e-3)
        recorder.steps = [(0.0, 55e-3)]
        given_traces.append(recorder.trace())
    return given_traces


CHANGES = st.sampled_from(
    [
        lambda one: changes.bandwidth(one, factor=0.3),
        lambda one: changes.bandwidth(one, bps=5e9),
        lambda one: changes.latency(one, seconds=1e-3),
        lambda one: changes.allreduce(one, "switchml"),
        lambda one: changes.allreduce(one, "tree"),
        lambda one: changes.buckets(one, [1 << 20, 4 << 20]),
        lambda one: changes.codec(one, CodecCost(0.5, 1e9)),
        lambda one: changes.ranks(one, 16),
        lambda one: changes.slow(one, {1: 1.7}),
        lambda one: changes.accelerator(one, 3.0, 2.0),
        lambda one: changes.without_straggler(one, 0),
    ]
)


@examples(30)
@given(st.lists(CHANGES, min_size=1, max_size=5))
def test_changes_compose(several):
    """Any of them after any others gives a sound graph, for each iteration and all in a chain."""
    iterations = join_each(traces.ddp(ranks=2, iterations=2, slowness=[1.0, 1.1]))
    for change in several:
        iterations = [change(one) for one in iterations]
    for one in iterations:
        check(one.graph)
    assert np.isfinite(predicted(iterations).iteration_s)


def test_rounds_that_are_no_longer_repeated_leave_no_negative_time():
    one = join(traces.ddp(ranks=2, slowness=[1.0, 1.1]))
    for change in (
        lambda one: changes.bandwidth(one, bps=5e9),
        lambda one: changes.allreduce(one, "switchml"),
        lambda one: changes.codec(one, CodecCost(0.5, 1e9)),
        lambda one: changes.codec(one, CodecCost(0.5, 1e9)),
        lambda one: changes.allreduce(one, "tree"),
    ):
        one = change(one)
        assert (transfer_s(one.costs)[all_reduces(one)] > 0).all()


@pytest.mark.parametrize(("change", "complaint"), [
    (lambda one: changes.ranks(one, 0), "0 ranks: expected at least 1"),
    (lambda one: changes.codec(one, CodecCost(0.0, 1.0)), "share of bytes sent: 0.0 is invalid"),
])  # fmt: skip
def test_nonsense(joined, change, complaint):
    with pytest.raises(ConfigError, match=complaint):
        change(joined)


def test_kernels_of_each_class_on_another_accelerator():
    """The shortest kernels take what they take there; of the others, what is longer than those scales by its class."""
    speeds = Speeds(matrix=2.0, memory=4.0, attention=0.5, least_s=1e-6, other_least_s=3e-6)
    names = ["ampere_sgemm_64x64_nn", "elementwise_kernel", "flash_fwd_kernel", "elementwise_kernel", "Memset (Device)"]
    seconds = np.array([101e-6, 101e-6, 101e-6, 0.5e-6, 0.0])
    assert speeds.seconds(names, seconds) == pytest.approx([53e-6, 28e-6, 203e-6, 3e-6, 0.0])
    same = Speeds(matrix=1.0, memory=1.0, attention=1.0, least_s=2e-6, other_least_s=2e-6)
    assert same.seconds(names[:3], seconds[:3]) == pytest.approx(seconds[:3])


def test_the_precision_of_matrix_products_is_that_of_their_kernels():
    device = {"device": "Tesla V100-SXM2-16GB"}
    single = join([replace(trace, about=device) for trace in traces.ddp(ranks=2)])
    half = with_table(
        single, "op_types", name=[name.replace("aten::mm", "volta_h884gemm") for name in single.graph.op_types.name]
    )
    single = with_table(
        single, "op_types", name=[name.replace("aten::mm", "volta_sgemm") for name in single.graph.op_types.name]
    )
    assert speeds(single, "a100-40g").matrix == pytest.approx(19.5 / 15.7, rel=1e-3)
    assert speeds(half, "a100-40g").matrix == pytest.approx(312 / 125, rel=1e-3)
    assert speeds(half, "a100-40g").memory == pytest.approx(1555 / 900, rel=1e-3)
