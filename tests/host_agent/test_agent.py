"""The agent end to end: ranks as threads of this process, through a software aggregator and its control plane.

Numbers come from `launch.contribution`: integers, whose sums are exact in every dtype used, so that results are
compared bit by bit. What moves data runs over UDP and through shared memory.
"""

from __future__ import annotations

import os
import select
import signal
import threading

import numpy as np
import pytest

from host_agent.agent import HostAgent
from switchml.errors import (
    CollectiveTimeout,
    ConfigError,
    JobError,
    JoinError,
    UnsupportedTensor,
)
from switchml.protocol.worker import TASKS
from tests.support.agents import reduce_all, same_bits
from tests.support.fresh import in_fresh_process
from tests.support.launch import (
    DEADLINE_S,
    contribution,
    digest,
    good,
    join_all,
    leave_all,
    on_all,
    total,
    until,
)

DTYPES = ("float32", "float64", "float16", "int32", "int64")
SIZES = (0, 1, 255, 256, 257, 100_003)


# Sums and means


@pytest.mark.slow(keep=30)
@pytest.mark.parametrize("numel", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sum(trio, dtype, numel):
    inputs = [contribution(1, rank, numel, dtype) for rank in range(3)]
    kept = [array.copy() for array in inputs]
    results = reduce_all(trio, inputs)
    for result, before, after in zip(results, kept, inputs, strict=True):
        assert result.dtype == dtype and result.shape == (numel,)
        np.testing.assert_array_equal(result, total(1, 3, numel, dtype))
        np.testing.assert_array_equal(after, before)  # the input stays as it is
    assert same_bits(results)


@pytest.mark.parametrize("dtype", DTYPES)
def test_mean(trio, dtype):
    results = reduce_all(trio, [contribution(2, rank, 1000, dtype) for rank in range(3)], op="mean")
    exact = total(2, 3, 1000, "float64") / 3
    if dtype.startswith("int"):
        np.testing.assert_array_equal(results[0], np.trunc(exact).astype(dtype))
    else:
        np.testing.assert_allclose(results[0], exact, rtol=2 * np.finfo(dtype).eps, atol=1e-6)
    assert same_bits(results)


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e20])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_floats_of_any_size(trio, dtype, scale):
    """Gradients as they come: the error stays below what the block's largest value allows (docs/protocol.md)."""
    inputs = [(np.random.default_rng((3, rank)).standard_normal(5000) * scale).astype(dtype) for rank in range(3)]
    results = reduce_all(trio, inputs)
    exact = sum(array.astype("float64") for array in inputs)
    largest = max(np.abs(array).max() for array in inputs)
    np.testing.assert_allclose(results[0], exact, rtol=0, atol=largest * 2.0**-22)
    assert same_bits(results)


def test_values_that_are_not_finite(trio):
    """A loss scaler looks for them: they are where they were, on every rank, and the rest of the tensor is right."""
    inputs = [contribution(4, rank, 2000) for rank in range(3)]
    inputs[0][3] = np.inf
    inputs[1][700] = np.nan
    inputs[2][701] = -np.inf
    inputs[0][1999], inputs[1][1999] = np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        expected = inputs[0] + inputs[1] + inputs[2]
    results = reduce_all(trio, inputs)
    for result in results:
        np.testing.assert_array_equal(result, expected)
    assert np.isnan(expected[[700, 1999]]).all()


def test_extremes(trio):
    for dtype in ("int32", "int64"):
        limits = np.iinfo(dtype)
        inputs = [
            np.array([limits.max, limits.min, 0, limits.max - 7], dtype),
            np.zeros(4, dtype),
            np.array([0, 0, -1, 7], dtype),
        ]
        for result in reduce_all(trio, inputs):
            assert result.tolist() == [limits.max, limits.min, -1, limits.max]
    tiny = np.finfo("float32").smallest_subnormal
    largest = np.finfo("float32").max
    inputs = [np.array([tiny, 0, 0], "float32"), np.zeros(3, "float32"), np.array([tiny, 0, -tiny], "float32")]
    for result in reduce_all(trio, inputs):
        np.testing.assert_array_equal(result, np.array([2 * tiny, 0, -tiny], "float32"))
    inputs = [np.full(3, value, "float32") for value in (largest, -largest, largest)]
    for result in reduce_all(trio, inputs):
        np.testing.assert_allclose(result, largest, rtol=1e-6)


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("world_size", [1, 2, 8, 16])
def test_world_sizes(join, world_size):
    agents = join(world_size)
    for dtype in ("float32", "int64"):
        results = reduce_all(agents, [contribution(5, rank, 3000, dtype) for rank in range(world_size)])
        np.testing.assert_array_equal(results[0], total(5, world_size, 3000, dtype))
        assert same_bits(results)


