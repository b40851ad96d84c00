"""Two ranks whose calls differ, each time in a group of its own: what each hears. And what Gloo does with tensors that
are strided, and callbacks with the caller's modes."""

import json
import os
import time

import torch
import torch.distributed as dist

RANK = int(os.environ["RANK"])
dist.set_debug_level_from_env()  # torch may have been imported before the variable was set
dist.init_process_group("switchml", init_method=os.environ["RENDEZVOUS"], rank=RANK, world_size=2)


def either(first, second):
    return (first, second)[RANK]


def gather(group):
    x = torch.ones(either(4, 5))
    dist.gather(x, [torch.empty_like(x) for _ in range(2)] if RANK == 0 else None, group=group)


DIFFERENT = {
    "a dtype of Gloo's": lambda group: dist.all_reduce(
        torch.ones(10, dtype=either(torch.float32, torch.uint8)), group=group
    ),
    "sizes of Gloo's": lambda group: dist.all_reduce(torch.ones(either(3, 5)), op=dist.ReduceOp.PRODUCT, group=group),
    "a gather": gather,
    "shapes": lambda group: dist.all_reduce(torch.ones(either((2, 3), (3, 2))), group=group),
    "sparse shapes": lambda group: dist.all_reduce(
        torch.sparse_coo_tensor([[0, 2]], torch.ones(2, 3), (either(10, 12), 3), check_invariants=True), group=group
    ),
}
heard = {}
for name, call in DIFFERENT.items():
    group = dist.new_group()
    started = time.monotonic()
    try:
        call(group)
        heard[name] = ""
    except Exception as error:
        heard[name] = f"{type(error).__name__}: {error}"
    heard[name] += f" ({time.monotonic() - started:.2f} s)"


def strided(dtype):
    return (torch.arange(12) + RANK + 1).reshape(3, 4).to(dtype).t()


results = {}
for dtype in (torch.int8, torch.uint8):
    x = strided(dtype)
    dist.all_reduce(x)
    results[f"sum of {dtype}"] = torch.equal(x, strided(dtype) * 2 + (1 - 2 * RANK))
x = strided(torch.float32)
other = strided(torch.float32) + 1 - 2 * RANK
dist.all_reduce(x, op=dist.ReduceOp.PRODUCT)
results["product"] = torch.equal(x, strided(torch.float32) * other)
x = torch.zeros(2, 6)[:, ::2]
dist.scatter(x, [torch.arange(12.0).reshape(2, 6)[:, ::2] + 100 * rank for rank in range(2)] if RANK == 0 else None)
results["scatter"] = x.tolist() == [[0 + 100 * RANK, 2 + 100 * RANK, 4 + 100 * RANK],
                                    [6 + 100 * RANK, 8 + 100 * RANK, 10 + 100 * RANK]]  # fmt: skip
x, parts = strided(torch.float32), [torch.zeros(3, 4).t() for _ in range(2)]
dist.gather(x, parts if RANK == 0 else None)
results["gather"] = RANK == 1 or torch.equal(parts[1], strided(torch.float32) + 1)
out = torch.zeros(4, 2)[:, 0]
dist.all_to_all_single(out, torch.arange(8.0)[::2] + 10 * RANK)
results["all-to-all"] = out.tolist() == [4.0 * RANK, 4.0 * RANK + 2, 4.0 * RANK + 10, 4.0 * RANK + 12]
with torch.inference_mode():
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
        x = torch.ones(4, 3).t()
        work = dist.all_reduce(x, op=op, async_op=True)
        modes = work.get_future().then(lambda done: [torch.is_inference_mode_enabled(), done.value()[0].sum().item()])
        work.wait()
        results[f"inference mode, {op}"] = modes.wait() == [True, 24.0 if op == dist.ReduceOp.SUM else 12.0]
with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
    work = dist.all_reduce(torch.ones(3), async_op=True)
    product = work.get_future().then(lambda done: (torch.ones(2, 2) @ torch.ones(2, 2)).dtype)
    results["autocast"] = product.wait() == torch.bfloat16
    grads = work.get_future().then(lambda done: torch.is_grad_enabled())
    results["no grad"] = grads.wait() is False
print(json.dumps({"heard": heard, "results": results}))
