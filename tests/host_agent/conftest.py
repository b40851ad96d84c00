"""Agents of one job, as threads of the test's process, and their aggregator."""

import itertools

import pytest

from host_agent.agent import HostAgent
from tests.support.launch import LocalAggregator, join_all, leave_all
from tests.support.started import lasting, started

aggregator = lasting(LocalAggregator)


@pytest.fixture
def join(aggregator):
    """`join(world_size, **options)`: the agents of a job of its own; they leave after the test."""
    number = itertools.count()

    def begin(world_size: int, **options) -> list[HostAgent]:
        return join_all(aggregator.address, world_size, **{"job": f"job {next(number)}"} | options)

    yield from started(begin, leave_all)


@pytest.fixture(scope="module", params=["udp", "shm"])
def trio(aggregator, request):
    """Three agents that many tests share: none of them ends the job."""
    agents = join_all(aggregator.address, 3, job="trio", transport=request.param)
    assert [agent.transport for agent in agents] == [request.param] * 3
    yield agents
    leave_all(agents)