@pytest.mark.parametrize("payload_bytes, slots", [(256, 2), (256, 64), (1024, 2), (1024, 4096)])
def test_packet_sizes_and_slots(join, payload_bytes, slots):
    agents = join(2, payload_bytes=payload_bytes, slots=slots)
    for dtype in ("float32", "float64", "int32"):
        for numel in (1, 70, 20_000):
            results = reduce_all(agents, [contribution(6, rank, numel, dtype) for rank in range(2)])
            np.testing.assert_array_equal(results[0], total(6, 2, numel, dtype))
            assert same_bits(results)


@pytest.mark.parametrize("transport", ["udp", "shm"])
@pytest.mark.parametrize("wire, digits", [("int16", 2.0**-12), ("int8", 2.0**-4)])
def test_narrow_wires(join, wire, digits, transport):
    """Fewer bits a value, the same bits on every rank; integers keep all of theirs."""
    agents = join(2, wire=wire, transport=transport)
    inputs = [np.random.default_rng((7, rank)).standard_normal(100_003).astype("float32") for rank in range(2)]
    results = reduce_all(agents, inputs)
    np.testing.assert_allclose(results[0], inputs[0] + inputs[1], rtol=0, atol=np.abs(inputs).max() * digits)
    assert same_bits(results)
    results = reduce_all(agents, [contribution(8, rank, 5000, "int64") for rank in range(2)])
    np.testing.assert_array_equal(results[0], total(8, 2, 5000, "int64"))


# Arrays of all kinds


def views(array: np.ndarray) -> dict[str, np.ndarray]:
    """The 12 x 10 `array` as different memory layouts; all hold the same numbers."""
    wide = np.zeros((12, 23), array.dtype)
    wide[:, 1:21:2] = array
    backwards = np.ascontiguousarray(array[::-1, ::-1])
    read_only = array.copy()
    read_only.flags.writeable = False
    misaligned = np.frombuffer(b"x" + array.tobytes(), array.dtype, offset=1).reshape(array.shape)
    return {
        "contiguous": array,
        "Fortran": np.asfortranarray(array),
        "every other column": wide[:, 1:21:2],
        "backwards": backwards[::-1, ::-1],
        "read-only": read_only,
        "not aligned": misaligned,
        "list": array.tolist() if array.dtype == "float64" else array,
    }


@pytest.mark.parametrize("dtype", DTYPES)
def test_memory_layouts(trio, dtype):
    inputs = [views(contribution(7, rank, 120, dtype).reshape(12, 10)) for rank in range(3)]
    for name in inputs[0]:
        results = reduce_all(trio, [views_of_rank[name] for views_of_rank in inputs])
        for result in results:
            assert result.shape == (12, 10) and result.flags.c_contiguous and result.flags.writeable, name
            np.testing.assert_array_equal(result, total(7, 3, 120, dtype).reshape(12, 10), name)


def test_scalars(trio):
    results = reduce_all(trio, [np.float32(rank + 1) for rank in range(3)])
    assert [(result.shape, result) for result in results] == [((), 6.0)] * 3


@pytest.mark.parametrize("dtype", DTYPES)
def test_in_place(trio, dtype):
    arrays = [contribution(8, rank, 1000, dtype) for rank in range(3)]
    results = good(on_all(trio, lambda agent: agent.allreduce(arrays[agent.rank], out=arrays[agent.rank])))
    for array, result in zip(arrays, results, strict=True):
        assert result is array
        np.testing.assert_array_equal(array, total(8, 3, 1000, dtype))


@pytest.mark.parametrize("shift", [1, -1, 300])
def test_input_and_output_that_overlap(trio, shift):
    memory = [np.zeros(50_300, "float32") for _ in range(3)]
    lower, upper = slice(0, 50_000), slice(abs(shift), 50_000 + abs(shift))
    source, target = (lower, upper) if shift > 0 else (upper, lower)
    for rank in range(3):
        memory[rank][source] = contribution(9, rank, 50_000)
    good(on_all(trio, lambda agent: agent.allreduce(memory[agent.rank][source], out=memory[agent.rank][target])))
    for array in memory:
        np.testing.assert_array_equal(array[target], total(9, 3, 50_000))


