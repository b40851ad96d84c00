"""Baselines of `switchml bench codecs`: SZ3 (pysz), ZFP (zfpy), torch.topk, and torch's own DDP hooks.

Each baseline is a pair of functions; a hook is a single function that does both. A baseline whose package is not
installed is reported as `Missing`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from emulator.lab.bench.codecs.tensors import Tensor


@dataclass(frozen=True)
class Baseline:
    """A third-party compressor. `compress(x)` returns a payload of `nbytes(payload)` bytes that `decompress(payload)`
    decodes to float32[n]. `aggregation` names the switchml codec of the same kind. A hook has no `decompress`: its
    `compress` returns (seconds, result), with the time of both directions, and `nbytes` ignores its argument.
    """

    name: str
    aggregation: str
    compress: Callable[[np.ndarray], Any]
    decompress: Callable[[Any], np.ndarray] | None
    nbytes: Callable[[Any], int]
    note: str = ""


@dataclass(frozen=True)
class Missing:
    """A baseline that can't run because its package is not installed."""

    name: str
    reason: str


NEEDS = {"SZ3": "pysz", "ZFP": "zfpy", "torch.topk": "torch", "torch PowerSGD": "torch", "torch fp16": "torch"}
EXTRA = "bench-codecs"
_PLAIN_STEPS = 4
"""torch's PowerSGD sends its first steps uncompressed: this many steps run before measuring."""


@contextlib.contextmanager
def available(tensor: Tensor, *, bound: float, ratio: float, rank: int) -> Iterator[list[Baseline | Missing]]:
    """All baselines. `bound`: absolute error bound; `ratio`: top-k's share; `rank`: PowerSGD's rank."""
    makers = {"SZ3": (_sz3, bound), "ZFP": (_zfp, bound), "torch.topk": (_torch_topk, ratio)}
    baselines: list[Baseline | Missing] = []
    for name, module in NEEDS.items():
        if importlib.util.find_spec(module) is None:
            baselines.append(Missing(name, f"needs {module}: pip install 'switchml[{EXTRA}]'"))
        elif name in makers:
            make, option = makers[name]
            baselines.append(make(option))
    with contextlib.ExitStack() as stack:
        if importlib.util.find_spec("torch") is not None:
            baselines += stack.enter_context(_hooks(tensor, rank))
        yield baselines


def _sz3(bound: float) -> Baseline:
    from pysz import sz, szConfig, szErrorBoundMode

    def config(n: int) -> szConfig:
        options = szConfig((n,))
        options.errorBoundMode, options.absErrorBound, options.openmp = szErrorBoundMode.ABS, bound, False
        return options

    def compress(x: np.ndarray) -> tuple[np.ndarray, int]:
        return sz.compress(x, config(x.size))[0], x.size

    def decompress(payload: tuple[np.ndarray, int]) -> Any:
        return sz.decompress(payload[0], np.float32, (payload[1],))[0]

    note = f"pysz, absolute bound {bound:.3g}"
    return Baseline("SZ3", "as szx", compress, decompress, lambda payload: payload[0].nbytes, note)


def _zfp(bound: float) -> Baseline:
    import zfpy

    def compress(x: np.ndarray) -> Any:
        return zfpy.compress_numpy(x, tolerance=bound)

    return Baseline("ZFP", "as szx", compress, zfpy.decompress_numpy, len, f"zfpy, tolerance {bound:.3g}")


def _torch_topk(ratio: float) -> Baseline:
    import torch

    Sent = tuple[torch.Tensor, torch.Tensor, int]

    def compress(x: np.ndarray) -> Sent:
        tensor = torch.from_numpy(x)
        indices = torch.topk(tensor.abs(), max(1, int(np.ceil(ratio * x.size))), sorted=False).indices
        return tensor[indices], indices.to(torch.int32), x.size

    def decompress(payload: Sent) -> Any:
        values, indices, n = payload
        return torch.zeros(n).scatter_(0, indices.to(torch.int64), values).numpy()

    def nbytes(payload: Sent) -> int:
        return 8 * payload[0].numel()

    return Baseline("torch.topk", "as topk", compress, decompress, nbytes, "values and int32 indices")


@contextlib.contextmanager
def _hooks(tensor: Tensor, rank: int) -> Iterator[list[Baseline]]:
    """torch's hooks as DDP calls them, in a process group with this process as the only rank: a bucket of one
    parameter, of the tensor's shape, whose gradient is the tensor."""
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel

    class OneParameter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(tensor.shape))

        def forward(self, gradient: torch.Tensor) -> torch.Tensor:
            return (self.weight * gradient).sum()

    def baseline(name: str, aggregation: str, hook: Callable[..., Any], state: Any, nbytes: int) -> Baseline:
        model = DistributedDataParallel(OneParameter(), bucket_cap_mb=1 << 12)
        seconds: list[float] = []

        # torch inspects a hook's annotations and rejects strings.
        def timed(state, bucket):  # type: ignore[no-untyped-def]
            start = time.process_time()
            future = hook(state, bucket)
            future.wait()
            seconds.append(time.process_time() - start)
            return future

        model.register_comm_hook(state, timed)

        def reduce(x: np.ndarray) -> tuple[float, np.ndarray]:
            model.zero_grad()
            model(torch.from_numpy(x).reshape(tensor.shape)).backward()
            return seconds[-1], model.module.weight.grad.numpy().reshape(-1).copy()

        for _ in range(_PLAIN_STEPS):
            reduce(tensor.values)
        note = "the hook alone, its all-reduce of one rank included"
        return Baseline(name, aggregation, reduce, None, lambda payload: nbytes, note)

    with tempfile.TemporaryDirectory() as folder:
        store = dist.FileStore(str(Path(folder) / "store"), 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        group = dist.group.WORLD
        n, (rows, columns) = tensor.values.size, tensor.shape
        factors = 4 * min(n, (rows + columns) * rank)
        state = powerSGD_hook.PowerSGDState(group, rank, start_powerSGD_iter=2, use_error_feedback=False)
        try:
            yield [
                baseline("torch PowerSGD", "as powersgd", powerSGD_hook.powerSGD_hook, state, factors),
                baseline("torch fp16", "as fp16", default_hooks.fp16_compress_hook, group, 2 * n),
            ]
        finally:
            dist.destroy_process_group()
