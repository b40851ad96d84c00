"""`pruned`: a model with most weights at zero, stored densely for its GEMMs; gradients, master weights and moments
exist only for the remaining weights, and all-reduces transfer only those (SAMO: Singh and Bhatele, IPDPS 2023)."""

# No deferred annotations here: DDP compares those of a hook with its own classes.

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.weak import WeakIdKeyDictionary

from host_agent.memory.adam import by_kind, check, gradient_vector, options_of, restored, take_over, update, vector
from switchml.errors import ConfigError

BUCKET_BYTES = 25 << 20
"""DistributedDataParallel's default bucket size."""
STATES = ("exp_avg", "exp_avg_sq", "master")
_HOOKS = WeakIdKeyDictionary()
"""Parameter → handle of the hook that takes its gradients: that of the latest optimizer."""


class Pruned:
    """The remaining weights of a pruned model, created by `pruned`.

    - places: parameter → int32[left], ascending: indices of the remaining weights in its flattened elements. None: all
      remain.
    - group: process group over which gradients are averaged; None in a single process.
    """

    def __init__(self, model: nn.Module, masks: Mapping[nn.Parameter, torch.Tensor], group: dist.ProcessGroup | None):
        self.group = group
        self.is_ddp = isinstance(model, DistributedDataParallel)
        self.names = {parameter: name for name, parameter in _module(model).named_parameters()}
        self.places: dict[nn.Parameter, torch.Tensor | None] = {}
        for parameter in self.names:
            if parameter.requires_grad:
                self.places[parameter] = _agreed(parameter, masks.get(parameter), group)
        self.clear()
        if isinstance(model, DistributedDataParallel):
            model.register_comm_hook(self, _sum_of_what_is_left)

    def left(self, parameter: nn.Parameter) -> int:
        """Number of remaining weights of a parameter."""
        places = self.places[parameter]
        return parameter.numel() if places is None else places.numel()

    def stats(self) -> dict[str, float]:
        """`parameters` that are trained, `left` of them, and `index_bytes`, the size of the indices."""
        indices = [places.nbytes for places in self.places.values() if places is not None]
        return {
            "parameters": float(sum(parameter.numel() for parameter in self.places)),
            "left": float(sum(map(self.left, self.places))),
            "index_bytes": float(sum(indices)),
        }

    @torch.no_grad()
    def clear(self) -> None:
        """Set the pruned weights to zero, for example after loading others into the model."""
        for parameter, places in self.places.items():
            if places is not None:
                whole = vector(parameter)
                kept = whole.index_select(0, places)
                whole.zero_().index_put_((places,), kept)


def pruned(
    model: nn.Module,
    share: float,
    *,
    masks: Mapping[str, torch.Tensor] | None = None,
    group: dist.ProcessGroup | None = None,
) -> Pruned:
    """Set the share of the weights with the smallest magnitudes to zero, in each tensor with two or more dimensions,
    and keep them there; biases and normalization are not pruned. `PrunedAdam` then trains the remaining weights.

    masks: parameter's name → bool tensor of its shape, true for remaining weights, for tensors to be pruned
        differently; `share` applies to the others.
    group: process group that trains together; by default the default process group, if there is one. Its first rank's
        weights and masks are broadcast.

    A model in DistributedDataParallel gets a communication hook, so that its all-reduces transfer only the remaining
    gradients: wrap it before, and do not pass `group`. Gradients stay dense then, in DDP's buckets; otherwise
    `PrunedAdam` compresses each as soon as it is computed, and sums them in its step.

    Raises ConfigError, UnsupportedTensor."""
    if not 0 <= share < 1:
        raise ConfigError(f"share={share}: expected from 0 to below 1")
    if isinstance(model, DistributedDataParallel):
        if group is not None:
            raise ConfigError("group with a model in DistributedDataParallel: expected none, it has one")
        group = model.process_group
    elif group is None and dist.is_available() and dist.is_initialized():
        group = dist.group.WORLD
    named = dict(_module(model).named_parameters())
    for name in masks or {}:
        if name not in named:
            raise ConfigError(f"masks: no parameter {name!r}; expected names as in named_parameters()")
    chosen: dict[nn.Parameter, torch.Tensor] = {}
    for name, parameter in named.items():
        if not parameter.requires_grad:
            continue
        check(parameter)
        mask = (masks or {}).get(name)
        if mask is not None:
            if mask.shape != parameter.shape or mask.dtype != torch.bool:
                raise ConfigError(
                    f"masks[{name!r}] is {mask.dtype}, {tuple(mask.shape)}; expected bool, {tuple(parameter.shape)}"
                )
            chosen[parameter] = mask.to(parameter.device).reshape(-1)
        elif parameter.ndim > 1 and share:
            chosen[parameter] = _largest(parameter, share)
        if parameter in chosen and not (parameter.is_contiguous() and parameter.numel() < 1 << 31):
            raise ConfigError(f"{name} is {tuple(parameter.shape)}; expected contiguous weights, fewer than 2^31")
        if hasattr(parameter, "_local_tensor"):
            raise ConfigError(f"{name} is sharded; expected weights that are whole on each rank (SAMO shards none)")
    if group is not None and not isinstance(model, DistributedDataParallel):
        for tensor in (*named.values(), *_module(model).buffers()):
            dist.broadcast(tensor.detach(), group=group, group_src=0)
    return Pruned(model, chosen, group)


