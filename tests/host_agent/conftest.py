"""Agents of one job, as threads of the test's process, and their aggregator."""

import pytest

from host_agent.agent import HostAgent
from tests.support.launch import LocalAggregator, join_all, leave_all


@pytest.fixture(scope="module")
def aggregator():
    running = LocalAggregator()
    yield running
    running.stop()


@pytest.fixture
def join(aggregator):
    """`join(world_size, **options)`: the agents of a job of its own; they leave after the test."""
    joined = []

    def begin(world_size: int, **options) -> list[HostAgent]:
        agents = join_all(aggregator.address, world_size, **{"job": f"job {len(joined)}"} | options)
        joined.append(agents)
        return agents

    yield begin
    for agents in joined:
        leave_all(agents)


@pytest.fixture(scope="module", params=["udp", "shm"])
def trio(aggregator, request):
    """Three agents that many tests share: none of them ends the job."""
    agents = join_all(aggregator.address, 3, job="trio", transport=request.param)
    assert [agent.transport for agent in agents] == [request.param] * 3
    yield agents
    leave_all(agents)
