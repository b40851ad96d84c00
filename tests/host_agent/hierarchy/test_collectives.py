"""Collectives in two levels, on hosts with equally many ranks and on others, held against NumPy."""

import numpy as np
import pytest

from host_agent.agent import HostAgent
from host_agent.hierarchy.memory import BLOCK_BYTES, DEPTH
from switchml.errors import PeerLost, RanksDisagree, SumOverflow
from switchml.protocol.packet import LARGE_BYTES
from tests.host_agent.test_collectives import REDUCE, call, odd
from tests.support.launch import contribution, good, leave_all, on_all, total, until

HOSTS = {"even": "abba", "uneven": "aab", "one": "aa"}
NUMELS = (1, 1000, BLOCK_BYTES // 16 + 5)


@pytest.fixture(scope="module", params=HOSTS)
def agents(aggregator, request):
    """Ranks of a host need not follow each other."""
    host = HOSTS[request.param]
    where = {"job": f"collectives {request.param}", "world_size": len(host)}

    def one(rank: int) -> HostAgent:
        return HostAgent.join(aggregator.address, rank=rank, hierarchy=f"node:{host[rank]}", **where)

    joined = good(on_all(range(len(host)), one))
    yield joined
    leave_all(joined)


@pytest.mark.slow(keep=6)
@pytest.mark.parametrize("numel", [0, *NUMELS])
def test_bytes_arrive_as_they_are(agents, numel):
    n = len(agents)
    arrays = [odd(rank, 4 * numel, "uint8").view("float32") for rank in range(n)]
    for result in call(agents, "all_gather", arrays):
        assert result.tobytes() == b"".join(x.tobytes() for x in arrays)
    for root in range(n):
        for result in call(agents, "broadcast", arrays, root=root):
            assert result.tobytes() == arrays[root].tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "int64"])
def test_sums(agents, dtype):
    """Of integers, exact but for a last rounding to float16."""
    n = len(agents)
    for numel in NUMELS:
        arrays = [contribution(3, rank, n * numel, dtype) for rank in range(n)]
        kept, wanted = [x.copy() for x in arrays], total(3, n, n * numel, "float64").astype(dtype)
        for rank, result in enumerate(call(agents, "reduce_scatter", arrays)):
            np.testing.assert_array_equal(result, wanted[rank * numel : (rank + 1) * numel])
        reduced = call(agents, "reduce", arrays, root=n - 1)
        assert reduced[:-1] == [None] * (n - 1)
        np.testing.assert_array_equal(reduced[-1], wanted)
        assert all((x == before).all() for x, before in zip(arrays, kept, strict=True))


def test_means_in_place(agents):
    n, numel = len(agents), 1000
    arrays = [contribution(4, rank, n * numel, "float32") for rank in range(n)]
    wanted = total(4, n, n * numel, "float32") / n
    parts = [x[rank * numel : (rank + 1) * numel] for rank, x in enumerate(arrays)]
    outs = dict(zip(agents, parts, strict=True))
    good(on_all(agents, lambda agent: agent.reduce_scatter(arrays[agent.rank], op="mean", out=outs[agent])))
    for rank, part in enumerate(parts):
        np.testing.assert_allclose(part, wanted[rank * numel : (rank + 1) * numel], rtol=1e-6)
    good(on_all(agents, lambda agent: agent.all_gather(outs[agent], out=arrays[agent.rank])))
    for array in arrays:
        np.testing.assert_allclose(array, wanted, rtol=1e-6)


OPS = [(op, dtype) for op in REDUCE for dtype in ("int16", "uint64")]
OPS += [(op, dtype) for op in ("min", "max") for dtype in ("float32", "float64")]


@pytest.mark.parametrize("only_sums", [False, True], ids=["all ops", "only sums"])
@pytest.mark.parametrize(("op", "dtype"), OPS)
def test_other_ops(agents, op, dtype, only_sums, monkeypatch):
    """Where the aggregator has them, and as at a P4 program with a register a lane."""
    n = len(agents)
    for agent in agents:
        monkeypatch.setattr(agent, "only_sums", only_sums)
    arrays = [odd(rank, 300 * n, dtype) for rank in range(n)]
    for x in arrays:
        x[x == 0] = 0  # NumPy takes either zero
    wanted = REDUCE[op](arrays)
    for rank, result in enumerate(call(agents, "reduce_scatter", arrays, op=op)):
        np.testing.assert_array_equal(result, wanted[rank * 300 : (rank + 1) * 300])
    np.testing.assert_array_equal(call(agents, "reduce", arrays, op=op, root=0)[0], wanted)
    if dtype in ("float32", "float64"):
        for result in call(agents, "allreduce", arrays, op=op):
            np.testing.assert_array_equal(result, wanted)


