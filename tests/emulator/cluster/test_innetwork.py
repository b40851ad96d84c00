"""In-network aggregation's closed form, beside a toy simulation's published figures and its own limits."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.cluster import cluster as clusters
from emulator.cluster import innetwork
from emulator.cluster.collectives import cost
from emulator.cluster.cost import Cost
from emulator.cluster.innetwork import DENSE, Streaming, stream_s, union_density
from emulator.cluster.topology import place
from switchml.errors import ConfigError

DGX = clusters.load("a100-dgx")


def star(slots=128, timeout_s=1e-3, **changes):
    """Hosts on a switch, 5 µs one way, 1100 bytes on the wire for 1024 of tensor."""
    settings = dict(slots=slots, timeout_s=timeout_s, link_s=5e-6, latency_s=0.0, host_latency_s=0.0)
    switch = dataclasses.replace(DGX.switch, **settings | dict(convert_bytes_per_s=1e15) | changes)
    return dataclasses.replace(DGX, switch=switch)


# W workers, 25 MB, losses of 0.01, 0.1 and 1 % on each link independently: how many times longer it takes. Averages of
# a packet-level simulation with a fixed timeout.
SIMULATED = [
    (10e9, 128, 1e-3, 4, (1.00, 1.10, 1.50)),
    (10e9, 128, 1e-3, 8, (1.05, 1.11, 2.11)),
    (100e9, 512, 1e-3, 4, (1.42, 1.90, 4.96)),
    (100e9, 512, 1e-3, 8, (1.79, 2.64, 7.20)),
    (100e9, 512, 1e-4, 4, (1.01, 1.07, 1.33)),
    (100e9, 512, 1e-2, 4, (5.6, 14.4, 51.0)),
]


@pytest.mark.parametrize(("rate", "slots", "timeout_s", "workers", "expected"), SIMULATED)
def test_loss_is_near_the_simulation(rate, slots, timeout_s, workers, expected):
    cluster = star(slots, timeout_s)
    base = stream_s(cluster, 25e6, workers, rate / 8)
    for loss, times in zip((1e-4, 1e-3, 1e-2), expected, strict=True):
        assert stream_s(cluster, 25e6, workers, rate / 8, Streaming(loss=loss)) / base == pytest.approx(times, rel=0.2)


@pytest.mark.parametrize(("operation", "payloads", "packets"), [
    ("all_reduce", 1, 1), ("reduce", 1, 1), ("broadcast", 1, 1), ("reduce_scatter", 7 / 8, 1), ("all_gather", 7 / 8, 1),
])  # fmt: skip
def test_the_busier_direction_of_a_link(operation, payloads, packets):
    """Of each chunk, as docs/protocol.md, section 11 has it; both at once send what the other does not."""
    hosts = dataclasses.replace(star(), between=dataclasses.replace(DGX.between, ports_per_node=1, port_bps=10e9))
    hosts = dataclasses.replace(hosts, accelerators_per_node=1)
    rate, eight = hosts.between.node_bytes_per_s, place(8, 1, 1)
    seconds = cost(hosts, operation, 1e9, eight, "switchml").seconds
    assert seconds == pytest.approx(1e9 / 1024 * (1024 * payloads + 76 * packets) / rate, rel=1e-3)
    both = cost(hosts, operation, 1e9, eight, "switchml", both_ways=True).seconds
    assert both == pytest.approx(1e9 / 1024 * (1024 + 152) / rate if payloads < 1 else seconds, rel=1e-3)
    assert cost(hosts, operation, 1e9, eight, "switchml", hierarchy="none").seconds == pytest.approx(seconds)
    assert cost(hosts, "barrier", 0.0, eight, "switchml").seconds < 1e-4


def test_nodes_go_first_in_every_collective():
    """Eight accelerators of a node share what its ports carry; moved bytes are neither narrowed nor sparse."""
    alone, first = (cost(DGX, "all_gather", 1e9, place(64, 1, 8), "switchml", how).seconds for how in ("none", "node"))
    assert first < alone / 3
    moved = [
        cost(DGX, "all_gather", 1e9, place(64, 1, 8), "switchml", streaming=how).seconds
        for how in (DENSE, Streaming(wire_bytes=1), Streaming(sparse=True, density=0.01))
    ]
    assert moved == [moved[0]] * 3
    assert cost(DGX, "all_to_all", 1e9, place(64, 1, 8), "switchml") == cost(DGX, "all_to_all", 1e9, place(64, 1, 8))


def test_line_rate_with_a_window_that_covers_the_round_trip():
    assert stream_s(star(), 25e6, 8, 10e9 / 8) == pytest.approx(25e6 / 1024 * 1100 * 8 / 10e9, rel=0.001)


def test_a_small_window_is_bound_by_the_round_trip():
    chunks, round_trip = 25e6 / 1024, 2 * 1100 * 8 / 10e9 + 2 * 5e-6
    assert stream_s(star(slots=2), 25e6, 8, 10e9 / 8) == pytest.approx(chunks * round_trip / 2, rel=0.001)


def test_jobs_share_the_slots():
    alone = stream_s(star(slots=4), 25e6, 8, 10e9 / 8)
    assert stream_s(star(slots=8), 25e6, 8, 10e9 / 8, Streaming(jobs=2)) == pytest.approx(alone)


@given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 64))
def test_union_of_sparse_blocks(density, overlap, workers):
    union = union_density(density, overlap, workers)
    assert density - 1e-9 <= union <= min(1.0, workers * density) + 1e-9


def test_union_of_independent_blocks():
    assert union_density(0.1, 0.0, 4) == pytest.approx(0.3439)
    assert union_density(0.01, 0.0, 8) == pytest.approx(0.0773, abs=1e-4)
    assert union_density(0.1, 1.0, 8) == pytest.approx(0.1)


def test_inside_a_node_the_switch_is_not_used():
    at = place(8, 1, 8)
    assert cost(DGX, "all_reduce", 1e8, at, "switchml") == cost(DGX, "all_reduce", 1e8, at, "ring")


def test_sparse_streams_take_less_and_dense_is_the_default():
    cluster = star()
    dense = stream_s(cluster, 1e8, 8, 10e9 / 8)
    sparse = stream_s(cluster, 1e8, 8, 10e9 / 8, Streaming(sparse=True, density=0.01))
    assert sparse == pytest.approx(dense * union_density(0.01, 0.0, 8), rel=0.02)
    assert Streaming() == DENSE


def test_nonsense_is_refused():
    with pytest.raises(ConfigError, match="loss is 0.7"):
        Streaming(loss=0.7)
    with pytest.raises(ConfigError, match="only left out where sparse is set"):
        Streaming(density=0.5)


@pytest.mark.parametrize("count", [1, 64, 512, 1e6])
@pytest.mark.parametrize("mean", [0.5, 100.0, 700.0, 2000.0])
def test_the_largest_of_poisson_numbers(count, mean):
    steps = range(int(mean + 40 * math.sqrt(mean) + 40))
    chances = np.exp([k * math.log(mean) - mean - math.lgamma(k + 1) for k in steps])
    largest = np.sum(1.0 - np.minimum(np.cumsum(chances), 1.0) ** count)
    assert innetwork._largest_of(count, mean) == pytest.approx(largest, rel=0.005)


def test_a_transfer_that_never_ends_is_refused():
    with pytest.raises(ConfigError, match="a transfer of 8 bytes would never end"):
        Cost(0.0, 8.0, 0.0)
