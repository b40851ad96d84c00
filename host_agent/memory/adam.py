"""Common code of the optimizers in this package: AdamW's in-place update, its options, and tensors as vectors in memory
order."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from host_agent.memory.saving import fills_its_memory
from switchml.errors import ConfigError, UnsupportedTensor

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_COMPARED = 1 << 20
"""Number of master elements compared at a time, each of which takes 7 bytes."""


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

    The operations and their order are those of torch.optim.adam's `_single_tensor_adam`, so that results on a CPU are
    bitwise equal. The denominator overwrites the gradient: no memory is allocated."""
    lr, (beta1, beta2) = float(options["lr"]), options["betas"]
    if options["weight_decay"] != 0:
        weight.mul_(1 - lr * options["weight_decay"])
    exp_avg.lerp_(gradient, 1 - beta1)
    exp_avg_sq.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    denominator = torch.sqrt(exp_avg_sq, out=gradient)
    denominator.div_((1 - beta2**step) ** 0.5).add_(options["eps"])
    weight.addcdiv_(exp_avg, denominator, value=-lr / (1 - beta1**step))


def by_kind(parameters: Iterable[nn.Parameter]) -> dict[tuple[torch.dtype, torch.device], list[nn.Parameter]]:
    """Group parameters by (dtype, device), so that one vector can hold each group; order is preserved."""
    kinds: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
    for parameter in parameters:
        kinds.setdefault((parameter.dtype, parameter.device), []).append(parameter)
    return kinds


def options_of(lr: float, betas: tuple[float, float], eps: float, weight_decay: float) -> dict[str, Any]:
    """Options of a parameter group. Raises ConfigError for invalid values."""
    if not lr >= 0:
        raise ConfigError(f"lr={lr}: expected at least 0")
    if not all(0 <= beta < 1 for beta in betas):
        raise ConfigError(f"betas={betas}: expected two shares from 0 to below 1")
    if not (eps >= 0 and weight_decay >= 0):
        raise ConfigError(f"eps={eps}, weight_decay={weight_decay}: expected at least 0")
    return {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Local part of a sharded tensor; other tensors are returned as they are."""
    part: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return part.detach()


def as_shard(part: torch.Tensor, parameter: nn.Parameter) -> torch.Tensor:
    """Wrap the state of this rank's part of a parameter as a shard if the parameter is one (FSDP2, tensor parallelism),
    so that a distributed checkpoint saves each rank's part, not rank 0's for all."""
    spec = getattr(parameter, "_spec", None)
    if spec is None:
        return part
    from torch.distributed.tensor import DTensor  # takes 0.8 s to import unless the parameter's creator has imported it
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    meta = TensorMeta(parameter.shape, parameter.stride(), part.dtype)
    return DTensor(part, DTensorSpec(spec.mesh, spec.placements, meta), requires_grad=False)


def check(parameter: nn.Parameter) -> None:
    """Raises UnsupportedTensor for a parameter that `update` or `vector` does not support."""
    part = local(parameter)
    if part.dtype not in DTYPES or part.layout != torch.strided or not fills_its_memory(part):
        raise UnsupportedTensor(
            f"a parameter of {part.dtype}, shape {tuple(part.shape)}, strides {part.stride()}: expected float32, "
            "float16 or bfloat16, dense in memory"
        )


def vector(tensor: torch.Tensor) -> torch.Tensor:
    """View of a parameter's elements in memory order."""
    part = local(tensor)
    return part.as_strided((part.numel(),), (1,))


def gradient_vector(parameter: nn.Parameter) -> torch.Tensor:
    """Elements of a parameter's gradient in the memory order of the parameter. Raises UnsupportedTensor if the gradient
    is sparse."""
    assert parameter.grad is not None
    gradient, part = local(parameter.grad), local(parameter)
    if gradient.layout != torch.strided:
        raise UnsupportedTensor(
            f"a {gradient.layout} gradient of shape {tuple(gradient.shape)}: expected a dense one (sparse=False)"
        )
    if gradient.stride() != part.stride():
        gradient = torch.empty_like(part).copy_(gradient)
    return gradient.as_strided((gradient.numel(),), (1,))


def take_over(master: torch.Tensor, weight: torch.Tensor) -> None:
    """Update float32 masters from half-precision weights, of the same shape, that other code has changed since:
    elements that are not the rounded values of the masters."""
    for mine, theirs in zip(master.split(_COMPARED), weight.split(_COMPARED), strict=True):
        mine.copy_(torch.where(mine.to(theirs.dtype) == theirs, mine, theirs.float()))


def restored(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any], names: tuple[str, ...]) -> None:
    """Copy the states in a `state_dict()` into those of `optimizer`, converted to their precision. Parameters are
    matched as torch does, by their order in the groups, so that their keys may be numbers or names. A missing "master"
    (AdamW has none) is taken from the parameter.

    Raises ConfigError, before anything is changed, if it is of another model, or has states or options that would be
    lost. `names`: names of the supported states."""
    saved_groups = state_dict["param_groups"]
    sizes, wanted = ([len(group["params"]) for group in some] for some in (saved_groups, optimizer.param_groups))
    if sizes != wanted:
        raise ConfigError(f"param_groups have {sizes} parameters: expected {wanted}")
    for number, group in enumerate(saved_groups):
        _check_options(number, group)
    keys = [key for group in saved_groups for key in group["params"]]
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if unknown := sorted(map(str, set(state_dict["state"]) - set(keys))):
        raise ConfigError(f"state of {unknown[0]}, which is in no group: expected those of param_groups")
    todo = []
    for key, parameter in zip(keys, parameters, strict=True):
        todo += _places(key, parameter, optimizer.state[parameter], state_dict["state"].get(key), names)
    for here, value in todo:
        here.copy_(value)


