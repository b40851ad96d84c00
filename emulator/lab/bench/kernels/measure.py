"""Time operators on one device: matrix products, attention forward and backward, and memory-bound operators.

On a GPU, calls are captured in a CUDA graph and replayed, which excludes launch overhead; that is measured separately.
On the CPU, the fastest of five calls is taken.
"""

import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.nn import functional

Row = dict[str, Any]
"""`what`: "gemm" (m, n, k, dtype, time_s), "attention" (batch, heads, sequence, head_dim, causal, forward_s,
backward_s), "op" (op, rows, cols, time_s) or "device" (name, torch, architecture, processors, memory_bytes, launch_s).
The "device" row is the first. `exact`: the time excludes launch overhead."""
PRODUCTS = [
    (512, 1024, 1024), (1024, 4096, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (4096, 11008, 4096),
    (8192, 1280, 1280), (8192, 8192, 8192), (8192, 50304, 1600), (16384, 4096, 4096), (1600, 6400, 16384),
]  # fmt: skip
"""(m, n, k): tokens times layers of GPT-2 and Llama, and weight gradients."""
ATTENTION = [
    (16, 16, 512, 64), (8, 12, 1024, 64), (2, 32, 2048, 64),
    (2, 32, 2048, 128), (2, 32, 4096, 128), (1, 32, 16384, 128),
]  # fmt: skip
"""(batch, heads, sequence length, head size)."""
MATRICES = [(8192, 1600), (16384, 4096), (65536, 1024)]
"""(rows, columns) of half-precision operands of memory-bound operators."""
PARAMETERS = 100_000_000
"""Parameters in the fused optimizer step."""
_SMALL_PRODUCTS = [(512, 512, 512), (1024, 1024, 1024)]
_SMALL_ATTENTION = [(1, 4, 256, 64), (1, 4, 256, 128)]
_BATCH_S = 0.02
"""Approximate duration of a graph of repeated calls."""


def device_row(device: torch.device) -> Row:
    """Describe the device, and measure the host time of launching an operator."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found = {
            "name": properties.name,
            "architecture": _ARCHITECTURES.get((properties.major, properties.minor), _MAJORS.get(properties.major, "")),
            "processors": properties.multi_processor_count,
            "memory_bytes": properties.total_memory,
        }
    else:
        import psutil

        cores = psutil.cpu_count(logical=False) or 1
        found = {"name": f"CPU, {cores} cores", "architecture": "", "processors": cores}
        found["memory_bytes"] = psutil.virtual_memory().total
    return {"what": "device", **found, "torch": torch.__version__, "launch_s": _launch_s(device)}


_ARCHITECTURES = {(8, 9): "Ada"}
_MAJORS = {6: "Pascal", 7: "Volta", 8: "Ampere", 9: "Hopper", 10: "Blackwell", 12: "Blackwell"}


def measure(device: torch.device) -> Iterator[Row]:
    """Yield all rows, the device's first. Shapes are smaller on the CPU."""
    yield device_row(device)
    is_gpu = device.type == "cuda"
    half = torch.float16 if is_gpu and torch.cuda.get_device_capability(device) < (8, 0) else torch.bfloat16
    torch.backends.cuda.matmul.allow_tf32 = False
    for dtype in (half, torch.float32):
        for m, n, k in PRODUCTS if is_gpu else _SMALL_PRODUCTS:
            if dtype == torch.float32 and m * n * k > 2**38:
                continue  # float32 does not use tensor cores: a second per call
            a, b = torch.randn(m, k, device=device, dtype=dtype), torch.randn(k, n, device=device, dtype=dtype)
            row = {"what": "gemm", "m": m, "n": n, "k": k, "dtype": _name(dtype)}
            yield row | {"time_s": _seconds(partial(torch.mm, a, b), device), "exact": True}
            del a, b
    for batch, heads, sequence, head in ATTENTION if is_gpu else _SMALL_ATTENTION:
        for causal in (True, False):
            yield _attention(batch, heads, sequence, head, causal, half, device)
    for rows, columns in MATRICES if is_gpu else [(4096, 1024)]:
        for name, call in _operators(rows, columns, half, device).items():
            time_s = _seconds(call, device)
            yield {"what": "op", "op": name, "rows": rows, "cols": columns, "time_s": time_s, "exact": True}
    yield _optimizer(PARAMETERS if is_gpu else 2_000_000, device)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _attention(
    batch: int, heads: int, sequence: int, head: int, causal: bool, dtype: torch.dtype, device: torch.device
) -> Row:
    shape = (batch, heads, sequence, head)
    q, k, v = (torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
    gradient = torch.randn(shape, device=device, dtype=dtype)

    def forward() -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def both() -> None:
        torch.autograd.grad(forward(), (q, k, v), gradient)

    with torch.no_grad():
        forward_s = _seconds(forward, device)
    backward_s = max(_seconds(both, device) - forward_s, 1e-9)
    names = {"batch": batch, "heads": heads, "sequence": sequence, "head_dim": head, "causal": causal}
    return {"what": "attention", **names, "forward_s": forward_s, "backward_s": backward_s, "exact": True}


def _operators(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> dict[str, Callable[[], object]]:
    """Memory-bound operators by name; fit.py knows the bytes each one moves."""
    x, y = (torch.randn(rows, columns, device=device, dtype=dtype) for _ in range(2))
    weight, bias = (torch.randn(columns, device=device, dtype=dtype) for _ in range(2))
    _, mean, scale = torch.native_layer_norm(x, [columns], weight, bias, 1e-5)
    return {
        "copy": lambda: y.copy_(x),
        "add": lambda: torch.add(x, y),
        "gelu": lambda: functional.gelu(x),
        "softmax": lambda: torch.softmax(x, -1),
        "sum": lambda: torch.sum(x, 0),
        "layer_norm": lambda: functional.layer_norm(x, [columns], weight, bias),
        "layer_norm_backward": lambda: torch.ops.aten.native_layer_norm_backward(
            y, x, [columns], mean, scale, weight, bias, [True, True, True]
        ),
    }


def _optimizer(count: int, device: torch.device) -> Row:
    parameter = torch.nn.Parameter(torch.randn(count, device=device, dtype=torch.bfloat16))
    parameter.grad = torch.randn_like(parameter)
    optimizer = torch.optim.AdamW([parameter], 1e-3, fused=True, capturable=device.type == "cuda")
    optimizer.step()  # creates the optimizer states
    time_s = _seconds(optimizer.step, device)
    return {"what": "op", "op": "adamw_fused_bf16", "rows": count, "cols": 1, "time_s": time_s, "exact": True}


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    """Time of one call on the device."""
    if device.type != "cuda":
        call()
        return min(_timed(call) for _ in range(5))
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):  # libraries must select kernels and allocate workspaces before a capture
        for _ in range(2):
            call()
        once = _timed(call, device)
    torch.cuda.current_stream(device).wait_stream(side)
    repeats = max(1, min(20, math.ceil(_BATCH_S / once)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            call()
    graph.replay()
    return min(_timed(graph.replay, device) for _ in range(3)) / repeats


def _timed(call: Callable[[], object], device: torch.device | None = None) -> float:
    if device is None:
        started = time.perf_counter()
        call()
        return time.perf_counter() - started
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def _launch_s(device: torch.device) -> float:
    """Host time of launching a small operator: the fastest of five runs of 100."""
    x = torch.zeros(8, device=device)

    def hundred() -> None:
        for _ in range(100):
            torch.add(x, 1)

    best = math.inf
    for _ in range(5):
        best = min(best, _timed(hundred) / 100)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return best