@pytest.mark.parametrize("dtype", [*DTYPES, "bfloat16"])
def test_torch_tensors(trio, dtype):
    torch = pytest.importorskip("torch")
    kind = getattr(torch, dtype)
    # bfloat16 has 8 significant bits: numbers below 64 stay exact.
    inputs = [torch.from_numpy(contribution(10, rank, 990, "int64") % 64).to(kind).reshape(33, 30) for rank in range(3)]
    expected = (inputs[0].double() + inputs[1].double() + inputs[2].double()).to(kind)
    for result in reduce_all(trio, inputs):
        assert result.dtype == kind and torch.equal(result, expected)
    for result in reduce_all(trio, [tensor.t() for tensor in inputs]):
        assert result.is_contiguous() and torch.equal(result, expected.t())
    in_place = [tensor.clone() for tensor in inputs]
    good(on_all(trio, lambda agent: agent.allreduce(in_place[agent.rank], out=in_place[agent.rank])))
    assert all(torch.equal(tensor, expected) for tensor in in_place)
    flat = [torch.cat([tensor.flatten(), torch.zeros(1, dtype=kind)]) for tensor in inputs]
    good(on_all(trio, lambda agent: agent.allreduce(flat[agent.rank][:-1], out=flat[agent.rank][1:])))
    assert all(torch.equal(tensor[1:], expected.flatten()) for tensor in flat)
    with_gradient = [tensor.clone().requires_grad_() for tensor in inputs] if kind.is_floating_point else inputs
    assert not any(result.requires_grad for result in reduce_all(trio, with_gradient))


# Refusals: what is refused is refused before anything is sent, so the ranks stay together


@pytest.mark.parametrize(
    "array, message",
    [
        (np.zeros(3, "uint8"), "dtype .*uint8.*expected float32"),
        (np.zeros(3, "complex64"), "complex64"),
        (np.zeros(3, bool), "bool"),
        (np.zeros(3, ">f4"), "native byte order"),
        (np.array(["a"]), "expected float32"),
        (np.array([None]), "object"),
    ],
)
def test_arrays_that_are_refused(trio, array, message):
    with pytest.raises(UnsupportedTensor, match=message):
        trio[0].allreduce(array)


def test_torch_tensors_that_are_refused(trio):
    torch = pytest.importorskip("torch")
    for tensor, message in (
        (torch.zeros(2, dtype=torch.uint8), "dtype uint8"),
        (torch.zeros(2, 2).to_sparse(), "sparse"),
        (torch.zeros(2, device="meta"), "meta"),
    ):
        with pytest.raises(UnsupportedTensor, match=message):
            trio[0].allreduce(tensor)
    with pytest.raises(UnsupportedTensor, match="out: expected a contiguous"):
        trio[0].allreduce(torch.zeros(4, 4), out=torch.zeros(4, 4).t())


@pytest.mark.parametrize(
    "out, message",
    [
        (np.zeros(4, "float32"), "shape"),
        (np.zeros(3, "float64"), "dtype float32"),
        (np.zeros(6, "float32")[::2], "C-contiguous"),
        (np.frombuffer(bytes(12), "float32"), "writeable"),
        ([0.0, 0.0, 0.0], "expected an array"),
    ],
)
def test_outputs_that_are_refused(trio, out, message):
    with pytest.raises(UnsupportedTensor, match=message):
        trio[0].allreduce(np.zeros(3, "float32"), out=out)


