"""p4app-switchML's client, as tests/support/v1_client.py has it, against `switchml aggregate`."""

from __future__ import annotations

import socket

import numpy as np
import pytest

from tests.support.launch import Aggregator, good, on_all
from tests.support.v1_client import LANES, WINDOW, WORKERS, V1Client


@pytest.fixture(params=["clean", "lossy"])
def aggregator(request):
    running = Aggregator("--v1", *(["--loss=0.01", "--seed=11"] if request.param == "lossy" else []))
    running.lossy = request.param == "lossy"
    yield running
    running.kill()


@pytest.fixture
def clients(aggregator):
    """Three connected clients on 127.0.77.x, all with the same port."""
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(WORKERS)]
    connected = []
    try:
        for rank, sock in enumerate(sockets):
            sock.bind((f"127.0.77.{rank + 1}", sockets[0].getsockname()[1]))
            connected.append(V1Client(rank, f"127.0.77.{rank + 1}", sock, aggregator.address, aggregator.data_address))
        good(on_all(connected, lambda client: client.connect()))
        yield connected
    finally:
        for client in connected:
            client.close()
        for sock in sockets:
            sock.close()


def test_all_reduce(aggregator, clients):
    """Integers and floats in turn, of lengths that fill the window, don't, and leave it at an odd place."""
    rng = np.random.default_rng(1)
    for numel, dtype in (
        (20_000, "int32"),
        (30_001, "float32"),
        (1, "float32"),
        (65, "int32"),
        (64 * WINDOW, "float32"),
        (9_999, "int32"),
    ):
        if dtype == "int32":
            inputs = [rng.integers(-(2**31), 2**31, numel).astype("int32") for _ in clients]
        else:
            inputs = [
                (rng.standard_normal(numel) * 10.0 ** rng.integers(-20, 20, numel)).astype("float32") for _ in clients
            ]
            inputs[0][: min(numel, 64)] = inputs[1][: min(numel, 64)] = 0  # a block that only one worker has
        results = good(on_all(clients, lambda client, inputs=inputs: client.all_reduce(inputs[client.rank])))
        assert len({result.tobytes() for result in results}) == 1
        if dtype == "int32":
            with np.errstate(over="ignore"):
                np.testing.assert_array_equal(
                    results[0], inputs[0] + inputs[1] + inputs[2]
                )  # v1 wraps, and so does NumPy
        else:
            exact = sum(array.astype("float64") for array in inputs)
            padded = np.zeros(-(-numel // LANES) * LANES)
            padded[:numel] = np.abs(inputs).max(0)
            # Half a step of n * 2^e / 2^31 for each worker, e being the block's exponent; and arithmetic in float32.
            largest = np.repeat(padded.reshape(-1, LANES).max(1), LANES)[:numel]
            bound = WORKERS * WORKERS * 2 * largest / 2**31 + np.abs(inputs).sum(0) * 2.0**-22
            assert (np.abs(results[0] - exact) <= bound).all()

    session = next(job for job in aggregator.status().jobs if job.protocol == 1)
    assert (session.world_size, session.payload_bytes, session.state) == (WORKERS, 256, "running")
    assert aggregator.status().refused["refused_address"] == 0
    retransmitted = sum(client.retransmitted for client in clients)
    assert sum(rank.counters["answered"] + rank.counters["duplicates"] for rank in session.ranks) <= retransmitted
    if aggregator.lossy:
        assert retransmitted > 10
        assert sum(rank.counters["answered"] for rank in session.ranks) > 0


def test_a_new_session_starts_with_clean_slots(aggregator, clients):
    """Rank 0's UdpSession wipes what the last session left, so a restarted client may begin its alternation anew."""
    for _ in range(2):
        for client in clients:
            client.shift = 0  # the job number goes on, so that a late answer to the last session is recognized
        results = good(on_all(clients, lambda client: client.all_reduce(np.full(64 * 7, client.rank, "int32"))))
        assert all((result == 3).all() for result in results)
        good(on_all(clients, lambda client: client.connect()))
    assert len([job for job in aggregator.status().jobs if job.protocol == 1 and job.state == "running"]) == 1
