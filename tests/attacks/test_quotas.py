"""A client that has all that its quotas allow, and asks for more all the while, beside another client's job."""

from __future__ import annotations

import os
import socket
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context

import grpc
import numpy as np
import pytest

from switchml.control import client, rpc, v2_pb2
from tests.support.launch import Aggregator, contribution, good, join_all, leave_all, on_all, total

pytestmark = [pytest.mark.root, pytest.mark.timeout(3600)]
NOBODY, NUMEL, SECRET = 65534, 20_000, "ours"


def become_nobody() -> None:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def request(job: str, rank: int, world_size: int, number: int, **fields) -> v2_pb2.JoinRequest:
    address = v2_pb2.Address(ip=f"127.0.77.{1 + number % 2}", port=1 + number % 60_000)
    fields |= {"protocol": 2, "payload_bytes": 1024, "timeout_s": 3600, "data_address": address}
    return v2_pb2.JoinRequest(job=job, rank=rank, world_size=world_size, **fields)


def greedy(address: str, rounds: int) -> Counter[str]:
    """How often what was tried, and how often it was refused. Each round asks for a rank of a job, for slots, guesses
    a secret, and opens a connection; all that is granted is kept for 200 rounds."""
    tried: Counter[str] = Counter()
    host, port = address.split(":")
    with ExitStack() as stack:
        for number in range(rounds):
            if number % 200 == 0:
                stack.close()
                jobs = rpc.client(stack.enter_context(grpc.insecure_channel(address)), client.JOBS)
                streams = []
            new = number % 2
            for what, one in (
                ("joins", request(f"mine {number}" if new else "mine", 0 if new else number % 256, 256, 4 * number)),
                ("slots", request(f"slots {number}", 0, 1, 4 * number + 1, slots=65_536)),
                ("secrets", request("victim", 1, 2, 4 * number + 2, secret=str(number))),
            ):
                streams.append(jobs.Join(one))
                tried[what] += 1
                try:
                    next(streams[-1])
                except grpc.RpcError:
                    tried[f"{what} refused"] += 1
            tried["connections"] += 1
            stack.enter_context(socket.socket()).connect((host, int(port)))
    return tried


def test_a_client_at_every_quota_beside_a_job(attempts):
    aggregator, rounds, seed = Aggregator(), attempts.scaled(400), 0
    try:
        agents = join_all(aggregator.address, 2, job="victim", secret=SECRET)
        with ProcessPoolExecutor(1, get_context("spawn"), initializer=become_nobody) as pool:
            attack = pool.submit(greedy, aggregator.address, rounds)
            while not attack.done():
                results = good(on_all(agents, lambda agent: agent.allreduce(contribution(seed, agent.rank, NUMEL))))  # noqa: B023
                for result in results:
                    np.testing.assert_array_equal(result, total(seed, 2, NUMEL))
                seed += 1
            tried = attack.result()
        assert seed and tried["slots refused"] and tried["secrets refused"] == rounds
        (other,) = join_all(aggregator.address, 1, job="another", secret=SECRET)  # there is room for others
        leave_all([*agents, other])
    finally:
        aggregator.kill()
    attempts.record("joins, slots, connections and secrets of a client at its quotas", 4 * rounds)
    attempts.record("sums beside it", seed)
