"""Several aggregator threads behind one control port: jobs spread, their packets find them, by every transport."""

import os
import socket
from dataclasses import replace

import numpy as np
import pytest

from host_agent.agent import HostAgent
from host_agent.sharded import MIN_PART
from switchml.aggregator.threads import ThreadedDataplane
from switchml.control import client
from switchml.control.dataplane import JobSpec, PartSpec
from switchml.control.server import Controller
from switchml.counters import COUNTERS
from switchml.errors import ConfigError
from switchml.runtime.cores import share_of_cores
from tests.support.launch import DEADLINE_S, Aggregator, good, join_all, leave_all, on_all


def spec(job_id: int, port: int, protocol: int = 2, ip: str = "127.0.0.1") -> JobSpec:
    return JobSpec(job_id, protocol, 1, 4, 256, ((ip, port),), job_tag=job_id)


def test_jobs_go_to_the_thread_with_the_fewest():
    plane = ThreadedDataplane(port=0, threads=3).start()
    try:
        for job in range(1, 7):
            plane.start_job(spec(job, 1000 + job))
        homes = [plane.address_for(("127.0.0.1", 1000 + job)) for job in range(1, 7)]
        assert set(homes) == set(plane.addresses) and len(set(homes[:3])) == 3 and homes[:3] == homes[3:]
        plane.stop_job(2)
        plane.start_job(spec(9, 1009))
        assert plane.address_for(("127.0.0.1", 1009)) == homes[1]
        with pytest.raises(ConfigError, match="1001 of rank 0 belongs to rank 0 of job 1"):
            plane.start_job(spec(10, 1001))
        with pytest.raises(KeyError):
            plane.counters(2)
        assert plane.counters(1).slots_in_use == 0 and plane.refused() == {"refused_address": 0}
    finally:
        plane.stop()
        plane.stop()


def test_protocol_v1_lives_on_the_first_thread():
    plane = ThreadedDataplane(port=0, threads=2).start()
    try:
        plane.start_job(spec(1, 1001))
        plane.start_job(spec(2, 0, protocol=1, ip="127.0.0.2"))
        assert plane.address_for(("127.0.0.2", 0)) == plane.address
    finally:
        plane.stop()


def test_a_job_of_two_parts_has_a_second_thread():
    plane = ThreadedDataplane(port=0, threads=1, most_threads=2).start()
    try:
        assert plane.most_parts == 2 and len(plane.addresses) == 1
        assert plane.parts_for(1) == 1 and len(plane.addresses) == 1
        assert plane.parts_for(8) == 2 and len(plane.addresses) == 2
        first = spec(1, 1001)
        plane.start_job(replace(first, more=(PartSpec((("127.0.0.1", 2001),), job_tag=2, isn=0),)))
        homes = [plane.address_for(("127.0.0.1", port)) for port in (1001, 2001)]
        assert homes == list(plane.addresses) and plane.segment(1, 0) != plane.segment(1, 1)
        assert plane.counters(1).ranks == (dict.fromkeys(COUNTERS, 0),)
        for port in (1001, 2001):
            with pytest.raises(ConfigError, match=f"{port} of rank 0 belongs to rank 0 of job 1"):
                plane.start_job(spec(2, port))
        plane.stop_job(1)
        plane.start_job(spec(2, 2001))
    finally:
        plane.stop()


def test_threads_of_a_divided_job_have_shares_of_the_cores():
    all_cores = os.sched_getaffinity(0)
    plane = ThreadedDataplane(port=0, threads=2).start()

    def shares() -> list[set[int]]:
        return [os.sched_getaffinity(each._thread.native_id) for each in plane._planes]

    try:
        plane.start_job(spec(1, 1001))
        assert shares() == [all_cores, all_cores], "a job on one thread"
        plane.start_job(replace(spec(2, 1002), more=(PartSpec((("127.0.0.1", 2002),), job_tag=2, isn=0),)))
        assert [plane.address_for(("127.0.0.1", port)) for port in (1002, 2002)] == list(plane.addresses)
        assert shares() == [share_of_cores(0, 2), share_of_cores(1, 2)]
        plane.stop_job(2)
        assert shares() == [all_cores, all_cores]
    finally:
        plane.stop()
    assert os.sched_getaffinity(0) == all_cores


