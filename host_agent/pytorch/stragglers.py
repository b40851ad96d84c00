"""A communication hook for DistributedDataParallel whose sums do not wait for late ranks
(host_agent/calls.py, `LateContributions`; docs/reliability.md).

    state = StragglerState()  # of a group whose job has a deadline: SWITCHML_DEADLINE=50ms
    ddp.register_comm_hook(state, straggler_hook)
    while step < steps:
        loss_of(ddp, next(batches)).backward()
        optimizer.step()
        step += 1
        for _ in state.catch_up(steps - step):
            optimizer.step()
            step += 1

All ranks make the same number of steps. Buffers that DDP broadcasts before each forward pass (of batch norms, say)
would wait for every rank: use `broadcast_buffers=False`. So would any other collective within the loop. A loop without
`catch_up` trains, too, but a rank that was late once stays behind: the others do not wait for it, and its gradients
accumulate in its error feedback.
"""

# No deferred annotations here: DDP compares those of a hook with its own classes.

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from host_agent.base import Agent
from host_agent.calls import LateContributions
from host_agent.pytorch.compiling import never_compiled
from host_agent.pytorch.futures import Promise
from switchml.errors import ConfigError, UnsupportedTensor

log = logging.getLogger("host_agent")

_BUILDING = 2
"""Iterations in which DDP may still rebuild its buckets. Their sums wait for every rank."""


@dataclass
class _Bucket:
    """One bucket's parameters, in order, and the part of its gradients that was too late."""

    parameters: list[torch.Tensor]
    late: LateContributions


class StragglerState:
    """State of `straggler_hook`: one per DDP module, created on every rank. `process_group`: the module's (None: the
    default one), of the backend `switchml`. Raises ConfigError if its job has no deadline."""

    def __init__(self, process_group: dist.ProcessGroup | None = None):
        agent = getattr(process_group or dist.group.WORLD, "agent", None)
        if not isinstance(agent, Agent) or not agent.deadline_s:
            raise ConfigError("straggler_hook: expected a group of the backend switchml, joined with SWITCHML_DEADLINE")
        self.agent = agent
        self.iterations = self.caught_up = 0
        """Number of backward passes so far, and of steps made by `catch_up`."""
        self.buckets: dict[int, _Bucket] = {}
        self._has_warned = False

    @property
    def steps(self) -> int:
        """Total number of steps so far."""
        return self.iterations + self.caught_up

    @property
    def is_behind(self) -> bool:
        """Whether all of the last step came too late, so that the other ranks may have made further steps."""
        return bool(self.buckets) and all(bucket.late.is_behind for bucket in self.buckets.values())

    def begin_iteration(self) -> None:
        """Count an iteration when the backward pass has its first bucket."""
        self.iterations += 1
        if self.is_behind and not self._has_warned:
            self._has_warned = True
            log.warning(
                "rank %d is behind the others and goes on without StragglerState.catch_up: its gradients stay out of "
                "the sums until it has caught up (docs/reliability.md)",
                self.agent.rank,
            )

    def catch_up(self, most: int) -> Iterator[None]:
        """While this rank is behind, for at most `most` steps: set the parameters' `grad` to the mean gradients of a
        step that the others have made, for the caller to apply. Accumulated late gradients are added to the first sum
        that accepts them."""
        for _ in range(most):
            if not self.is_behind:
                return
            buckets = [bucket for _, bucket in sorted(self.buckets.items())]
            sums = [self.agent.allreduce(b.late.values, "mean", async_op=True, late=b.late) for b in buckets]
            for bucket, handle in zip(buckets, sums, strict=True):
                _put(torch.from_numpy(handle.wait()), bucket.parameters)
            self.caught_up += 1
            yield


def _put(mean: torch.Tensor, parameters: list[torch.Tensor]) -> None:
    """Copy a bucket's mean gradients to its parameters' `grad`."""
    parts = mean.split([parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        gradient = part.view_as(parameter).to(parameter.device, parameter.dtype)
        if parameter.grad is None:
            parameter.grad = gradient
        else:
            parameter.grad.copy_(gradient)


@never_compiled
def straggler_hook(state: StragglerState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Mean of a bucket's gradients over the ranks that are in time.

    1. Add the bucket's late gradients of earlier steps, as float32.
    2. Sum; the part that is too late is stored again. While DDP rebuilds its buckets, wait for every rank instead.
    3. Write the mean into the bucket's buffer and complete the future.

    Raises UnsupportedTensor out of `backward()` for gradients that are not float32, float16 or bfloat16.
    """
    buffer = bucket.buffer()
    if buffer.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise UnsupportedTensor(f"bucket of {buffer.dtype}: expected gradients of float32, float16 or bfloat16")
    if bucket.index() == 0:
        state.begin_iteration()
    values = buffer.detach().to("cpu", torch.float32).numpy().copy()
    late = None
    if state.iterations > _BUILDING:
        known = state.buckets.get(bucket.index())
        if known is None:
            known = _Bucket(bucket.parameters(), LateContributions(np.zeros(values.size, np.float32)))
            state.buckets[bucket.index()] = known
        late = known.late
        values += late.values
    promise: Promise[torch.Tensor] = Promise([buffer])

    def done(error: BaseException | None) -> None:
        if error is None:
            buffer.copy_(torch.from_numpy(values))
        promise.complete(buffer, error)

    at = values.ctypes.data
    state.agent.allreduce_address(at, at, values.size, "float32", "mean", done, keep=values, late=late)
    return promise.future