class PrunedAdam(torch.optim.Optimizer):
    """AdamW for the weights that `pruned` has left: moments, master weights of half-precision parameters, and gradients
    are vectors of these only. `params`: parameters or groups of them, by default all.

    With half-precision weights it takes 2 φ + 24 (1 − p) φ bytes including gradients (SAMO's formula) if one bucket has
    all gradients; else 2 φ + 18 (1 − p) φ and 6 for each in a bucket of `bucket_bytes`.

    Gradients are averaged over the group in `step`, bucket by bucket, while the previous bucket is updated; not in
    DistributedDataParallel, which does so itself. A parameter without a gradient counts as zeros. `.grad` is None
    between backward and `step`, so gradient clipping has no effect.

    Half-precision weights changed by other code between steps, such as `load_state_dict`, are copied to their masters.
    On a CPU, without pruning, results are bitwise equal to those of torch.optim.AdamW.

    Raises ConfigError; `step` raises what all-reduces raise, after which some parameters are a step ahead."""

    def __init__(
        self,
        states: Pruned,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        params: Any = None,
        bucket_bytes: int = BUCKET_BYTES,
    ):
        if bucket_bytes < 1:
            raise ConfigError(f"bucket_bytes={bucket_bytes}: expected at least 1")
        self._pruned, self._bucket_bytes = states, bucket_bytes
        self._buckets: list[_Bucket] = []
        super().__init__(list(states.places) if params is None else params, options_of(lr, betas, eps, weight_decay))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group. Raises ConfigError for parameters of another model, or frozen ones."""
        super().add_param_group(param_group)
        number = len(self.param_groups) - 1
        if not all(parameter in self._pruned.places for parameter in self.param_groups[-1]["params"]):
            raise ConfigError("params: expected parameters of the model that was pruned, with requires_grad")
        last_first = reversed(self.param_groups[-1]["params"])  # the last layers' gradients are computed first
        for parameters in by_kind(last_first).values():
            buckets = _divided(parameters, self._pruned, self._bucket_bytes)
            self._buckets += [_Bucket(number, each, self._pruned) for each in buckets]
        for bucket in self._buckets:
            for parameter, place in bucket.parts.items():
                if bucket.group == number:
                    views = {name: value[place] for name, value in bucket.states.items()}
                    self.state[parameter] = {"step": torch.tensor(0.0), **views}
                    if (index := self._pruned.places[parameter]) is not None:
                        self.state[parameter]["index"] = index
                    if not self._pruned.is_ddp:
                        if (old := _HOOKS.get(parameter)) is not None:
                            old.remove()  # that of an earlier optimizer
                        _HOOKS[parameter] = parameter.register_post_accumulate_grad_hook(bucket.take)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset gradients, as torch.optim's method, also those of the remaining weights."""
        super().zero_grad(set_to_none)
        for bucket in self._buckets:
            bucket.there.clear()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load states including the saved indices, which replace the model's; weights outside them are set to zero.
        Raises ConfigError if they are of another model, or of another share."""
        restored(self, state_dict, ("step", "index", *STATES))
        mine = dict(self.state)
        super().load_state_dict({**state_dict, "state": {}})
        self.state.update(mine)
        self._pruned.clear()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of AdamW on the remaining weights."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        group = None if self._pruned.is_ddp else self._pruned.group
        for bucket in self._buckets:
            for parameter in bucket.parts:
                if self._pruned.is_ddp and parameter.grad is not None:
                    bucket.there.discard(parameter)
                    bucket.write(parameter)
        coming = self._buckets[0].reduce(group) if self._buckets else None
        for number, bucket in enumerate(self._buckets):
            work = coming
            coming = self._buckets[number + 1].reduce(group) if number + 1 < len(self._buckets) else None
            if work is not None:
                work.wait()
            for parameter in bucket.parts:
                self.state[parameter]["step"] += 1
            bucket.update(int(self.state[parameter]["step"]), self.param_groups[bucket.group])
        return loss


class _Bucket:
    """Some parameters of one group, dtype and device, as concatenated vectors of their remaining weights: `parts` has
    the slices. `there`: parameters that have received a gradient since the last `zero_grad`."""

    def __init__(self, group: int, parameters: Iterable[nn.Parameter], states: Pruned):
        self.group, self._pruned = group, states
        self.parts: dict[nn.Parameter, slice] = {}
        self.there: set[nn.Parameter] = set()
        count = 0
        for parameter in parameters:
            self.parts[parameter] = slice(count, count + states.left(parameter))
            count += states.left(parameter)
        like = vector(parameter)
        self._gradient = torch.zeros(count, dtype=like.dtype, device=like.device)
        names = STATES[: 2 if like.dtype == torch.float32 else 3]
        self.states = {name: torch.zeros(count, device=like.device) for name in names}
        if "master" in self.states:
            self._gather(self.states["master"])

    def take(self, parameter: nn.Parameter) -> None:
        """After a backward pass: store a parameter's gradient in compressed form."""
        if parameter.grad is not None:
            self.write(parameter)
            parameter.grad = None

    @torch.no_grad()
    def write(self, parameter: nn.Parameter) -> None:
        """Add `.grad` to the stored gradient."""
        places, mine = self._pruned.places[parameter], self._gradient[self.parts[parameter]]
        found = gradient_vector(parameter)
        if parameter in self.there:
            mine.add_(found if places is None else found.index_select(0, places))
        elif places is None:
            mine.copy_(found)
        else:
            torch.index_select(found, 0, places, out=mine)
        self.there.add(parameter)

    def reduce(self, group: dist.ProcessGroup | None) -> dist.Work | None:
        """Start to average the gradients over the group."""
        for parameter, place in self.parts.items():
            if parameter not in self.there:
                self._gradient[place].zero_()
        if group is None:
            return None
        self._gradient.div_(dist.get_world_size(group))
        work: dist.Work = dist.all_reduce(self._gradient, group=group, async_op=True)
        return work

    def update(self, step: int, options: dict[str, Any]) -> None:
        """Update the weights; overwrites the gradients."""
        is_half = "master" in self.states
        if is_half:
            for parameter, place in self.parts.items():
                take_over(self.states["master"][place], self._weights(parameter))
        weights = self.states["master"] if is_half else self._gather(torch.empty_like(self.states["exp_avg"]))
        gradient = self._gradient.float() if is_half else self._gradient
        update(weights, gradient, self.states["exp_avg"], self.states["exp_avg_sq"], step, options)
        self.there.clear()
        weights = weights.to(self._gradient.dtype)
        for parameter, place in self.parts.items():
            places = self._pruned.places[parameter]
            if places is None:
                vector(parameter).copy_(weights[place])
            else:
                vector(parameter).index_put_((places,), weights[place])

    def _gather(self, weights: torch.Tensor) -> torch.Tensor:
        """Fill a vector with the parameters' current remaining weights."""
        for parameter, place in self.parts.items():
            weights[place] = self._weights(parameter)
        return weights

    def _weights(self, parameter: nn.Parameter) -> torch.Tensor:
        """The remaining weights of a parameter."""
        places = self._pruned.places[parameter]
        return vector(parameter) if places is None else vector(parameter).index_select(0, places)


