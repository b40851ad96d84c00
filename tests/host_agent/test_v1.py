"""Agents that speak v1: beside p4app-switchML's client, alone, and where they can't join."""

from __future__ import annotations

import itertools
import logging
import socket
from concurrent import futures

import grpc
import numpy as np
import pytest

from host_agent.agent import HostAgent
from host_agent.v1 import joining
from switchml.control import rpc
from switchml.control.v1 import client, v1_pb2
from switchml.errors import CollectiveTimeout, ConfigError, JobError, JoinError, UnsupportedTensor
from tests.support.agents import reduce_all, same_bits
from tests.support.launch import LocalAggregator, good, join_all, leave_all, on_all
from tests.support.started import lasting
from tests.support.v1_client import LANES, WINDOW, WORKERS, V1Client

_jobs = itertools.count()


def job() -> str:
    """A name whose ranks get addresses of their own on loopback."""
    return "v1" + chr(ord("a") + next(_jobs))


aggregator = lasting(LocalAggregator, v1=True)


@pytest.fixture(scope="module")
def pair(aggregator):
    agents = join_all(aggregator.address, 2, job=job(), protocol="v1")
    yield agents
    leave_all(agents)


def draw(rng, numel: int, dtype: str) -> np.ndarray:
    if dtype == "int32":
        return rng.integers(-(2**31), 2**31, numel).astype("int32")
    x = rng.standard_normal(numel) * 10.0 ** rng.integers(-20, 20, numel)
    x[: numel // 4] = rng.integers(-(2**20), 2**20, numel // 4) * 2.0**-21  # sums that end in halves
    return x.astype("float32")


def test_the_same_bits_as_the_references_client():
    """One of its hosts and two agents in one session that loses packets: every packet has to agree in slot, set, job
    and number, and every sum in all bits."""
    aggregator = LocalAggregator(v1=True, loss_rate=0.01, seed=11)
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.78.1", 0))
    at = aggregator.dataplane.address
    host = V1Client(0, "127.0.78.1", sock, aggregator.address, at)
    options = {
        "job": "beside",
        "world_size": WORKERS,
        "payload_bytes": 4 * LANES,
        "slots": WINDOW,
        "protocol": f"v1:timeout=20ms,port={sock.getsockname()[1]}",
    }

    def begin(rank: int):
        if rank == 0:
            host.connect()
            first = np.zeros(LANES, np.int32)  # the agents' check
            first[0] = 1
            host.all_reduce(first)
            return host
        return HostAgent.join(aggregator.address, rank=rank, **options)

    ranks = good(on_all(range(WORKERS), begin))
    try:
        rng = np.random.default_rng(3)
        for numel, dtype in ((5_000, "int32"), (5_001, "float32"), (1, "float32"), (65, "int32"), (2048, "float32")):
            inputs = [draw(rng, numel, dtype) for _ in ranks]
            calls = [host.all_reduce, *(agent.allreduce for agent in ranks[1:])]
            results = good(on_all(range(WORKERS), lambda rank, calls=calls, x=inputs: calls[rank](x[rank])))
            assert same_bits(results), (numel, dtype)
            if dtype == "int32":
                with np.errstate(over="ignore"):
                    np.testing.assert_array_equal(results[1], inputs[0] + inputs[1] + inputs[2])
        assert sum(agent.stats()["retransmitted"] for agent in ranks[1:]) > 0
    finally:
        leave_all(ranks[1:])
        host.close()
        sock.close()
        aggregator.stop()


def test_means_and_half_precision(pair):
    inputs = [np.array([1, -2, 7], "int32"), np.array([2, -3, -1], "int32")]
    assert [result.tolist() for result in reduce_all(pair, inputs, op="mean")] == [[1, -2, 3]] * 2
    halves = reduce_all(pair, [np.array([0.5, 3], "float16")] * 2)
    assert halves[0].dtype == "float16" and halves[0].tolist() == [1, 6]
    assert reduce_all(pair, [np.array([0.5, 3], "float32")] * 2, op="mean")[1].tolist() == [0.5, 3]


def test_blocks_of_values_that_v1_cannot_send(pair):
    """Not finite and huge ones are NaN on all ranks, with the rest of their block; tiny ones and zeros are zeros."""
    x = np.ones(5 * 256, "float32")
    x[0], x[256], x[512] = np.nan, -np.inf, 3e38
    x[768:1024] = 1e-40
    x[1024:] = 0
    results = reduce_all(pair, [x, np.where(np.abs(x) == 1, x, 0).astype("float32")])
    assert same_bits(results)
    assert np.isnan(results[0][:768]).all() and not results[0][768:].any()


def test_calls_in_order_without_waiting(pair):
    handles = [[agent.allreduce(np.full(i, i, "int32"), async_op=True) for i in range(1, 20)] for agent in pair]
    for each in handles:
        assert [handle.wait().tolist() for handle in each] == [[2 * i] * i for i in range(1, 20)]
    assert pair[0].stats()["calls"] >= 19


@pytest.mark.parametrize("call", ["int64", "float64", "sparse", "max", "barrier"])
def test_what_v1_does_not_know(pair, call):
    agent, x = pair[0], np.ones(3, "float32")
    with pytest.raises(ConfigError if call in ("sparse", "max", "barrier") else UnsupportedTensor):
        if call == "barrier":
            agent.barrier()
        elif call == "max":
            agent.allreduce(x, op="max")
        elif call == "sparse":
            agent.allreduce(x, sparse="on")
        else:
            agent.allreduce(x.astype(call))


def test_joining_says_what_v1_cannot_protect_from(aggregator, caplog):
    caplog.set_level(logging.WARNING, "host_agent")
    agents = join_all(aggregator.address, 2, job=job(), protocol="v1", payload_bytes=256)
    warnings = [record.message for record in caplog.records if "protocol v1 has no" in record.message]
    assert len(warnings) == 1
    with pytest.raises(CollectiveTimeout, match="0 of 2 results came from 127.0.0.1:.*v1 does not tell"):
        agents[0].allreduce(np.ones(3, "float32"), timeout_s=0.05)
    with pytest.raises(JobError):  # for this rank the job is over
        agents[0].allreduce(np.ones(3, "float32"))
    handle = agents[1].allreduce(np.ones(3, "float32"), async_op=True)
    leave_all(agents)
    with pytest.raises(JobError, match="rank 1 left"):
        handle.wait()


@pytest.mark.parametrize(("options", "words"), [
    ({"world_size": 33}, "world size 33: v1 has a bit for each of 1 to 32 ranks"), ({"rank": 2}, "rank 2 of 2"),
    ({"payload_bytes": 512}, "payload of 512 bytes: expected one of 256, 1024"),
    ({"slots": 8193}, "8193 slots: expected up to 8192"),
    ({"wire": "int16"}, "wire int16: v1 supports only auto and int32"),
    ({"transport": "shm"}, "transport shm: v1 supports only auto and udp"),
    ({"sparse": "on"}, "sparse on: v1 supports only off and auto"),
    ({"authenticate": True}, "authenticate: v1 packets have no tags"),
    ({"hierarchy": "node"}, "hierarchy: v1 supports single ranks only"),
    ({"standby": "127.0.0.1:2"}, "v1 has one switch and no standbys"),
    ({"protocol": "v3"}, "protocol 'v3': expected v2, or v1"),
    ({"protocol": "v2:port=1"}, "protocol 'v2:port=1': expected"),
    ({"protocol": "v1:port=0"}, "expected a time-out above 0 and a port from 1 to 65535"),
])  # fmt: skip
def test_options_that_v1_cannot_have(options, words):
    with pytest.raises(ConfigError) as caught:
        HostAgent.join("127.0.0.1:1", **{"job": "x", "rank": 0, "world_size": 2, "protocol": "v1"} | options)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_ranks_that_disagree_about_their_number(aggregator, monkeypatch):
    monkeypatch.setattr(client, "data_port", lambda *_, **__: 48864)  # which may take its time
    with pytest.raises(JoinError, match="rank 1 of 3 waited 1 s at .* expected 3 ranks that join with this world size"):
        HostAgent.join(aggregator.address, job=job(), rank=1, world_size=3, protocol="v1", timeout_s=0.1)


def test_a_switch_that_answers_no_packets_of_this_size(aggregator, monkeypatch):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        monkeypatch.setattr(client, "data_port", lambda *_, **__: silent.getsockname()[1])
        monkeypatch.setattr(joining, "_CHECK_S", 0.1)
        with pytest.raises(JoinError, match=r"packets of 1024 bytes from 127\..* had no result within 0.1 s"):
            HostAgent.join(aggregator.address, job=job(), rank=0, world_size=1, protocol="v1")


def test_an_aggregator_without_v1(monkeypatch):
    running = LocalAggregator()
    monkeypatch.setenv("SWITCHML_PROTOCOL", "v1")
    try:
        with pytest.raises(JoinError, match="does not serve v1; expected one started with --v1"):
            HostAgent.join(running.address, job=job(), rank=0, world_size=1)
    finally:
        running.stop()


class _Controller:
    """What the reference's answers to one rank that it refuses (controller/grpc_server.py)."""

    def Broadcast(self, request, context):
        return v1_pb2.BroadcastResponse(value=request.value)

    def Barrier(self, request, context):
        return v1_pb2.BarrierResponse()

    def UdpSession(self, request, context):
        return v1_pb2.UdpSessionResponse()

    RdmaSession = UdpSession


def test_the_references_controller_says_no():
    """It has no call that tells a data port, and refuses with zeros."""
    services = v1_pb2.DESCRIPTOR.services_by_name
    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers([rpc.handler(services[name], _Controller()) for name in ("Session", "Sync")])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        assert client.data_port(f"127.0.0.1:{port}", timeout_s=10) == 48864
        with pytest.raises(JoinError, match="refused rank 0 of 1; its log says why"):
            HostAgent.join(f"127.0.0.1:{port}", job=job(), rank=0, world_size=1, protocol="v1")
    finally:
        server.stop(None)


def test_an_error_of_ours_in_an_agent_s_thread(aggregator, monkeypatch):
    agents = join_all(aggregator.address, 2, job=job(), protocol="v1")

    def fail(call):
        raise SystemError("planted")

    monkeypatch.setattr(agents[0], "_reduce", fail)
    for _ in range(2):  # the call under way, and one that comes later
        with pytest.raises(JobError, match=r"rank 0 failed: SystemError\('planted'\)"):
            agents[0].allreduce(np.ones(10, np.float32), async_op=True).wait(10)
    leave_all(agents)
