"""What an all-reduce costs is one function: emulated jobs, emulated peers, imported workloads, replayed traces and the
optimizer all say what `emulator.cluster.collectives.cost` says, with the same names for the same things."""

import dataclasses

import pytest

from emulator.cluster import cluster as clusters
from emulator.cluster.algorithms import ALGORITHMS, HIERARCHIES
from emulator.cluster.collectives import cost
from emulator.cluster.topology import place
from emulator.jobs import imported
from emulator.jobs.costing import plan
from emulator.jobs.workload import models
from emulator.jobs.workload.job import Job
from emulator.peers.settings import PeerSettings
from emulator.peers.world import Costs
from emulator.traces.join import join
from emulator.traces.network import Network
from emulator.traces.optimizer.machine import Machine
from emulator.traces.whatif import changes
from emulator.traces.whatif.transfers import all_reduces, transfer_s
from switchml.errors import ConfigError
from tests.support import ddp_traces as traces

NAME, RANKS, SIZE = "a100-dgx", 16, 1e9
DGX = clusters.load(NAME)
EVERY = [(algorithm, hierarchy) for algorithm in ALGORITHMS if algorithm != "nvls" for hierarchy in HIERARCHIES]
"""Without NVLink SHARP, which an A100 has not."""


@pytest.fixture(scope="module")
def joined():
    """One all-reduce of 1 GB among 16 ranks, traced on some other network."""
    job = dataclasses.replace(traces.Job(), backward=(8.0,), sizes=(SIZE,), buckets=(0,), reduce=(5e3,))
    return join(traces.ddp(job, ranks=RANKS))


def seconds(algorithm, hierarchy):
    return cost(DGX, "all_reduce", SIZE, place(RANKS, 1, 8), algorithm, hierarchy).seconds


def test_a_gigabyte_on_two_nodes():
    """Nodes first: 1 GB through NVSwitch, then each node's ports carry it once; alone: they carry it eight times."""
    framed_s = SIZE * 1100 / 1024 / DGX.between.node_bytes_per_s
    assert seconds("switchml", "auto") == seconds("switchml", "node") == pytest.approx(14.8e-3, rel=2e-3)
    assert seconds("switchml", "none") == pytest.approx(8 * framed_s, rel=2e-3) == pytest.approx(56.5e-3, rel=1e-3)
    assert seconds("ring", "node") == seconds("hierarchical", "auto") > seconds("ring", "auto")
    assert seconds("ring", "none") == seconds("hierarchical", "none") == seconds("ring", "auto")
    assert seconds("ps", "none") == seconds("ps", "auto") > 5 * seconds("ps", "node")


@pytest.mark.parametrize(("algorithm", "hierarchy"), EVERY)
def test_emulated_jobs(algorithm, hierarchy):
    job = Job(gpus=RANKS, allreduce=algorithm, hierarchy=hierarchy, gradient_bytes=4)
    assert plan(models.load("resnet50"), job, DGX).reduce(SIZE / 4).seconds == seconds(algorithm, hierarchy)


@pytest.mark.parametrize(("algorithm", "hierarchy"), EVERY)
def test_emulated_peers(algorithm, hierarchy):
    settings = PeerSettings(world=RANKS, cluster=NAME, network=algorithm, hierarchy=hierarchy)
    assert Costs(settings).seconds("all_reduce", SIZE, tuple(range(RANKS))) == seconds(algorithm, hierarchy)


@pytest.mark.parametrize(("algorithm", "hierarchy"), EVERY)
def test_imported_and_replayed_traces(joined, algorithm, hierarchy):
    costs = imported.costs(joined.graph, DGX, {}, allreduce=algorithm, hierarchy=hierarchy)
    assert transfer_s(costs)[all_reduces(joined)] == pytest.approx([seconds(algorithm, hierarchy)])
    moved = changes.allreduce(changes.cluster(joined, NAME), algorithm, hierarchy)
    own_s = moved.network.seconds(SIZE, RANKS)
    assert own_s == pytest.approx(seconds(algorithm, hierarchy), rel=1e-12)
    # A trace adds the rounds whose exponents would be guessed wrong.
    repeated_s = moved.network.transfer(RANKS).repeats_s(SIZE)
    assert transfer_s(moved.costs)[all_reduces(moved)] == pytest.approx([own_s + repeated_s], rel=1e-6)
    assert repeated_s < 0.01 * own_s


@pytest.mark.parametrize(("algorithm", "hierarchy"), EVERY)
def test_the_optimizer(joined, algorithm, hierarchy):
    machine = Machine.of(joined, hierarchy=hierarchy)
    machine = dataclasses.replace(machine, network=Network.of_cluster(DGX, machine.network))
    if algorithm != machine.traced_allreduce:
        assert machine.network_of(algorithm).seconds(SIZE, RANKS) == pytest.approx(seconds(algorithm, hierarchy))


def test_a_measured_network_is_the_same_function(joined):
    """Links of one rate, hosts of one rank: the textbook's steps and volumes."""
    network = Network("ring", 1e8, 1e-3, host_s_per_byte=1e-9)
    assert network.seconds(SIZE, 8) == cost(network.links, "all_reduce", SIZE, place(8, 1, 1), "ring").seconds
    fixed_s, per_byte_s = network.line(8)
    assert fixed_s == pytest.approx(14e-3)
    assert per_byte_s == pytest.approx(2 * 7 / 8 / (1448 / 1514 * 1e8) + 1e-9)
    for one in ("switchml", "ps"):
        assert dataclasses.replace(network, algorithm=one).line(8)[0] == pytest.approx(2e-3)


def test_unknown_names_are_refused_alike(joined):
    for refused in (
        lambda: cost(DGX, "all_reduce", SIZE, place(RANKS, 1, 8), "ring", "nodes"),
        lambda: Job(hierarchy="nodes"),
        lambda: PeerSettings(world=2, hierarchy="nodes"),
        lambda: changes.allreduce(joined, "ring", "nodes"),
    ):
        with pytest.raises(ConfigError, match="unknown hierarchy.*did you mean node"):
            refused()
