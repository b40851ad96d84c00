"""Run by pytorch/test_backend.py in four processes: every collective over `switchml`, checked on each rank."""

import json
import sys
import threading
import time
from datetime import timedelta

import psutil
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from tests.support.group import RANK, SIZE, init

torch.set_num_threads(1)


def calls() -> int:
    """All-reduces that the aggregator has done for this rank."""
    return dist.group.WORLD.agent.stats()["calls"]


def expect(tensor: torch.Tensor, values) -> None:
    expected = torch.as_tensor(values, dtype=tensor.dtype)
    assert tensor.shape == expected.shape, (tensor.shape, expected.shape)
    assert torch.equal(tensor, expected), (tensor, expected)


def of_rank(rank: int, numel: int, dtype: torch.dtype) -> torch.Tensor:
    """Numbers whose sums over the ranks every dtype holds exactly."""
    values = torch.randint(-32, 33, (numel,), generator=torch.Generator().manual_seed(1000 + rank))
    return values.to(dtype) / 4 if dtype.is_floating_point else values.to(dtype)


def total(numel: int, dtype: torch.dtype) -> torch.Tensor:
    return sum(of_rank(rank, numel, dtype) for rank in range(SIZE))


def every_dtype():
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64):
        for numel in (1, 5, 1000, 70_001):
            before = calls()
            tensor = of_rank(RANK, numel, dtype)
            dist.all_reduce(tensor)
            expect(tensor, total(numel, dtype))
            tensor = of_rank(RANK, numel, dtype)
            dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
            if dtype.is_floating_point:
                expect(tensor, total(numel, dtype) / SIZE)
            else:
                expect(tensor, total(numel, dtype).div(SIZE, rounding_mode="trunc"))
            assert calls() == before + 2, "the aggregator was not asked"
    big = torch.tensor([(1 << 60) + RANK, -(1 << 60) - RANK])
    dist.all_reduce(big)
    expect(big, [(1 << 62) + 6, -(1 << 62) - 6])
    too_big = torch.full((3,), 1 << 62)
    work = dist.all_reduce(too_big, async_op=True)
    try:
        work.wait()
    except OverflowError as error:
        assert "int64" in str(error)
    else:
        raise AssertionError("an int64 sum wrapped in silence")


def every_layout():
    transposed = of_rank(RANK, 600, torch.float32).reshape(20, 30).t()
    dist.all_reduce(transposed)
    expect(transposed, total(600, torch.float32).reshape(20, 30).t())
    everything = of_rank(RANK, 90, torch.float32)
    dist.all_reduce(everything[::3])
    where = torch.arange(90) % 3 == 0
    expect(everything, torch.where(where, total(90, torch.float32), of_rank(RANK, 90, torch.float32)))
    image = of_rank(RANK, 2 * 3 * 4 * 5, torch.float32).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last)
    dist.all_reduce(image)
    expect(image, total(120, torch.float32).reshape(2, 3, 4, 5))
    for expanded in (torch.full((1,), 1.0 + RANK).expand(6), torch.full((1, 3), 1.0 + RANK).expand(2, 3).t()):
        dist.all_reduce(expanded)
        expect(expanded, torch.full(expanded.shape, 10.0))
        assert 0 in expanded.stride()
    mixed = torch.full((1,), 1.0 + RANK).expand(6) if RANK else torch.full((6,), 1.0)
    dist.all_reduce(mixed)
    expect(mixed, [10.0] * 6)
    empty = torch.zeros(3, 0)
    work = dist.all_reduce(empty, async_op=True)
    assert work.wait() and work.is_completed() and work.get_future().wait()[0].shape == (3, 0)
    scalar = torch.tensor(1.5)
    dist.all_reduce(scalar)
    expect(scalar, 6.0)
    parameter = torch.ones(4, requires_grad=True)
    with torch.no_grad():
        dist.all_reduce(parameter)
    expect(parameter.detach(), [4.0] * 4)
    sum_and_difference = torch.tensor([1 + 2j, RANK - 1j])
    dist.all_reduce(sum_and_difference)
    expect(sum_and_difference, [4 + 8j, 6 - 4j])
    not_finite = torch.tensor([1.0, float("inf"), float("nan") if RANK == 2 else 0.0, 2.0])
    dist.all_reduce(not_finite)
    assert not_finite.isfinite().tolist() == [True, False, False, True] and not_finite[1] == float("inf")
    expect(not_finite[[0, 3]], [4.0, 8.0])


