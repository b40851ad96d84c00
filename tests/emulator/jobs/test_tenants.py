"""Several jobs on one cluster: what they share, and what that costs them."""

import numpy as np
import pytest
from click.testing import CliRunner

from emulator.cluster import cluster as clusters
from emulator.cluster.collectives import cost
from emulator.cluster.cost import Cost
from emulator.cluster.fabric import SharedFabric, place
from emulator.cluster.topology import GroupLayout
from emulator.jobs.description import request
from emulator.jobs.emulate import emulate
from emulator.jobs.replay.engine import replay
from emulator.jobs.tenants import together
from emulator.jobs.workload.combine import repeat
from emulator.lab.bench.replay import Shape, job
from switchml.cli.main import cli
from switchml.errors import ConfigError
from tests.support.commands import told

VGG = {"model": "vgg16", "cluster": "h100-ethernet"}


def asked(**settings):
    return request(VGG | {"job": {"gpus": 12, "micro_batch": 32} | settings})


def run(*arguments):
    return CliRunner().invoke(cli, ["emulate", *arguments])


# Places


def test_nodes_are_dealt_in_turns_or_one_job_after_the_other():
    cluster = clusters.load("h100-ethernet")
    spread = place([24, 12], cluster)
    assert [sorted(set(own.tolist())) for own in spread] == [[0, 2, 4], [1, 3]]
    packed = place([12, 12], cluster, "packed")
    assert [sorted(set(own.tolist())) for own in packed] == [[0, 1], [1, 2]]
    with pytest.raises(ConfigError, match="unknown placement 'spead'; did you mean spread"):
        place([8], cluster, "spead")


def test_loads_of_ports_and_uplinks():
    cluster = clusters.load("h100-ethernet")  # 8 nodes a leaf
    fabric = SharedFabric(cluster, 16)
    assert fabric.names()[0] == "node 0" and fabric.names()[-1] == "leaf 1"
    nodes = np.repeat([4, 5, 8, 9], 8)
    ring = Cost(0.0, 1e9, 1e9).leaves(8e9, once_a_leaf=True)
    load = fabric.load(nodes, ring, groups=1.0)
    assert load[[4, 5, 8, 9]].tolist() == [2.0] * 4 and load[:16].sum() == 8.0
    assert load[16:].tolist() == [2.0, 2.0]  # out of each leaf with what leaves one of its nodes
    assert fabric.load(nodes, ring.leaves(8e9), 1.0)[16:].tolist() == [4.0, 4.0]
    assert not fabric.load(nodes[:16], ring, 1.0)[16:].any()  # under one leaf


@pytest.mark.parametrize("algorithm", ["ring", "tree", "halving-doubling", "hierarchical", "switchml"])
def test_a_job_alone_never_asks_more_of_a_port_than_it_has(algorithm):
    cluster = clusters.load("h100-ethernet")
    where = GroupLayout(ranks=32, nodes=4, per_node=8)
    one = cost(cluster, "all_reduce", 1e9, where, algorithm)
    through_a_port = one.leaving_bytes / 4 / one.bytes * one.bytes_per_s
    assert 0.5 < through_a_port / cluster.between.node_bytes_per_s < 1.0001


# Iterations


def test_iterations_follow_each_other():
    graph, costs = job(Shape(tensor=2, stages=2, replicas=2, layers=4, micro_batches=3))
    once_s = replay(graph, costs).makespan_s
    whole = replay(*repeat(graph, costs, 4))
    assert whole.makespan_s <= 4 * once_s * (1 + 1e-12)
    # Ranks that end early begin the next iteration early; none before its own end.
    ends = whole.end_s.reshape(4, -1)
    starts = whole.start_s.reshape(4, -1)
    rank = whole.graph.op_rank()[: ends.shape[1]]
    for one in range(len(graph.ranks)):
        own = rank == one
        assert (starts[1:, own].min(axis=1) >= ends[:-1, own].max(axis=1)).all()


# Together


