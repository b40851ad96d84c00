"""Gradients of a stage's replicas, all-reduced in buckets while other stages still compute."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn

BUCKET_BYTES = 25 << 20
"""DistributedDataParallel's default bucket size."""


class GradientBuckets:
    """All-reduces of the gradients of `parameters` over `group`: their mean with `mean`, else their sum.

    A bucket has gradients of one dtype, the last layers' first, of at most `bucket_bytes` or a single gradient. A
    parameter without a gradient counts as zeros, since another replica may have one."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        group: dist.ProcessGroup,
        *,
        mean: bool,
        bucket_bytes: int = BUCKET_BYTES,
    ):
        self._group = group
        self._divisor = dist.get_world_size(group) if mean else 1
        self._buckets: list[list[nn.Parameter]] = []
        self._under_way: list[tuple[list[nn.Parameter], torch.Tensor, dist.Work | None]] = []
        free: dict[torch.dtype, int] = {}
        last: dict[torch.dtype, list[nn.Parameter]] = {}
        for parameter in reversed([parameter for parameter in parameters if parameter.requires_grad]):
            dtype = parameter.dtype
            if dtype not in last or free[dtype] < parameter.nbytes:
                last[dtype], free[dtype] = [], bucket_bytes
                self._buckets.append(last[dtype])
            last[dtype].append(parameter)
            free[dtype] -= parameter.nbytes

    def launch(self) -> None:
        """Start to reduce the `.grad` of all parameters."""
        for bucket in self._buckets:
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
            work = dist.all_reduce(flat, group=self._group, async_op=True)
            self._under_way.append((bucket, flat, work))

    def wait(self) -> None:
        """Wait until `.grad` has the results. Raises what the all-reduces raise."""
        while self._under_way:
            bucket, flat, work = self._under_way.pop(0)
            if work is not None:
                work.wait()
            if self._divisor != 1:
                flat.div_(self._divisor)
            for parameter, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                if parameter.grad is None:
                    parameter.grad = part.view_as(parameter).clone()
                else:
                    parameter.grad.copy_(part.view_as(parameter))
