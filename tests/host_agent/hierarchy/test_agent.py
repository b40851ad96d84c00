"""All-reduces in two levels: the same bits on all ranks, exact integers, each host's tensors once on the network."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from host_agent.agent import HostAgent
from host_agent.hierarchy.hosts import resolve
from host_agent.hierarchy.memory import BLOCK_BYTES, DEPTH
from switchml.errors import ConfigError, JoinError, SumOverflow, UnsupportedTensor
from tests.support.agents import reduce_all
from tests.support.examples import examples
from tests.support.launch import (
    DEADLINE_S,
    LocalAggregator,
    contribution,
    digest,
    good,
    leave_all,
    on_all,
    sparse_arrays,
    total,
)

DTYPES = ("float32", "float64", "float16", "int32", "int64")
LARGE = BLOCK_BYTES // 4 * (DEPTH + 1) + 77
"""Elements of more blocks than there are slots."""


def in_two_levels(arrays: list[np.ndarray], hosts, op: str) -> np.ndarray:
    """The slow, obvious reference: sums of each host in the order of its ranks, then over the hosts, all in the
    dtype's own arithmetic but for integers, which are Python's."""
    dtype, ranks = arrays[0].dtype, len(arrays)
    if dtype.kind == "i":
        totals = [sum(column) for column in zip(*(array.tolist() for array in arrays), strict=True)]
        if op == "mean":
            totals = [abs(whole) // ranks * (1 if whole >= 0 else -1) for whole in totals]
        return np.array(totals, dtype)
    wide = np.float32 if dtype == np.float16 else dtype.type
    host_sums = []
    for host in hosts:
        host_sum = arrays[host[0]].astype(wide)
        for rank in host[1:]:
            host_sum = host_sum + arrays[rank].astype(wide)
        host_sums.append(host_sum)
    result = sum(host_sums[1:], host_sums[0])
    return (result / wide(ranks) if op == "mean" else result).astype(dtype)


# Results


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("wire", ["int32", "int16", "int8"])
@pytest.mark.parametrize("transport", ["udp", "shm"])
def test_the_same_bits_on_all_ranks_and_in_every_run(join, transport, wire):
    digests = set()
    for _ in range(2):
        agents = join([2, 3], transport=transport, wire=wire)
        assert all((agent.transport, agent.wire) == (transport, wire) for agent in agents)
        generator = np.random.default_rng(5)
        arrays = [generator.standard_normal(100_003).astype("float32") for _ in agents]
        arrays[1][77], arrays[2][99] = np.inf, np.nan
        results = [
            reduce_all(agents, arrays),
            reduce_all(agents, arrays, op="mean"),
            reduce_all(agents, arrays, wire="int32"),
            reduce_all(agents, [array.astype("float16") for array in arrays]),
        ]
        digests |= {digest(of_rank) for of_rank in zip(*results, strict=True)}
        expected = in_two_levels(arrays, agents[0].hosts, "sum")
        finite = np.isfinite(expected)
        np.testing.assert_allclose(results[2][0][finite], expected[finite], rtol=0, atol=1e-5)
        assert not np.isfinite(results[0][0][[77, 99]]).any()
    assert len(digests) == 1


@pytest.fixture(scope="module")
def quintet(aggregator):
    """Five ranks on hosts of three and two."""
    host = "aabba"

    def one(rank: int) -> HostAgent:
        return HostAgent.join(
            aggregator.address, job="quintet", rank=rank, world_size=5, hierarchy=f"node:{host[rank]}"
        )

    agents = good(on_all(range(5), one))
    yield agents
    leave_all(agents)


@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_generated_calls(quintet, data):
    """Several calls under way at a time, of any dtype, size and op; integers up to the ends of their range."""
    assert quintet[0].hosts == ((0, 1, 4), (2, 3))
    calls = data.draw(
        st.lists(
            st.tuples(
                st.sampled_from(DTYPES),
                st.sampled_from([0, 1, 3, 255, 5000]),
                st.sampled_from(["sum", "mean"]),
                st.integers(0, 2**32 - 1),
            ),
            min_size=1,
            max_size=6,
        )
    )
    inputs = []
    for dtype, numel, _, seed in calls:
        generator = np.random.default_rng(seed)
        if dtype.startswith("int"):
            most = np.iinfo(dtype).max
            arrays = [generator.integers(-most, most, numel, dtype, endpoint=True) for _ in quintet]
            if numel:  # a last rank that brings the sum back into its range, though the host's may be out of it
                others = [sum(int(array[i]) for array in arrays[:4]) for i in range(numel)]
                arrays[3] = np.array(
                    [max(-most, min(most, int(a) - o)) for a, o in zip(arrays[3], others, strict=True)], dtype
                )
        else:
            arrays = [generator.integers(-50, 50, numel).astype(dtype) for _ in quintet]
        inputs.append(arrays)

    def work(agent: HostAgent) -> list:
        handles = [
            agent.allreduce(arrays[agent.rank], op=op, async_op=True)
            for arrays, (_, _, op, _) in zip(inputs, calls, strict=True)
        ]
        outcomes = []
        for handle in handles:
            try:
                outcomes.append(handle.wait(DEADLINE_S))
            except SumOverflow as error:
                outcomes.append((error.misfits, str(error)))
        return outcomes

    outcomes = good(on_all(quintet, work))
    for k, ((dtype, numel, op, _), arrays) in enumerate(zip(calls, inputs, strict=True)):
        misfits = 0
        if dtype.startswith("int"):
            limits = np.iinfo(dtype)
            sums = [sum(column) for column in zip(*(array.tolist() for array in arrays), strict=True)]
            misfits = sum(not limits.min <= whole <= limits.max for whole in sums)
        for of_rank in outcomes:
            if misfits:
                assert of_rank[k] == (misfits, f"{misfits} of {numel} sums do not fit {dtype}; use a wider dtype")
            elif dtype == "float32" and op == "mean":
                np.testing.assert_allclose(of_rank[k], in_two_levels(arrays, quintet[0].hosts, op), rtol=1e-6)
                assert of_rank[k].tobytes() == outcomes[0][k].tobytes()
            else:
                np.testing.assert_array_equal(of_rank[k], in_two_levels(arrays, quintet[0].hosts, op))


@pytest.mark.parametrize("op", ["sum", "mean"])
def test_more_blocks_than_slots(join, op):
    agents = join([2, 2])
    arrays = [contribution(9, rank, LARGE) for rank in range(4)]
    results = reduce_all(agents, arrays, op=op)
    np.testing.assert_array_equal(results[0], total(9, 4, LARGE) / np.float32(1 if op == "sum" else 4))
    assert len({digest([result]) for result in results}) == 1


def test_bfloat16_in_place(join):
    torch = pytest.importorskip("torch")
    agents = join([2, 1])
    inputs = [torch.arange(300_007).remainder(64).to(torch.bfloat16) * (rank + 1) for rank in range(3)]
    in_place = [x.clone() for x in inputs]
    good(on_all(agents, lambda agent: agent.allreduce(in_place[agent.rank], out=in_place[agent.rank])))
    expected = sum(x.float() for x in inputs).to(torch.bfloat16)
    assert all(torch.equal(x, expected) for x in in_place)


@pytest.mark.parametrize("sparse", ["on", "auto", "on:block=64"])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_sparse_calls(join, sparse, dtype):
    """Blocks that are zero on every host are skipped."""
    agents = join([2, 2])
    arrays = sparse_arrays(4, dtype, density=0.02)
    for _ in range(3):
        results = reduce_all(agents, arrays, sparse=sparse)
        np.testing.assert_array_equal(results[0], sum(arrays))
        assert len({digest([result]) for result in results}) == 1
    assert agents[0].stats()["streamed"] > 0 and agents[1].stats()["streamed"] == 0


@pytest.mark.parametrize("codec", ["topk:ratio=0.01", "onebit", "terngrad"])
def test_codecs(join, codec):
    """The same bits on all ranks as on each other, and for what is gathered as without hierarchy."""
    agents = join([2, 1])
    generator = np.random.default_rng(1)
    arrays = [generator.standard_normal(5000).astype("float32") for _ in agents]
    steps = [reduce_all(agents, arrays, codec=codec, op="mean", name="x") for _ in range(2)]
    for results in steps:
        assert len({digest([result]) for result in results}) == 1 and np.isfinite(results[0]).all()


def test_several_aggregators(join, aggregator):
    with LocalAggregator() as second:
        agents = join([2, 2], at=f"{aggregator.address},{second.address}")
        results = reduce_all(agents, [contribution(1, rank, 300_007) for rank in range(4)])
        np.testing.assert_array_equal(results[0], total(1, 4, 300_007))
        leave_all(agents)


# What the network carries


def test_a_host_sends_each_tensor_once(join):
    agents = join([3, 2], transport="udp")
    reduce_all(agents, [contribution(1, rank, 256 * 100) for rank in range(5)])
    sent = [agent.stats()["sent"] for agent in agents]
    assert sent[0] >= 100 and sent[3] >= 100 and [sent[1], sent[2], sent[4]] == [0, 0, 0]
    for agent in agents:
        stats = agent.stats()
        assert stats["calls"] == 1 and stats["bytes"] == 4 * 256 * 100 and stats["goodput_bps"] > 0
        assert set(stats) == set(agents[0].stats())


def test_a_host_of_each_rank_is_no_hierarchy(join):
    agents = join([1, 1])
    assert all(type(agent) is HostAgent for agent in agents)
    reduce_all(agents, [np.ones(5, "float32")] * 2)


def test_global_ranks_go_to_the_leaders(join):
    agents = join([2, 2])
    for agent in agents:
        agent.global_ranks = (10, 11, 12, 13)
    assert agents[0]._network.global_ranks == (10, 12) and agents[3].global_ranks == (10, 11, 12, 13)


# What may be asked for


def test_choices(monkeypatch):
    monkeypatch.delenv("SWITCHML_HIERARCHY", raising=False)
    assert resolve(None) == ("none", "") and resolve("node") == ("node", "") and resolve("node:a b") == ("node", "a b")
    monkeypatch.setenv("SWITCHML_HIERARCHY", "node:left")
    assert resolve(None) == ("node", "left") and resolve("none") == ("none", "")
    for wrong in ("rack", "none:left", "nodes"):
        with pytest.raises(ConfigError, match="expected none, node or node:NAME"):
            resolve(wrong)


def test_what_is_refused_is_refused_before_anything_is_sent(join):
    agents = join([2, 1])
    with pytest.raises(UnsupportedTensor):
        agents[0].allreduce(np.zeros(3, "uint8"))
    with pytest.raises(ConfigError, match="wire 'int8'"):
        agents[0].allreduce(np.zeros(3, "float32"), wire="int8")
    reduce_all(agents, [np.ones(5, "float32")] * 3)


def test_ranks_without_hierarchy_do_not_mix(aggregator):
    outcomes = on_all(
        ["node", "none"],
        lambda hierarchy: HostAgent.join(
            aggregator.address,
            job="mixed",
            rank=int(hierarchy == "none"),
            world_size=2,
            timeout_s=1.0,
            hierarchy=hierarchy,
        ),
    )
    assert all(isinstance(outcome, JoinError) and "is missing" in str(outcome) for outcome in outcomes), outcomes


def test_a_leader_that_is_refused_says_so_to_its_host(aggregator):
    outcomes = on_all(
        range(2),
        lambda rank: HostAgent.join(
            aggregator.address, job="refused", rank=rank, world_size=2, hierarchy="node", transport="raw"
        ),
    )
    assert all(isinstance(each, ConfigError) and "requires a P4 switch" in str(each) for each in outcomes), outcomes
