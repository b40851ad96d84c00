"""Jobs whose packets go through the ZeroMQ tunnel."""

from __future__ import annotations

import socket

import numpy as np
import pytest

from host_agent import joining
from host_agent.agent import HostAgent
from switchml.control import v2_pb2
from switchml.control.server import Controller
from switchml.errors import AggregatorLost, JoinError
from tests.support.agents import reduce_all
from tests.support.launch import LocalAggregator, contribution, good, join_all, leave_all, on_all, total
from tests.support.started import lasting

aggregator = lasting(LocalAggregator, tunnel=True)


@pytest.fixture(params=["ipc", "tcp"])
def kind(request, monkeypatch):
    """Which of the two addresses the agents take."""

    def choose(addresses, host):
        return next(url for url in addresses if url.startswith(request.param))

    monkeypatch.setattr(joining, "choose_address", choose)
    return request.param


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_results_are_those_of_udp(aggregator, kind, ranks):
    inputs = [np.random.default_rng((1, rank)).standard_normal(300_000).astype(np.float32) for rank in range(ranks)]
    whole = [contribution(2, rank, 20_011, "int64") for rank in range(ranks)]
    results = {}
    for transport in ("udp", "zmq"):
        agents = join_all(aggregator.address, ranks, job=f"{kind} {transport}", transport=transport)
        try:
            assert {agent.transport for agent in agents} == {transport}
            results[transport] = reduce_all(agents, inputs)
            for result in reduce_all(agents, whole):
                np.testing.assert_array_equal(result, total(2, ranks, 20_011, "int64"))
        finally:
            leave_all(agents)
    for by_udp, by_zmq in zip(results["udp"], results["zmq"], strict=True):
        assert by_udp.tobytes() == by_zmq.tobytes() == results["udp"][0].tobytes()


def test_ranks_of_one_job_may_come_either_way(aggregator):
    transports = ["zmq", "udp", "auto"]
    join = HostAgent.join
    agents = good(
        on_all(range(3), lambda r: join(aggregator.address, job="mixed", rank=r, world_size=3, transport=transports[r]))
    )
    try:
        for result in reduce_all(agents, [contribution(3, rank, 50_000) for rank in range(3)]):
            np.testing.assert_array_equal(result, total(3, 3, 50_000))
    finally:
        leave_all(agents)


def test_an_agent_that_leaves_frees_its_tunnel(aggregator):
    agents = join_all(aggregator.address, 2, job="leavers", transport="zmq")
    leave_all(agents)
    for agent in agents:
        assert not agent._tunnel._thread.is_alive()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind(agent._tunnel.address)  # free again


def test_an_aggregator_without_a_tunnel(aggregator, monkeypatch):
    monkeypatch.setattr("switchml.control.client.wait_for", lambda *_, **__: v2_pb2.StatusReply())
    with pytest.raises(JoinError, match="has no ZeroMQ tunnel"):
        join_all(aggregator.address, 1, job="none", transport="zmq")


def test_a_tunnel_that_forgot_the_rank_ends_its_job(aggregator):
    """The control connection may survive what the tunnel did not."""
    (agent,) = join_all(aggregator.address, 1, job="forgotten", transport="zmq")
    try:
        agent._tunnel._give_up("for a test")
        with pytest.raises(AggregatorLost, match="job 'forgotten': aggregator lost: for a test"):
            agent.allreduce(np.ones(10, np.float32))
    finally:
        agent.leave()


def test_no_aggregator_is_a_join_error():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = "{}:{}".format(*listener.getsockname())
        with pytest.raises(JoinError, match="no aggregator answered at"):
            join_all(address, 1, job="nobody", transport="zmq", timeout_s=0.5)


@pytest.mark.slow
def test_ports_of_the_controller(aggregator):
    """By default the tunnel is two ports above the control port."""
    port = next(port for port in range(20_000, 30_000, 3) if all(_is_free(port + i) for i in range(3)))
    controller = Controller(aggregator.dataplane, control_port=port, tunnel=True)
    addresses = controller.start()
    controller.stop()
    assert addresses.tunnel == ("127.0.0.1", port + 2)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