@pytest.mark.slow(keep=1)
def test_wrong_arguments(trio, aggregator, monkeypatch):
    with pytest.raises(ConfigError, match="op 'product': expected one of sum, mean, min, max"):
        trio[0].allreduce(np.zeros(3, "float32"), op="product")
    with pytest.raises(UnsupportedTensor, match="dtype uint4"):
        trio[0].allreduce_address(0, 0, 1, "uint4", "sum", lambda error: None)
    at = aggregator.address
    for rank, world_size in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(ConfigError, match=f"rank {rank} of {world_size}: expected"):
            HostAgent.join(at, job="x", rank=rank, world_size=world_size)
    with pytest.raises(ConfigError, match="can't receive on 192.0.2.1: .*bind_ip"):
        HostAgent.join(at, job="x", rank=0, world_size=1, bind_ip="192.0.2.1")
    for options, message in (
        ({"payload_bytes": 512}, "payload of 512 bytes"),
        ({"slots": 3}, "3 slots"),
        ({"world_size": 257}, "world size 257"),
        ({"job": ""}, "job name"),
    ):
        with pytest.raises(JoinError, match=message):
            HostAgent.join(at, **{"job": "x", "rank": 0, "world_size": 1} | options)
    with pytest.raises(ConfigError):
        HostAgent.join("127.0.0.1:nonsense", job="x", rank=0, world_size=1)
    with pytest.raises(JoinError, match="no aggregator answered at 127.0.0.1:1 "):
        HostAgent.join("127.0.0.1:1", job="x", rank=0, world_size=1, timeout_s=0.3)
    monkeypatch.setenv("SWITCHML_JOIN_TIMEOUT", "250ms")
    with pytest.raises(JoinError, match=r"no aggregator answered at 127.0.0.1:1 within 0.25 s"):
        HostAgent.join("127.0.0.1:1", job="x", rank=0, world_size=1)
    with pytest.raises(JoinError, match="rank 1 is missing"):
        HostAgent.join(at, job="x", rank=0, world_size=2, timeout_s=0.3)


def test_the_address_comes_from_the_environment(aggregator, monkeypatch):
    monkeypatch.delenv("SWITCHML_AGGREGATOR", raising=False)
    with pytest.raises(ConfigError, match="set SWITCHML_AGGREGATOR"):
        HostAgent.join(job="x", rank=0, world_size=1)
    monkeypatch.setenv("SWITCHML_AGGREGATOR", aggregator.address)
    with HostAgent.join(job="x", rank=0, world_size=1) as agent:
        assert agent.allreduce(np.ones(3, "int32")).tolist() == [1, 1, 1]


# Many calls


@pytest.mark.slow
def test_more_calls_than_can_be_under_way(trio):
    """The agent queues what the worker has no record for; results come back in any case, each to its own call."""
    calls = TASKS + 200
    dtypes = ("float32", "int32", "float16", "float64")

    def work(agent):
        handles = []
        for i in range(calls):
            mine = contribution(i, agent.rank, 1 + i % 300, dtypes[i % 4])
            handles.append(agent.allreduce(mine, async_op=True))
        return [handle.wait(DEADLINE_S) for handle in handles]

    results = good(on_all(trio, work))
    for i in range(calls):
        np.testing.assert_array_equal(results[0][i], total(i, 3, 1 + i % 300, dtypes[i % 4]))
    assert len({digest(of_rank) for of_rank in results}) == 1


def test_handles(trio):
    arrays = [contribution(11, rank, 1000) for rank in range(3)]
    early = [trio[rank].allreduce(arrays[rank], async_op=True) for rank in range(2)]
    with pytest.raises(CollectiveTimeout, match="not done after 0.05 s of waiting"):
        early[0].wait(0.05)
    assert not early[0].is_done()
    trio[2].allreduce(arrays[2])
    for handle in early:
        np.testing.assert_array_equal(handle.wait(DEADLINE_S), total(11, 3, 1000))
        assert handle.is_done()
        assert handle.wait() is handle.wait(0)


def test_calls_from_several_threads(trio):
    """The order must be the same on all ranks: here a turn decides which thread's call comes next."""
    threads, calls = 4, 25

    def work(agent):
        turn = threading.Condition()
        state = {"next": 0}
        results: dict[int, np.ndarray] = {}

        def one_thread(me: int) -> None:
            for call in range(calls):
                number = call * threads + me
                with turn:
                    assert turn.wait_for(lambda number=number: state["next"] == number, DEADLINE_S)
                    mine = contribution(number, agent.rank, 500)
                    handle = agent.allreduce(mine, async_op=True)
                    state["next"] += 1
                    turn.notify_all()
                results[number] = handle.wait(DEADLINE_S)

        good(on_all(range(threads), one_thread))
        return [results[number] for number in range(threads * calls)]

    for results in good(on_all(trio, work, timeout_s=2 * DEADLINE_S)):
        for number, result in enumerate(results):
            np.testing.assert_array_equal(result, total(number, 3, 500))


