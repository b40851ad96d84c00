"""Collectives end to end: ranks as threads of this process, through a software aggregator, over UDP and in shared
memory, and through a P4 switch, held against NumPy."""

import numpy as np
import pytest

from host_agent.collectives import CollectiveCall, decode, encode
from switchml.errors import ConfigError, RanksDisagree, SumOverflow, UnsupportedTensor
from tests.support.launch import contribution, good, join_all, leave_all, on_all, total
from tests.support.p4_served import Served
from tests.support.started import lasting

REDUCE = {
    "min": np.minimum.reduce,
    "max": np.maximum.reduce,
    "band": np.bitwise_and.reduce,
    "bor": np.bitwise_or.reduce,
    "bxor": np.bitwise_xor.reduce,
}
INTEGERS = ("bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
FLOATS = ("float16", "float32", "float64")


@pytest.fixture(scope="module", params=["udp", "shm", "frames", "lanes"])
def trio(request):
    """Three agents that the tests share; those that send frames do so to a P4 switch, whose program has wide words or a
    register a lane."""
    place = request.getfixturevalue({"frames": "p4_switch", "lanes": "p4_lanes"}.get(request.param, "aggregator"))
    transport, payload_bytes = ("frames", 256) if request.param == "lanes" else (request.param, 1024)
    agents = join_all(place.address, 3, job="trio", transport=transport, payload_bytes=payload_bytes)
    assert [(each.transport, each.only_sums) for each in agents] == [(transport, request.param == "lanes")] * 3
    yield agents
    leave_all(agents)


p4_switch = lasting(Served)
p4_lanes = lasting(Served, program="switchml_lanes")


def odd(rank: int, numel: int, dtype: str) -> np.ndarray:
    """Any bits that this dtype may have, NaN, infinities and both zeros among them."""
    generator = np.random.default_rng((11, rank))
    if dtype == "bool":
        return generator.integers(0, 2, numel).astype(bool)
    x = np.frombuffer(generator.bytes(numel * np.dtype(dtype).itemsize), dtype).copy()
    if np.dtype(dtype).kind == "f":
        x[:6] = np.roll([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0], rank)
    return x


def call(agents, method: str, arrays, **options) -> list:
    """`arrays[rank]` given to a method of every rank at once."""
    return good(on_all(agents, lambda agent: getattr(agent, method)(arrays[agent.rank], **options)))


@pytest.mark.slow(keep=12)
@pytest.mark.parametrize("numel", [0, 1, 1023, 40_001])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "complex128"])
def test_bytes_arrive_as_they_are(trio, numel, dtype):
    arrays = [odd(rank, numel, "uint8") for rank in range(3)]
    if dtype != "uint8":
        arrays = [np.resize(x, (2, numel * 16)).view(dtype) if numel else x.astype(dtype) for x in arrays]
    for result in call(trio, "all_gather", arrays):
        assert result.dtype == dtype and result.tobytes() == b"".join(x.tobytes() for x in arrays)
    for root in range(3):
        for result in call(trio, "broadcast", arrays, root=root):
            assert result.shape == arrays[0].shape and result.tobytes() == arrays[root].tobytes()


@pytest.mark.slow(keep=5)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "int64"])
def test_sums_in_parts(trio, dtype):
    """Integers, whose sums are exact in every dtype: those of an all-reduce, bit by bit."""
    for numel in (1, 300, 20_000):
        arrays = [contribution(3, rank, 3 * numel, dtype) for rank in range(3)]
        kept, wanted = [x.copy() for x in arrays], total(3, 3, 3 * numel, dtype)
        for rank, result in enumerate(call(trio, "reduce_scatter", arrays)):
            np.testing.assert_array_equal(result, wanted[rank * numel : (rank + 1) * numel])
        reduced = call(trio, "reduce", arrays, root=2)
        assert reduced[:2] == [None, None]
        np.testing.assert_array_equal(reduced[2], wanted)
        assert all((x == before).all() for x, before in zip(arrays, kept, strict=True))
    means = call(trio, "reduce_scatter", arrays, op="mean")
    if dtype.startswith("float"):
        np.testing.assert_allclose(np.concatenate(means), wanted.astype("float64") / 3, rtol=2e-3)