def test_jobs_with_nothing_in_common_take_what_they_take_alone():
    found = together([asked(gpus=16), asked(gpus=16, micro_batch=16)], ["one", "two"], placement="packed")
    assert not found.shared_links
    for tenant in found.tenants:
        assert tenant.iteration_s == pytest.approx(tenant.alone_s, rel=1e-9)
        assert tenant.alone_s == pytest.approx(tenant.alone.iteration_s)


def test_a_shared_port_slows_both():
    """Both fill the ports of the node between them; what each loses is at most the other's transfers."""
    jobs = [asked(overlap=False), asked(overlap=False)]
    found = together(jobs, ["one", "two"], placement="packed")
    assert found.shared_links == ["node 1"]
    for tenant in found.tenants:
        communication_s = tenant.alone.parts["exposed communication"]
        assert tenant.iteration_s > tenant.alone.iteration_s * 1.01
        assert tenant.iteration_s < tenant.alone.iteration_s + communication_s * 1.01
    alone_again = together(jobs, ["one", "two"], placement="packed", share="slots")
    assert alone_again.tenants[0].slowdown == pytest.approx(1.0)


def test_trees_share_uplinks(tmp_path):
    """Two jobs, half of the nodes under each leaf: alone each finds uplinks for more than a third of its ports. Without
    buffers, whose filling is a delay, and not shared."""
    path = tmp_path / "bare.toml"
    path.write_text('extends = "h100-ethernet"\n[between]\nchannel_bytes = 0\n')
    jobs = [
        request(
            VGG | {"cluster": str(path), "job": {"gpus": 128, "micro_batch": 32, "allreduce": "tree", "overlap": False}}
        )
    ] * 2
    found = together(jobs, ["one", "two"])
    assert found.shared_links == [f"leaf {number}" for number in range(4)]
    for tenant in found.tenants:
        assert tenant.alone.iteration_s <= tenant.alone_s < emulate(jobs[0]).iteration_s
        assert 1.02 < tenant.slowdown < 2
        assert tenant.iteration_s == pytest.approx(emulate(jobs[0]).iteration_s, rel=0.03)


def test_slots_are_divided():
    few = VGG | {"job": {"gpus": 16, "micro_batch": 32, "allreduce": "switchml"}, "switch": {"slots": 64.0}}
    found = together([request(few)] * 2, ["one", "two"], share="slots")
    halved = emulate(request(few | {"network": {"jobs": 2}}))
    for tenant in found.tenants:
        assert tenant.iteration_s == pytest.approx(halved.iteration_s) and tenant.slowdown > 1.05


def test_command(tmp_path):
    path = tmp_path / "jobs.toml"
    path.write_text(
        'model = "vgg16"\ncluster = "h100-ethernet"\n[job]\ngpus = 12\nmicro_batch = 32\n'
        '[[jobs]]\nname = "big"\n[jobs.job]\nmicro_batch = 64\n[[jobs]]\n'
    )
    jobs = told("emulate", str(path), "--placement", "packed", "--no-overlap")["jobs"]
    assert [one["name"] for one in jobs] == ["big", "jobs 1"]
    assert jobs[0]["batch"] == 2 * jobs[1]["batch"] and all(one["slowdown"] > 1 for one in jobs)
    table = run(str(path), "--timeline", str(tmp_path / "t.json"))
    assert "slowdown" in table.stdout and (tmp_path / "t.json").stat().st_size > 1000


def test_what_can_not_be_asked(tmp_path):
    one, other = tmp_path / "one.toml", tmp_path / "other.toml"
    one.write_text('model = "vgg16"\n[job]\ngpus = 8\n')
    other.write_text('model = "vgg16"\ncluster = "h100-dgx"\n[job]\ngpus = 8\n')
    for arguments, message in (
        ((str(one), "--share", "all"), "several job files"),
        ((str(one), str(other), "--sweep", "gpus=8,16"), "for one job"),
        ((str(one), str(other)), "must have the same cluster"),
    ):
        found = run(*arguments)
        assert found.exit_code != 0 and message in found.output + found.stderr