def test_completion_callbacks(trio, caplog):
    """`allreduce_address` tells from the agent's thread, once; a callback that fails harms nobody."""
    arrays = [contribution(12, rank, 1000) for rank in range(3)]
    told: list[tuple] = []

    def work(agent):
        done = threading.Event()

        def on_done(error) -> None:
            told.append((agent.rank, error, threading.current_thread().name))
            done.set()
            raise ValueError("the callback's own fault")

        address = arrays[agent.rank].ctypes.data
        agent.allreduce_address(address, address, 1000, "float32", "sum", on_done, keep=arrays[agent.rank])
        assert done.wait(DEADLINE_S)
        return agent.allreduce(np.ones(1, "int32"))

    assert good(on_all(trio, work)) == [3, 3, 3]
    assert sorted(told) == [(rank, None, f"switchml-agent-{rank}") for rank in range(3)]
    assert all((array == total(12, 3, 1000)).all() for array in arrays)
    assert "its completion callback failed" in caplog.text


def test_two_jobs_in_one_process(join):
    """Same ranks, same moment, different jobs."""
    first, second = join(2), join(3)

    def work(agent):
        seed, n = (100, 2) if agent in first else (200, 3)
        for i in range(30):
            result = agent.allreduce(contribution(seed + i, agent.rank, 3000))
            np.testing.assert_array_equal(result, total(seed + i, n, 3000))

    good(on_all([*first, *second], work))


@pytest.mark.slow
def test_the_gil_is_free_while_data_moves(trio):
    """A thread that counts must get on while a large tensor is on its way."""
    arrays = [contribution(13, rank, 4_000_000) for rank in range(3)]
    counted = 0
    stop = threading.Event()

    def count() -> None:
        nonlocal counted
        while not stop.is_set():
            counted += 1

    handles = [agent.allreduce(arrays[agent.rank], async_op=True) for agent in trio[:2]]
    thread = threading.Thread(target=count)
    thread.start()
    handles.append(trio[2].allreduce(arrays[2], async_op=True))
    before = counted
    until(lambda: all(handle.is_done() for handle in handles))
    progress = counted - before
    stop.set()
    thread.join()
    assert progress > 1000
    np.testing.assert_array_equal(handles[0].wait(), total(13, 3, 4_000_000))


def test_stats(join):
    agents = join(2)
    reduce_all(agents, [contribution(14, rank, 25_600) for rank in range(2)])
    stats = agents[0].stats()
    assert stats["calls"] == 1 and stats["bytes"] == 4 * 25_600
    assert stats["received"] >= 100 and stats["sent"] == 100 + stats["repeats"] + stats["retransmitted"]
    assert stats["refused"] == 0 and stats["goodput_bps"] > 0 and stats["rtt_s"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["udp", "shm"])
def test_a_forked_child_is_told_and_leaves_its_parents_job_alone(aggregator, transport):
    pid, called, waited, results = in_fresh_process(fork_during_a_sum, aggregator.address, transport)
    assert f"is process {pid}, from which this one was forked" in called
    assert f"this all-reduce is process {pid}'s" in waited
    assert results == [3, 3, 3]


def fork_during_a_sum(address: str, transport: str) -> tuple[int, str, str, list[float]]:
    """(this process, what the child is told when it calls, when it waits for this process's sum, that sum by rank)."""
    agents = join_all(address, 3, job=f"forked {transport}", transport=transport)
    reading, writing = os.pipe()
    waiting = agents[0].allreduce(np.ones(1000, "float32"), async_op=True)
    child = os.fork()
    if child == 0:
        for call in (lambda: agents[0].allreduce(np.ones(3, "float32"), timeout_s=DEADLINE_S), waiting.wait):
            try:
                call()
            except JobError as error:
                os.write(writing, f"{error}\n".encode())
        agents[0].leave()
        os._exit(0)
    os.close(writing)
    try:
        with open(reading) as errors:
            until(lambda: select.select([errors], [], [], 0)[0])
            called, waited = errors.read().splitlines()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    handles = [agent.allreduce(np.ones(1000, "float32"), async_op=True) for agent in agents[1:]]
    results = [float(handle.wait(DEADLINE_S)[0]) for handle in (waiting, *handles)]
    leave_all(agents)
    return os.getpid(), called, waited, results
