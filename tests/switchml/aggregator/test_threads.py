"""Several aggregator threads behind one control port: jobs spread, their packets find them, by every transport."""

import numpy as np
import pytest

from switchml.aggregator.threads import ThreadedDataplane
from switchml.control.dataplane import JobSpec
from switchml.errors import ConfigError
from tests.support.launch import Aggregator, good, join_all, leave_all, on_all


def spec(job_id: int, port: int, protocol: int = 2, ip: str = "127.0.0.1") -> JobSpec:
    return JobSpec(job_id, protocol, 1, 4, 256, ((ip, port),), tag=job_id)


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


@pytest.mark.parametrize(("port", "threads"), [(65535, 2), (0, 0)])
def test_threads_that_can_not_be(port, threads):
    with pytest.raises(ConfigError, match="expected at least 1"):
        ThreadedDataplane(port=port, threads=threads)


@pytest.mark.parametrize("transport", ["udp", "shm", "zmq"])
def test_one_job_uses_as_many_threads_as_it_lists(transport):
    aggregator = Aggregator("--threads=2", *(["--tunnel"] if transport == "zmq" else []))
    try:
        agents = join_all(f"{aggregator.address},{aggregator.address}", 2, job="wide", transport=transport)
        values = [np.full(200_000, rank + 1, np.float32) for rank in range(2)]
        results = good(on_all(range(2), lambda rank: agents[rank].allreduce(values[rank])))
        assert all((result == 3).all() for result in results)
        shards = [job for job in aggregator.status().jobs if job.name.startswith("wide.")]
        assert len(shards) == 2 and all(job.ranks[0].counters["accepted"] > 100 for job in shards)
        leave_all(agents)
    finally:
        assert aggregator.stop() == 0
