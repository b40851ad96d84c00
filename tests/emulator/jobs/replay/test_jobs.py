"""Several jobs on one fabric."""

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given

from emulator.jobs.replay.conditions import Conditions
from emulator.jobs.replay.engine import replay
from emulator.jobs.replay.parts import parts
from emulator.jobs.workload.checks import check
from emulator.jobs.workload.combine import merge
from emulator.jobs.workload.costs import Costs, Links
from emulator.lab.bench.replay import Shape, job
from switchml.errors import ConfigError, GraphError
from tests.support import replay_graphs as graphs
from tests.support.examples import examples


@examples(30, suppress_health_check=list(HealthCheck))
@given(one=graphs.cases(), other=graphs.cases())
def test_jobs_that_share_nothing_do_not_notice_each_other(one, other):
    graph, costs = merge([one.graph, other.graph], [one.costs, other.costs])
    played = replay(graph, costs)
    alone = [replay(case.graph, case.costs) for case in (one, other)]
    np.testing.assert_array_equal(played.end_s, np.concatenate([single.end_s for single in alone]))
    np.testing.assert_array_equal(
        played.transfer_start_s, np.concatenate([single.transfer_start_s for single in alone])
    )


def on_one_link(name):
    """A data-parallel job whose gradients take 2 s of a link of 1 GB/s."""
    graph, costs = job(Shape(tensor=1, stages=1, replicas=2, layers=2, micro_batches=2))
    graph.job_names[0] = name
    is_gradients = np.array([graph.op_types.name[op_type] == "gradients" for op_type in graph.transfers.op_type])
    return graph, dataclasses.replace(
        costs,
        transfer_fixed_s=np.where(is_gradients, 0.0, costs.transfer_fixed_s),
        transfer_bytes=np.where(is_gradients, 2e9, 0.0),
        transfer_route=np.where(is_gradients, 0, -1).astype(np.int32),
        links=Links(["spine"], np.array([1e9]), np.array([0, 1]), np.array([0], np.int32), np.ones(1)),
    )


def test_jobs_share_a_link_unless_they_take_turns():
    one, other = on_one_link("bert"), on_one_link("vgg")
    alone_s = replay(*one).makespan_s
    graph, costs = merge([one[0], other[0]], [one[1], other[1]])
    check(graph)
    assert graph.job_names == ["bert", "vgg"]
    assert graph.ranks.job.tolist() == [0, 0, 1, 1]
    assert replay(graph, costs).makespan_s == pytest.approx(alone_s + 2.0)
    later = replay(graph, costs, Conditions(start_s={1: 2.0}))
    assert later.makespan_s == pytest.approx(alone_s + 2.0)
    charged = parts(later).by_rank.sum(axis=1)
    np.testing.assert_allclose(charged, [alone_s, alone_s, alone_s, alone_s])


def test_three_of_the_same_name_are_numbered():
    graph, _ = merge(*zip(*[on_one_link("bert")] * 3, strict=True))
    assert graph.job_names == ["bert 0", "bert 1", "bert 2"]


def test_what_can_not_be_merged():
    graph, costs = on_one_link("bert")
    faster = dataclasses.replace(costs, links=dataclasses.replace(costs.links, link_bytes_per_s=np.array([2e9])))
    with pytest.raises(GraphError, match="the same links at the same rates"):
        merge([graph, graph], [costs, faster])
    with pytest.raises(ConfigError, match="1 jobs with costs for 0"):
        merge([graph], [])
    merge([graph, graph], [costs, Costs.of(graph, costs.op_type_s)])
