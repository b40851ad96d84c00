"""Sparse all-reduces of agents, end to end: the same sums as dense ones over every transport, and `auto`'s choice."""

import numpy as np
import pytest

from host_agent import density
from host_agent.agent import HostAgent
from switchml.errors import ConfigError, RanksDisagree
from switchml.protocol.sparse import Sparse
from tests.support.agents import reduce_all
from tests.support.launch import LocalAggregator, digest, good, join_all, leave_all, on_all, sparse_arrays
from tests.support.started import lasting

NUMEL = 100_003


aggregator = lasting(LocalAggregator, tunnel=True)


@pytest.fixture(scope="module", params=["udp", "shm"])
def trio(aggregator, request):
    agents = join_all(aggregator.address, 3, job="sparse", transport=request.param)
    assert [agent.transport for agent in agents] == [request.param] * 3
    yield agents
    leave_all(agents)


@pytest.mark.slow(keep=10)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "int64"])
@pytest.mark.parametrize("block", [32, 256])
def test_sums_are_those_of_dense(trio, dtype, block):
    for share in (0.0, 0.03, 1.0):
        arrays = sparse_arrays(3, dtype, share)
        wanted = sum(array.astype(np.float64) for array in arrays).astype(dtype)
        results = reduce_all(trio, arrays, sparse=Sparse(block))
        assert all(digest([result]) == digest([wanted]) for result in results)


def test_in_place_and_out_and_mean(trio):
    arrays = [array.reshape(-1, 7)[:, ::-1] for array in sparse_arrays(3, "float32", 0.1, 70_000)]
    wanted = sum(array.astype(np.float64) for array in arrays)
    targets = [np.full_like(array, 5, order="C") for array in arrays]
    good(on_all(trio, lambda a: a.allreduce(arrays[a.rank], op="mean", out=targets[a.rank], sparse=True)))
    assert all((target == (wanted.astype(np.float32) / np.float32(3))).all() for target in targets)
    copies = [np.ascontiguousarray(array) for array in arrays]
    good(on_all(trio, lambda a: a.allreduce(copies[a.rank], out=copies[a.rank], sparse="on:block=32")))
    assert all((copy == wanted).all() for copy in copies)


def test_what_is_below_the_threshold_is_zero(trio):
    arrays = sparse_arrays(3, "float32", 0.05)
    noisy = [np.where(array == 0, np.float32(1e-4), array) for array in arrays]
    results = reduce_all(trio, noisy, sparse=Sparse(64, threshold=1e-3))
    kept = [np.repeat(np.add.reduceat(array != 0, np.arange(0, NUMEL, 64)) > 0, 64)[:NUMEL] for array in arrays]
    wanted = sum(np.where(keep, array, 0).astype(np.float64) for keep, array in zip(kept, noisy, strict=True))
    assert digest(results[:1]) == digest(results[1:2]) == digest(results[2:])
    assert np.abs(results[0] - wanted).max() < 1e-5


def test_sparse_and_dense_calls_in_one_pipeline(trio):
    arrays = sparse_arrays(3, "float32", 0.2, 30_000)
    wanted = sum(array.astype(np.float64) for array in arrays)

    def many(agent):
        x = arrays[agent.rank]
        choices = (True, None, "on:block=64", True, False)
        handles = [agent.allreduce(x, async_op=True, sparse=sparse) for sparse in choices]
        return [handle.wait() for handle in handles]

    for results in good(on_all(trio, many)):
        assert all((result == wanted).all() for result in results)


def test_through_the_tunnel_and_two_aggregators(aggregator):
    arrays = sparse_arrays(2, "float32", 0.05)
    wanted = sum(array.astype(np.float64) for array in arrays)
    for address, transport in ((aggregator.address, "zmq"), (f"{aggregator.address},{aggregator.address}", "udp")):
        agents = join_all(address, 2, job=f"far {transport}", transport=transport, sparse="on")
        try:
            assert all((result == wanted).all() for result in reduce_all(agents, arrays))
            assert sum(agent.stats()["streamed"] for agent in agents) > 0
        finally:
            leave_all(agents)


def test_auto_learns_from_results(trio):
    """Dense tensors go sparse once, and again when one in sixteen shows zeros."""
    full, thin = sparse_arrays(3, "float32", 1.0, 65_536), sparse_arrays(3, "float32", 0.02, 65_536)

    def streamed(arrays) -> int:
        before = trio[0].stats()["streamed"]
        reduce_all(trio, arrays, sparse="auto")
        return trio[0].stats()["streamed"] - before

    assert streamed(full) > 0
    assert [streamed(full) for _ in range(density.LOOK_EVERY - 1)] == [0] * (density.LOOK_EVERY - 1)
    assert streamed(thin) == 0  # the one that is looked at
    assert all(streamed(thin) > 0 for _ in range(3))


def test_auto_decides_alike_on_ranks_that_are_ahead(trio):
    arrays = sparse_arrays(3, "float32", 1.0, 66_000)
    wanted = sum(array.astype(np.float64) for array in arrays)

    def many(agent):
        handles = []
        for _ in range(2 * density.LOOK_EVERY + 3):
            handles.append(agent.allreduce(arrays[agent.rank], async_op=True, sparse="auto"))
            if agent.rank == 1:
                handles[-1].wait()
        return [handle.wait() for handle in handles]

    for results in good(on_all(trio, many)):
        assert all((result == wanted).all() for result in results)


@pytest.mark.parametrize("sparse", ["maybe", "on:block=x", "on:blocks=3", "auto:threshold"])
def test_nonsense_is_refused(aggregator, sparse):
    with pytest.raises(ConfigError, match="sparse"):
        HostAgent.join(aggregator.address, job="nonsense", rank=0, world_size=1, sparse=sparse)


def test_ranks_that_differ_find_out(aggregator):
    agents = join_all(aggregator.address, 2, job="differ", transport="udp")
    try:
        arrays = sparse_arrays(2, "float32", 0.5, 5000)
        outcomes = on_all(
            agents, lambda agent: agent.allreduce(arrays[agent.rank], sparse=bool(agent.rank), timeout_s=20)
        )
        assert any(isinstance(outcome, RanksDisagree) for outcome in outcomes)
        assert all(isinstance(outcome, Exception) for outcome in outcomes)
    finally:
        leave_all(agents)
