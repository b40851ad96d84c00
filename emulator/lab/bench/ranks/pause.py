"""Sleeps that stand in for accelerator compute: a sleeping thread waits as it would for a device, and leaves its core
to the other ranks."""

import time
from typing import Any

import torch


class _Pause(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward_s: float, backward_s: float) -> torch.Tensor:
        ctx.backward_s = backward_s
        time.sleep(forward_s)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        time.sleep(ctx.backward_s)
        return gradients[0], None, None


def pause(x: torch.Tensor, forward_s: float, backward_s: float) -> torch.Tensor:
    """Return `x` after sleeping `forward_s`; its backward pass sleeps `backward_s`."""
    paused: torch.Tensor = _Pause.apply(x, forward_s, backward_s)  # type: ignore[no-untyped-call]  # untyped in torch
    return paused


class Device(torch.nn.Module):
    """An identity layer that takes `seconds` forward and twice as long backward."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return pause(x, self.seconds, 2 * self.seconds)