def _places(
    key: Any, parameter: nn.Parameter, mine: dict[str, Any], saved: dict[str, Any] | None, names: tuple[str, ...]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(target, value) pairs for copying one parameter's saved states."""
    if unknown := sorted(set(saved or ()) - set(names)):
        raise ConfigError(f"state {unknown[0]!r} of parameter {key}: expected {', '.join(names)}")
    todo = []
    for name in names:
        if name not in mine:
            if name in (saved or ()):
                raise ConfigError(f"state {name!r} of parameter {key}: this one has none")
            continue
        here = local(mine[name])
        if saved is None and name in ("step", "exp_avg", "exp_avg_sq"):  # the parameter has had no gradient yet
            value = torch.zeros_like(here)
        elif (found := (saved or {}).get(name)) is not None:
            value = local(torch.as_tensor(found))
        elif name == "master":
            value = local(parameter)
        else:
            raise ConfigError(f"state {name!r} of parameter {key} is missing: expected shape {tuple(here.shape)}")
        if value.shape != here.shape:
            found, expected = tuple(value.shape), tuple(here.shape)
            raise ConfigError(f"state {name!r} of parameter {key} is of shape {found}: expected shape {expected}")
        todo.append((here, value))
    return todo


def _check_options(number: int, group: dict[str, Any]) -> None:
    """Raises ConfigError for a saved group whose options `update` does not support."""
    for name in ("lr", "betas", "eps", "weight_decay"):
        if name not in group:
            raise ConfigError(f"param_groups[{number}] has no {name!r}: expected AdamW's options")
    options_of(*(group[name] for name in ("lr", "betas", "eps", "weight_decay")))
    other = [name for name in ("amsgrad", "maximize", "differentiable") if group.get(name)]
    if group["weight_decay"] != 0 and not group.get("decoupled_weight_decay", True):
        other.append("decoupled_weight_decay=False")
    if other:
        raise ConfigError(f"param_groups[{number}] has {', '.join(other)}: expected AdamW's rule without it")
