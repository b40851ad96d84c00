"""What the optimizers here share: AdamW's rule in place, its options, and tensors as vectors in the order of memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from host_agent.memory.saving import fills_its_memory
from switchml.errors import ConfigError, UnsupportedTensor

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def update(
    weight: torch.Tensor,
    gradient: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    step: int,
    options: dict[str, Any],
) -> None:
    """One step of AdamW (Loshchilov and Hutter, ICLR 2019) on float32 tensors of one shape, in place; `step` counts
    from 1, `options` are those of a parameter group.

    The operations and their order are those of torch.optim.adam's `_single_tensor_adam`, so that a CPU gives the same
    bits. The denominator takes the place of the gradient: nothing is allocated."""
    lr, (beta1, beta2) = float(options["lr"]), options["betas"]
    if options["weight_decay"] != 0:
        weight.mul_(1 - lr * options["weight_decay"])
    exp_avg.lerp_(gradient, 1 - beta1)
    exp_avg_sq.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    denominator = torch.sqrt(exp_avg_sq, out=gradient)
    denominator.div_((1 - beta2**step) ** 0.5).add_(options["eps"])
    weight.addcdiv_(exp_avg, denominator, value=-lr / (1 - beta1**step))


def options_of(lr: float, betas: tuple[float, float], eps: float, weight_decay: float) -> dict[str, Any]:
    """For a parameter group. Raises ConfigError."""
    if not lr >= 0:
        raise ConfigError(f"lr={lr}: expected at least 0")
    if not all(0 <= beta < 1 for beta in betas):
        raise ConfigError(f"betas={betas}: expected two shares from 0 to below 1")
    if not (eps >= 0 and weight_decay >= 0):
        raise ConfigError(f"eps={eps}, weight_decay={weight_decay}: expected at least 0")
    return {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}


def local(tensor: torch.Tensor) -> torch.Tensor:
    """A shard's part on this rank; other tensors are what they are."""
    part: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return part.detach()


def check(parameter: nn.Parameter) -> None:
    """Raises UnsupportedTensor for what `update` cannot take, or `vector` cannot show."""
    part = local(parameter)
    if part.dtype not in DTYPES or part.layout != torch.strided or not fills_its_memory(part):
        raise UnsupportedTensor(
            f"a parameter of {part.dtype}, shape {tuple(part.shape)}, strides {part.stride()}: expected float32, "
            "float16 or bfloat16, dense in memory"
        )


def vector(tensor: torch.Tensor) -> torch.Tensor:
    """A parameter's elements in the order of memory, where they are."""
    part = local(tensor)
    return part.as_strided((part.numel(),), (1,))


def gradient_vector(parameter: nn.Parameter) -> torch.Tensor:
    """Its gradient's elements in the order of the parameter's. Raises UnsupportedTensor if it is sparse."""
    assert parameter.grad is not None
    gradient, part = local(parameter.grad), local(parameter)
    if gradient.layout != torch.strided:
        raise UnsupportedTensor(
            f"a {gradient.layout} gradient of shape {tuple(gradient.shape)}: expected a dense one (sparse=False)"
        )
    if gradient.stride() != part.stride():
        gradient = torch.empty_like(part).copy_(gradient)
    return gradient.as_strided((gradient.numel(),), (1,))


def restored(optimizer: torch.optim.Optimizer, state: dict[Any, Any], names: tuple[str, ...]) -> None:
    """Copy what `Optimizer.state_dict()` has under "state" into the states that `optimizer` holds, at their places and
    in their precision. A "master" that is missing (AdamW has none) is the parameter. Raises ConfigError, before
    anything is changed, if it is of another model."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    todo: list[tuple[torch.Tensor, torch.Tensor]] = []
    value: Any
    for number, parameter in enumerate(parameters):
        saved = state.get(number)
        for name in names:
            mine = optimizer.state[parameter].get(name)
            if mine is None:
                continue
            if saved is None and name in ("step", "exp_avg", "exp_avg_sq"):  # it has not had a gradient yet
                value = torch.zeros_like(mine)
            else:
                value = (saved or {}).get(name, local(parameter) if name == "master" else None)
            found = "missing" if value is None else f"of shape {tuple(torch.as_tensor(value).shape)}"
            if value is None or torch.as_tensor(value).shape != mine.shape:
                raise ConfigError(
                    f"state {name!r} of parameter {number} is {found}: expected shape {tuple(mine.shape)}"
                )
            todo.append((mine, torch.as_tensor(value)))
    for here, value in todo:
        here.copy_(value)