@pytest.mark.parametrize("op", REDUCE)
def test_other_ops(trio, op):
    for dtype in INTEGERS + (FLOATS if op in ("min", "max") else ()):
        arrays = [odd(rank, 999, dtype) for rank in range(3)]
        wanted = REDUCE[op](arrays)
        parts = call(trio, "reduce_scatter", arrays, op=op)
        np.testing.assert_array_equal(np.concatenate(parts), wanted, err_msg=dtype)
        np.testing.assert_array_equal(call(trio, "reduce", arrays, op=op, root=1)[1], wanted, err_msg=dtype)
        if dtype in ("float32", "float64", "float16", "int32", "int64"):
            for result in call(trio, "allreduce", arrays, op=op):
                np.testing.assert_array_equal(result, wanted, err_msg=dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_rounded_once(trio, dtype):
    """Where the aggregator adds it up as it is, sums and means are those of float32 in the order of ranks; a P4 switch
    adds lanes, of which a value has 24 bits below its block's largest."""
    torch = pytest.importorskip("torch", reason="needs torch for bfloat16")
    kind = getattr(torch, dtype)
    generator = torch.Generator().manual_seed(3)
    x = [torch.randn(3000, generator=generator).to(kind) for _ in range(3)]
    total = x[0].float() + x[1].float() + x[2].float()
    for op, wanted in (("sum", total.to(kind)), ("mean", (total / 3).to(kind))):
        for result in call(trio, "allreduce", [each.clone() for each in x], op=op):
            if trio[0].transport == "frames":
                torch.testing.assert_close(result, wanted)
            else:
                assert torch.equal(result, wanted)


def test_half_precision_in_lanes(join):
    """A job, or a call, that says so has the sums of int32 lanes, as every aggregator makes them; ranks that differ are
    told."""
    x = [contribution(8, rank, 60_000).astype("float16") for rank in range(2)]
    agents, others = join(2, wire="int32"), join(2)
    results = call(agents, "allreduce", x)
    sent = agents[0].stats()["sent"]
    np.testing.assert_array_equal(call(others, "allreduce", x, wire="int32"), results)
    assert others[0].stats()["sent"] == sent
    call(others, "allreduce", x)
    assert others[0].stats()["sent"] - sent < 0.6 * sent  # half the packets, and a seal
    wires = ["int32", None]
    errors = on_all(others, lambda agent: agent.allreduce(x[agent.rank], wire=wires[agent.rank]))
    assert all(isinstance(error, RanksDisagree) and "in two bytes each" in str(error) for error in errors), errors


def test_barriers_and_calls_of_all_kinds_at_once(trio):
    """They overlap, as each rank submits them all before it waits."""
    x = [contribution(5, rank, 3000) for rank in range(3)]

    def rounds(agent):
        handles = []
        for _ in range(4):
            handles.append(agent.reduce_scatter(x[agent.rank], async_op=True))
            handles.append(agent.all_gather(x[agent.rank], async_op=True))
            handles.append(agent.allreduce(x[agent.rank], async_op=True))
            handles.append(agent.broadcast(x[agent.rank], root=1, async_op=True))
        agent.barrier()
        return [handle.wait(100) for handle in handles]

    sums = total(5, 3, 3000)
    for rank, results in enumerate(good(on_all(trio, rounds))):
        for part, whole, reduced, sent in zip(*(results[k::4] for k in range(4)), strict=True):
            np.testing.assert_array_equal(part, sums[1000 * rank : 1000 * rank + 1000])
            np.testing.assert_array_equal(whole, np.concatenate(x))
            np.testing.assert_array_equal(reduced, sums)
            np.testing.assert_array_equal(sent, x[1])


def test_in_place(trio):
    """A share of the input as output, and the reverse, as FSDP has them; and one that overlaps otherwise."""

    def in_place(agent):
        x = contribution(6, agent.rank, 3000)
        agent.reduce_scatter(x, out=x[1000 * agent.rank : 1000 * (agent.rank + 1)])
        agent.all_gather(x[1000 * agent.rank : 1000 * (agent.rank + 1)], out=x)
        y = np.concatenate([contribution(6, agent.rank, 3000), np.zeros(500, "float32")])
        agent.reduce_scatter(y[:3000], out=y[2500:])
        return x, y[2500:]

    for rank, (whole, part) in enumerate(good(on_all(trio, in_place))):
        np.testing.assert_array_equal(whole, total(6, 3, 3000))
        np.testing.assert_array_equal(part, total(6, 3, 3000)[1000 * rank : 1000 * (rank + 1)])


@pytest.mark.parametrize("options", [{"authenticate": True, "transport": "udp"}, {"wire": "exact"}, {"wire": "int16"}])
def test_jobs_with_options(join, options):
    agents = join(2, **options)
    x = [contribution(7, rank, 5000) for rank in range(2)]
    parts = np.concatenate(call(agents, "reduce_scatter", x))
    np.testing.assert_allclose(parts, total(7, 2, 5000), rtol=1e-3, atol=0.1 if options.get("wire") == "int16" else 0)
    for result in call(agents, "all_gather", x):
        np.testing.assert_array_equal(result, np.concatenate(x))


def test_with_tags_a_root_sends_no_data(join):
    """It keeps its lanes behind the tag: the packets of the others are as long as ever, those of the root are not."""
    agents = join(2, authenticate=True, transport="udp")
    x = [np.arange(rank, rank + 20_000, dtype="int32") for rank in range(2)]
    for root, op in ((0, "sum"), (1, "max"), (0, "bxor")):
        reduced = call(agents, "reduce", x, root=root, op=op)
        wanted = x[0] + x[1] if op == "sum" else REDUCE[op](x)
        np.testing.assert_array_equal(reduced[root], wanted)
        assert reduced[1 - root] is None
    parts = np.concatenate(call(agents, "reduce_scatter", x))
    np.testing.assert_array_equal(parts, x[0] + x[1])
    assert all(agent.stats()["refused_auth"] == 0 for agent in agents)


def test_a_rank_alone(join):
    (agent,) = join(1)
    x = contribution(8, 0, 2000)
    for result in (agent.reduce_scatter(x), agent.all_gather(x), agent.broadcast(x), agent.reduce(x, op="max")):
        np.testing.assert_array_equal(result, x)
    agent.barrier()


def test_what_is_refused(join):
    agents = join(2)
    x = np.ones(4, "float32")
    with pytest.raises(ConfigError, match="multiple of 2"):
        agents[0].reduce_scatter(np.ones(3))
    with pytest.raises(ConfigError, match="root 2"):
        agents[0].broadcast(x, root=2)
    with pytest.raises(ConfigError, match="op 'product'"):
        agents[0].reduce(x, op="product")
    with pytest.raises(UnsupportedTensor, match="bor expects integers"):
        agents[0].reduce_scatter(x, op="bor")
    with pytest.raises(UnsupportedTensor, match="sums expect"):
        agents[0].reduce_scatter(np.ones(4, "uint8"))
    with pytest.raises(UnsupportedTensor, match="out: expected an array"):
        agents[0].all_gather(x, out=np.ones(4, "float32"))
    with pytest.raises(UnsupportedTensor, match="plain values"):
        agents[0].all_gather(np.array([None]))
    agents[0].takes_collectives = False
    with pytest.raises(ConfigError, match="barrier: this aggregator supports only sums over all ranks"):
        agents[0].barrier()


def test_an_overflow_is_its_owners_alone(join):
    agents = join(2)
    x = np.array([2**31 - 1, 0], "int32")
    errors = on_all(agents, lambda agent: agent.reduce_scatter(x))
    assert isinstance(errors[0], SumOverflow) and errors[1].tolist() == [0]


def test_ranks_that_call_different_collectives(join):
    agents = join(2)
    x = np.ones(4, "float32")
    calls = [lambda agent: agent.reduce(x, root=1), lambda agent: agent.broadcast(x, root=1)]
    errors = on_all(agents, lambda agent: calls[agent.rank](agent))
    assert all(isinstance(error, RanksDisagree) for error in errors)
    assert all("a reduce of 4 float32 to rank 1" in str(error) for error in errors)
    assert all("a broadcast of 4 float32 from rank 1" in str(error) for error in errors)


@pytest.mark.parametrize("op", ["min", "max"])
def test_codes_of_bfloat16(op):
    """Torch's type, of which NumPy has none: both zeros, subnormals, infinities; NaN stays NaN."""
    bits = np.array([0x8000, 0, 1, 0x8001, 0x3F80, 0xBF80, 0x7F80, 0xFF80, 0x7FC0, 0xFFC1], np.uint16)
    out = np.zeros_like(bits)
    collective = CollectiveCall("all_reduce", bits.ctypes.data, out.ctypes.data, bits.size, "bfloat16", 2, op)
    codes = encode(collective, bits.size)
    decode(collective, codes)
    assert out[:8].tolist() == bits[:8].tolist() and (out[8:] & 0x7FFF > 0x7F80).all()
    order = np.argsort(bits[:8].view("<u2").astype(np.uint32) << 16, kind="stable")
    values = (bits[:8].astype(np.uint32) << 16).view(np.float32)
    ranked = codes[:8].astype(np.uint64)
    pairs = [(i, j) for i in order for j in order if values[i] < values[j]]
    assert all((ranked[i] < ranked[j]) == (op == "max") for i, j in pairs)