def test_barriers_among_calls_of_all_kinds(agents):
    """More blocks than there are slots, all under way at once."""
    n = len(agents)
    arrays = [contribution(5, rank, n * 500, "float32") for rank in range(n)]
    wanted = total(5, n, n * 500, "float32")

    def many(agent: HostAgent) -> list[np.ndarray]:
        x = arrays[agent.rank]
        handles = []
        for _ in range(DEPTH):
            handles.append(agent.allreduce(x, async_op=True))
            handles.append(agent.reduce_scatter(x, async_op=True))
            handles.append(agent.all_gather(x, async_op=True))
        agent.barrier()
        assert all(handle.is_done() for handle in handles)  # of one queue, in order
        return [handle.wait() for handle in handles]

    for rank, results in enumerate(good(on_all(agents, many))):
        for summed, part, gathered in zip(results[0::3], results[1::3], results[2::3], strict=True):
            np.testing.assert_array_equal(summed, wanted)
            np.testing.assert_array_equal(part, wanted[rank * 500 : (rank + 1) * 500])
            np.testing.assert_array_equal(gathered, np.concatenate(arrays))


def test_integers_that_do_not_fit(agents):
    n = len(agents)
    arrays = [np.full(n, 2**30, "int32") for _ in range(n)]
    outcomes = on_all(agents, lambda agent: agent.reduce_scatter(arrays[agent.rank]))
    if n * 2**30 > 2**31 - 1:
        assert all(isinstance(outcome, SumOverflow) for outcome in outcomes)


def test_each_byte_once_on_the_link(join):
    """Two hosts of two ranks: the leaders send what one rank a host would send."""
    numel = 64 * 1024
    for kind, share in (("all_gather", 2 * numel), ("reduce_scatter", 2 * numel), ("broadcast", numel)):
        agents = join([2, 2], wire="int32")
        x = np.ones(numel if kind != "reduce_scatter" else 4 * numel, np.float32)
        good(on_all(agents, lambda agent, kind=kind, x=x: getattr(agent, kind)(x)))
        stats = [agent.stats() for agent in agents]
        assert stats[1]["sent"] == stats[3]["sent"] == 0
        chunks = {"all_gather": 2, "reduce_scatter": 2, "broadcast": 1}[kind] * share * 4 // LARGE_BYTES
        for leader in (stats[0], stats[2]):
            packets = leader["sent"] - leader["retransmitted"] - leader["repeats"]
            assert chunks < packets <= chunks + 4  # and a seal for each block


def test_ranks_of_a_host_that_differ(join):
    agents = join([2, 1])
    x = np.ones(8, np.float32)
    outcomes = on_all(agents[:2], lambda agent: (agent.all_gather if agent.rank else agent.reduce)(x))
    assert all(isinstance(outcome, RanksDisagree) for outcome in outcomes)
    assert "rank 0 reduce[8]; rank 1 all-gather[32]" in str(outcomes[0])


def test_a_rank_that_left(join):
    """Whoever waits for it, on its host or another one, learns who it is."""
    agents = join([2, 1])
    agents[1].leave()
    for outcome in on_all([agents[0], agents[2]], lambda agent: agent.all_gather(np.ones(8, np.float32))):
        assert isinstance(outcome, PeerLost) and 1 in outcome.ranks


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("waits, leaves, refuses", [(2, 1, 0), (0, 2, 1)])
def test_a_call_under_way_ends_when_a_rank_that_it_waits_for_can_only_fail(join, waits, leaves, refuses):
    """One rank has heard that another left before it calls, so it never takes part."""
    agents = join([2, 1])
    handle = agents[waits].all_gather(np.ones(8, np.float32), async_op=True)
    agents[leaves].leave()
    until(lambda: leaves in agents[refuses]._membership.departed)
    for wait in (lambda: agents[refuses].all_gather(np.ones(8, np.float32)), lambda: handle.wait(timeout_s=60)):
        with pytest.raises(PeerLost) as caught:
            wait()
        assert leaves in caught.value.ranks or refuses in caught.value.ranks