def test_a_job_of_two_parts_has_one_where_the_second_port_is_taken(caplog):
    plane = ThreadedDataplane(port=0, threads=1, most_threads=2).start()
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            other.bind(("127.0.0.1", 0))
            plane._port = other.getsockname()[1] - 1
            assert plane.parts_for(2) == 1 and plane.most_parts == 1
            assert f"{plane._port + 1}: Address already in use" in caplog.text
    finally:
        plane.stop()


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("authenticate", [False, True])
def test_one_address_is_enough_for_two_threads(authenticate, monkeypatch):
    moves: list[list[int]] = []
    monkeypatch.setattr("host_agent.agent.move_to", lambda cores: moves.append(sorted(cores)))
    aggregator = Aggregator("--threads=2")
    try:
        agents = join_all(aggregator.address, 2, job="two", transport="udp", authenticate=authenticate)
        parts = getattr(agents[0], "_agents", agents[:1])
        assert len(parts) == min(2, len(os.sched_getaffinity(0)))
        numel = 2 * 256 * MIN_PART + 300
        values = [np.full(numel, rank + 1, np.float32) for rank in range(2)]
        for size in (numel, 500, 500):
            results = good(on_all(range(2), lambda rank, size=size: agents[rank].allreduce(values[rank][:size])))
            assert all((result == 3).all() for result in results)
        shares = [sorted(share_of_cores(part, 2)) for part in range(len(parts))] if len(parts) > 1 else []
        assert sorted(moves) == sorted(2 * shares), "each rank's threads, for the long tensor alone"
        assert all(part.stats()["received"] >= MIN_PART for part in parts)
        (job,) = aggregator.status().jobs
        assert job.name == "two" and job.slots == 4096 * len(parts)
        seals = len(parts) + 1 + 1  # one for each part of a tensor
        assert job.ranks[0].counters["accepted"] == 2 * MIN_PART + 2 + 2 + 2 + seals
        leave_all(agents)
    finally:
        assert aggregator.stop() == 0


def test_a_rank_with_one_socket_makes_it_a_job_of_one_part():
    """As agents have that know no parts."""
    plane = ThreadedDataplane(port=0, threads=2).start()
    controller = Controller(plane, control_port=0)
    try:
        address = "{}:{}".format(*controller.start().control)
        options = {"job": "mixed", "world_size": 2, "transport": "udp", "timeout_s": DEADLINE_S}

        def join(rank: int):
            if rank == 0:
                return HostAgent.join(address, rank=0, **options)
            return client.join(address, rank=1, job="mixed", world_size=2, data_address=("127.0.0.1", 9))

        agent, session = good(on_all(range(2), join))
        assert isinstance(agent, HostAgent) and session.info.more_parts == () and session.info.slots == 2048
        agent.leave()
        session.leave()
    finally:
        controller.stop()
        plane.stop()


@pytest.mark.parametrize(("port", "threads"), [(65535, 2), (0, 0)])
def test_threads_that_can_not_be(port, threads):
    with pytest.raises(ConfigError, match="expected at least 1"):
        ThreadedDataplane(port=port, threads=threads)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("transport", ["udp", "shm", "zmq"])
def test_one_job_uses_as_many_threads_as_it_lists(transport):
    aggregator = Aggregator("--threads=2", *(["--tunnel"] if transport == "zmq" else []))
    try:
        agents = join_all(f"{aggregator.address},{aggregator.address}", 2, job="wide", transport=transport)
        values = [np.full(200_000, rank + 1, np.float32) for rank in range(2)]
        results = good(on_all(range(2), lambda rank: agents[rank].allreduce(values[rank])))
        assert all((result == 3).all() for result in results)
        shards = [job for job in aggregator.status().jobs if job.name.startswith("wide.")]
        assert len(shards) == 2
        fewer, more = sorted(job.ranks[0].counters["accepted"] for job in shards)
        assert 10 < more < 1.1 * fewer, "half of the packets each, whatever their size"
        leave_all(agents)
    finally:
        assert aggregator.stop() == 0