def _module(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, DistributedDataParallel) else model


def _largest(parameter: nn.Parameter, share: float) -> torch.Tensor:
    """bool[elements], false for the share of smallest magnitude; among equal ones the first remain."""
    magnitudes = vector(parameter).abs()
    left = max(1, parameter.numel() - round(share * parameter.numel()))
    order = torch.argsort(magnitudes, descending=True, stable=True)[:left]
    return torch.zeros_like(magnitudes, dtype=torch.bool).index_fill_(0, order, True)


def _agreed(parameter: nn.Parameter, mask: torch.Tensor | None, group: dist.ProcessGroup | None) -> torch.Tensor | None:
    """int32 indices of the remaining weights according to the first rank's mask; None if all remain."""
    if mask is None:
        return None
    if group is not None:
        flags = mask.to(torch.uint8)
        dist.broadcast(flags, group=group, group_src=0)
        mask = flags.bool()
    places = mask.nonzero().view(-1).to(torch.int32)
    return None if places.numel() == parameter.numel() else places


def _divided(parameters: list[nn.Parameter], states: Pruned, bucket_bytes: int) -> list[list[nn.Parameter]]:
    """Divide parameters, in order, into buckets of at most `bucket_bytes` of gradients, or of a single parameter."""
    buckets: list[list[nn.Parameter]] = []
    free = 0
    for parameter in parameters:
        size = states.left(parameter) * parameter.element_size()
        if size > free or not buckets:
            buckets.append([])
            free = bucket_bytes
        buckets[-1].append(parameter)
        free -= size
    return buckets


def _sum_of_what_is_left(states: Pruned, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """DistributedDataParallel's communication hook: averages the remaining gradients; the rest of the bucket is set to
    zero."""
    buffer = bucket.buffer()
    parameters: list[Any] = bucket.parameters()
    places = [states.places[parameter] for parameter in parameters]
    gradients = [gradient.reshape(-1) for gradient in bucket.gradients()]
    compact = buffer
    if any(each is not None for each in places):
        compact = torch.cat([g if at is None else g[at] for g, at in zip(gradients, places, strict=True)])
    compact.div_(dist.get_world_size(states.group))
    work = dist.all_reduce(compact, group=states.group, async_op=True)

    def spread(done: torch.futures.Future[Any]) -> torch.Tensor:
        done.value()  # raises the error of the all-reduce
        if compact is not buffer:
            buffer.zero_()
            sizes = [g.numel() if at is None else at.numel() for g, at in zip(gradients, places, strict=True)]
            for gradient, at, part in zip(gradients, places, compact.split(sizes), strict=True):
                if at is None:
                    gradient.copy_(part)
                else:
                    gradient.index_put_((at,), part)
        return buffer

    future: torch.futures.Future[torch.Tensor] = work.get_future().then(spread)
    return future