def many_outstanding():
    tensors = [of_rank(RANK, 1 + 997 * i % 5000, torch.float32) for i in range(60)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    seen = []
    futures = [
        work.get_future().then(lambda future, i=i: seen.append(i) or future.value()[0].sum())
        for i, work in enumerate(works)
    ]
    for work in reversed(works):
        assert work.wait(timedelta(seconds=30))
        assert work.is_completed() and work.is_success() and work.exception() is None
    for i, (tensor, future) in enumerate(zip(tensors, futures, strict=True)):
        expect(tensor, total(1 + 997 * i % 5000, torch.float32))
        assert future.wait() == tensor.sum()
    assert sorted(seen) == list(range(60))
    assert works[0].result()[0] is tensors[0]
    coalesced = [of_rank(RANK, numel, torch.float32) for numel in (3, 0, 700)]
    dist.group.WORLD.allreduce_coalesced(coalesced).wait()
    for tensor in coalesced:
        expect(tensor, total(tensor.numel(), torch.float32) if tensor.numel() else torch.zeros(0))
    threads = [threading.Thread(target=lambda: [dist.all_reduce(torch.ones(100)) for _ in range(20)]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def what_gloo_does():
    before = calls()
    ranks = torch.arange(SIZE, dtype=torch.float32)
    tensor = torch.tensor([RANK, -RANK])
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    expect(tensor, [3, 0])
    tensor = torch.tensor([RANK + 1.0])
    dist.all_reduce(tensor, op=dist.ReduceOp.PRODUCT)
    expect(tensor, [24.0])
    tensor = torch.tensor([1, 2, RANK], dtype=torch.uint8)
    dist.all_reduce(tensor)
    expect(tensor, [4, 8, 6])
    tensor = torch.tensor([RANK, RANK])
    dist.broadcast(tensor, src=2)
    expect(tensor, [2, 2])
    dist.barrier()
    dist.group.WORLD.monitored_barrier(timedelta(seconds=20), False)
    dist.monitored_barrier(timeout=timedelta(seconds=20), wait_all_ranks=True)
    dist.monitored_barrier(timeout=20.0)
    try:
        dist.monitored_barrier(timeout="20")
    except (TypeError, ValueError):
        pass
    else:
        raise AssertionError("a timeout that is text was taken")
    gathered = [torch.zeros(2) for _ in range(SIZE)]
    dist.all_gather(gathered, torch.full((2,), float(RANK)))
    expect(torch.stack(gathered), torch.stack([ranks, ranks], dim=1))
    into = torch.zeros(SIZE)
    dist.all_gather_into_tensor(into, torch.tensor([float(RANK)]))
    expect(into, ranks)
    mine = torch.zeros(2)
    dist.reduce_scatter(mine, [torch.full((2,), float(i)) for i in range(SIZE)])
    expect(mine, [4.0 * RANK] * 2)
    dist.reduce_scatter_tensor(mine, torch.arange(8.0))
    expect(mine, [8.0 * RANK, 8.0 * RANK + 4])
    received = [torch.zeros(1) for _ in range(SIZE)]
    dist.all_to_all(received, [torch.tensor([10.0 * RANK + i]) for i in range(SIZE)])
    expect(torch.cat(received), 10 * ranks + RANK)
    swapped = torch.zeros(SIZE)
    dist.all_to_all_single(swapped, 10.0 * RANK + ranks)
    expect(swapped, 10 * ranks + RANK)
    tensor = torch.tensor([1.0])
    dist.reduce(tensor, dst=1)
    assert RANK != 1 or tensor == 4
    gathered = [torch.zeros(1) for _ in range(SIZE)] if RANK == 0 else None
    dist.gather(torch.tensor([float(RANK)]), gathered, dst=0)
    if gathered is not None:
        expect(torch.cat(gathered), ranks)
    tensor = torch.zeros(1)
    dist.scatter(tensor, [torch.tensor([float(i)]) for i in range(SIZE)] if RANK == 0 else None, src=0)
    expect(tensor, [float(RANK)])
    right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    tensor = torch.zeros(3)
    sending = dist.isend(torch.full((3,), float(RANK)), right)
    assert dist.recv(tensor, left) == left
    sending.wait()
    expect(tensor, [float(left)] * 3)
    sending = dist.isend(torch.full((3,), float(RANK)), right)
    assert dist.recv(tensor) == left
    sending.wait()
    pair = [dist.P2POp(dist.isend, torch.full((3,), float(RANK)), right), dist.P2POp(dist.irecv, tensor, left)]
    for work in dist.batch_isend_irecv(pair):
        work.wait()
    expect(tensor, [float(left)] * 3)
    taken = 8  # all but PRODUCT, sums of uint8, monitored barriers, and what ranks send each other
    agreed = 6  # barriers before what Gloo does for all ranks
    assert calls() == before + taken + agreed, (calls(), before)


def every_byte():
    """Of any dtype, layout and op: what Gloo gives, or plain arithmetic."""
    for dtype in (torch.bool, torch.uint8, torch.bfloat16, torch.complex64):
        mine = of_rank(RANK, 77, torch.float32).to(dtype).reshape(7, 11)
        everybodys = [torch.zeros_like(mine) for _ in range(SIZE)]
        dist.all_gather(everybodys, mine.t().contiguous().t())
        for rank, other in enumerate(everybodys):
            expect(other, of_rank(rank, 77, torch.float32).to(dtype).reshape(7, 11))
        shared = mine.t() if RANK == 3 else torch.zeros(11, 7, dtype=dtype)
        dist.broadcast(shared, src=3)
        expect(shared, of_rank(3, 77, torch.float32).to(dtype).reshape(7, 11).t())
    low, bits = of_rank(RANK, 300, torch.float32), of_rank(RANK, 300, torch.int64)
    dist.all_reduce(low, op=dist.ReduceOp.MIN)
    expect(low, torch.stack([of_rank(rank, 300, torch.float32) for rank in range(SIZE)]).amin(0))
    dist.all_reduce(bits, op=dist.ReduceOp.BXOR)
    parts = [of_rank(rank, 300, torch.int64) for rank in range(SIZE)]
    expect(bits, parts[0] ^ parts[1] ^ parts[2] ^ parts[3])
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        part = torch.zeros(500, dtype=dtype)
        dist.reduce_scatter_tensor(part, of_rank(RANK, 500 * SIZE, dtype))
        expect(part, total(500 * SIZE, dtype)[500 * RANK : 500 * (RANK + 1)])


def objects():
    everybodys = [None] * SIZE
    dist.all_gather_object(everybodys, {"rank": RANK})
    assert everybodys == [{"rank": rank} for rank in range(SIZE)]
    shared = ["hello" if RANK == 1 else None]
    dist.broadcast_object_list(shared, src=1)
    assert shared == ["hello"]
    mine = [None]
    dist.scatter_object_list(mine, [f"for {rank}" for rank in range(SIZE)] if RANK == 0 else None, src=0)
    assert mine == [f"for {RANK}"]


def functional():
    from torch.distributed import _functional_collectives as functional

    before = calls()
    expect(functional.wait_tensor(functional.all_reduce(torch.ones(5), "sum", dist.group.WORLD)), [4.0] * 5)
    assert calls() == before + 1
    expect(
        functional.wait_tensor(functional.all_gather_tensor(torch.tensor([RANK]), 0, dist.group.WORLD)),
        list(range(SIZE)),
    )
    scattered = functional.reduce_scatter_tensor(torch.arange(4.0), "sum", 0, dist.group.WORLD)
    expect(functional.wait_tensor(scattered), [4.0 * RANK])


def sub_groups():
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    alone = [dist.new_group([rank]) for rank in range(SIZE)]
    mine = halves[RANK // 2]
    tensors = [torch.full((300,), float(RANK)) for _ in range(3)]
    works = [
        dist.all_reduce(tensors[0], group=mine, async_op=True),
        dist.all_reduce(tensors[1], async_op=True),
        dist.all_reduce(tensors[2], group=alone[RANK], async_op=True),
    ]
    for work in works:
        work.wait()
    expect(tensors[0], [1.0 if RANK < 2 else 5.0] * 300)
    expect(tensors[1], [6.0] * 300)
    expect(tensors[2], [float(RANK)] * 300)
    assert mine.agent.stats()["calls"] == 1 and alone[RANK].agent is None
    tensor = torch.tensor([RANK])
    dist.broadcast(tensor, src=2 * (RANK // 2), group=mine)
    expect(tensor, [2 * (RANK // 2)])
    dist.destroy_process_group(mine)
    dist.barrier()
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    expect(tensor, [4.0, 4.0])


def losses(group, hook=None, state=None, cpp_hook=None) -> list[float]:
    """A small model's training over `group`, six steps."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    model = DistributedDataParallel(model, process_group=group, bucket_cap_mb=0.002)
    if hook is not None:
        model.register_comm_hook(state, hook)
    if cpp_hook is not None:
        model._register_builtin_comm_hook(cpp_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(RANK)
    images, labels = torch.randn(32, 16, generator=generator), torch.randint(0, 4, (32,), generator=generator)
    curve = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        curve.append(loss.item())
    weights = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    everybodys = [torch.zeros_like(weights) for _ in range(SIZE)]
    dist.all_gather(everybodys, weights)
    assert all(torch.equal(weights, others) for others in everybodys), "the ranks' parameters differ"
    return curve


def ddp():
    gloo = dist.new_group(backend="gloo")
    before = calls()
    ours, theirs = losses(None), losses(gloo)
    assert calls() >= before + 6
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=0, atol=1e-6)
    for hook, tolerance in [(default_hooks.allreduce_hook, 1e-6), (default_hooks.fp16_compress_hook, 2e-3)]:
        curve = losses(None, hook)
        assert max(abs(a - b) for a, b in zip(curve, theirs, strict=True)) < tolerance, (hook, curve, theirs)
    cpp_hooks = dist.BuiltinCommHookType
    for cpp_hook, tolerance in [(cpp_hooks.ALLREDUCE, 1e-6), (cpp_hooks.FP16_COMPRESS, 2e-3)]:
        curve = losses(None, cpp_hook=cpp_hook)
        assert max(abs(a - b) for a, b in zip(curve, theirs, strict=True)) < tolerance, (cpp_hook, curve, theirs)
    # Waits for an all-reduce inside the callback of another one.
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
    curve = losses(None, powerSGD_hook.powerSGD_hook, state)
    assert curve[-1] < curve[0]


def uneven_inputs():
    """The Reducer keeps the C++ half of a Work alone."""
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    with model.join(divide_by_initial_world_size=False):
        for _ in range(2 + RANK):
            model(torch.ones(2, 4)).sum().backward()
    expect(model.module.weight.grad, [[2.0 * (2 + RANK)] * 4])


def profiled():
    """A torch profiler sees our all-reduces, with the shapes, and those that Gloo does for us once ranks agree."""
    highest = [torch.full((numel,), float(RANK)) for numel in (2, 3)]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        dist.all_reduce(torch.ones(3, 4))
        dist.all_reduce(torch.ones(5), op=dist.ReduceOp.MAX)
        dist.group.WORLD.allreduce_coalesced(highest, dist.ReduceOp.MAX).wait()
        dist.all_reduce(torch.ones(6), op=dist.ReduceOp.PRODUCT)
    for tensor in highest:
        expect(tensor, torch.full_like(tensor, SIZE - 1))
    ours = [event for event in profile.events() if event.name == "switchml:all_reduce"]
    assert [event.input_shapes for event in ours] == [[[3, 4]], [[5]], [[2], [3]]] and ours[0].is_async
    assert [event.input_shapes for event in profile.events() if event.name == "gloo:all_reduce"] == [[[6]]]


def what_is_left() -> dict[str, list[str]]:
    me = psutil.Process()
    return {
        "threads": [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()],
        "children": [child.name() for child in me.children(recursive=True)],
        "sockets": [str(connection) for connection in me.net_connections()],
    }


def settled() -> dict[str, list[str]]:
    """What is left after a moment: kernels and libraries close some things a little later. Rank 0's aggregator
    stays."""
    deadline = time.monotonic() + 60
    while ((left := what_is_left())["threads"] or left["sockets"]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


if __name__ == "__main__":
    sections = [every_dtype, every_layout, many_outstanding, what_gloo_does, objects, functional, sub_groups, ddp]
    sections += [uneven_inputs, profiled, every_byte]
    report = {}
    init()
    assert dist.get_backend() == "switchml" and dist.group.WORLD.name() == "switchml"
    for section in sections:
        begin = time.monotonic()
        section()
        dist.barrier()
        report[section.__name__] = round(time.monotonic() - begin, 2)
    report["children_before"] = len(psutil.Process().children(recursive=True))
    dist.destroy_process_group()
    report["left"] = settled()
    # Once more in the same process, over the same store.
    init()
    again = torch.ones(3)
    dist.all_reduce(again)
    expect(again, [4.0] * 3)
    dist.destroy_process_group()
    report["left_again"] = settled()
    json.dump(report, sys.stdout)
