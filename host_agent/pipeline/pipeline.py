"""`Pipeline`: a training step of a model whose stages are on different ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.stage import _PipelineStageBase

from host_agent.pipeline.gradients import BUCKET_BYTES, GradientBuckets
from host_agent.pipeline.groups import PipelineGroups, pipeline_groups
from host_agent.pipeline.message_driven import ScheduleMessageDriven
from switchml.errors import ConfigError

MESSAGE_DRIVEN, ONE_F_ONE_B, GPIPE = "message-driven", "1f1b", "gpipe"
SCHEDULES = (MESSAGE_DRIVEN, ONE_F_ONE_B, GPIPE)
REDUCTIONS = ("mean", "sum")


class Pipeline:
    """One rank's stage of a model, and the schedule by which micro-batches pass through all of them.

        pipeline = Pipeline([nn.Sequential(*layers[:4]), nn.Sequential(*layers[4:])], 8, nn.CrossEntropyLoss())
        optimizer = torch.optim.SGD(pipeline.module.parameters(), lr=0.1)
        for images, labels in batches:
            optimizer.zero_grad()
            loss = pipeline.step(images, target=labels)  # the last stage's; None elsewhere
            optimizer.step()

    stages: the model's parts in order, all on every rank, of which this rank keeps its own; or this rank's stage, as
        `torch.distributed.pipelining` makes it from a part (`PipelineStage`) or from a traced model (`build_stage`).
        Ranks are numbered as `pipeline_groups` says.
    micro_batches: into how many a batch is divided, along dimension 0.
    loss: of the last stage's output and a micro-batch's target, a scalar.
    reduction: "mean" if `loss` is a mean over samples, "sum" if it is a sum. Gradients are those of the whole batch,
        and the mean over replicas or the sum of them.
    schedule: "message-driven" (ScheduleMessageDriven), or "1f1b" or "gpipe", which are torch's.
    groups: this rank's place. By default, for parts, what `pipeline_groups` makes; for a stage of torch's there are
        no replicas without it.
    in_flight: how many micro-batches the message-driven schedule lets in; by default as many as there are stages.

    Replicas begin with the first one's parameters and buffers. A stage's gradients are all-reduced over
    `groups.data`, in buckets of `bucket_bytes`, once its last micro-batch has come back, while stages before it are
    still at work.

    Raises ConfigError.
    """

    def __init__(
        self,
        stages: Sequence[nn.Module] | _PipelineStageBase,
        micro_batches: int,
        loss: Callable[[Any, Any], torch.Tensor],
        *,
        schedule: str = MESSAGE_DRIVEN,
        reduction: str = "mean",
        groups: PipelineGroups | None = None,
        in_flight: int | None = None,
        bucket_bytes: int = BUCKET_BYTES,
    ):
        _check(schedule, SCHEDULES, "schedule")
        _check(reduction, REDUCTIONS, "reduction")
        if micro_batches < 1:
            raise ConfigError(f"{micro_batches} micro-batches: expected at least 1")
        if isinstance(stages, _PipelineStageBase):
            self._stage = stages
        else:
            groups = groups or pipeline_groups(len(stages))
            if groups.stages != len(stages):
                raise ConfigError(f"{len(stages)} parts of a model for {groups.stages} stages: expected one for each")
            device = next((p.device for p in stages[groups.stage].parameters()), torch.device("cpu"))
            mine = stages[groups.stage]
            self._stage = PipelineStage(mine, groups.stage, groups.stages, device, group=groups.messages)
        if schedule == ONE_F_ONE_B and micro_batches < self._stage.num_stages:
            raise ConfigError(
                f"{micro_batches} micro-batches for {self._stage.num_stages} stages: schedule {schedule} needs at "
                "least as many micro-batches as stages"
            )
        if in_flight is not None and schedule != MESSAGE_DRIVEN:
            raise ConfigError(f"in_flight={in_flight} with schedule {schedule}: only {MESSAGE_DRIVEN} has a choice")
        self._micro_batches, self._mean = micro_batches, reduction == "mean"
        self._batch: int | None = None
        what: dict[str, Any] = {"loss_fn": loss, "scale_grads": self._mean}
        self._schedule: ScheduleMessageDriven | Schedule1F1B | ScheduleGPipe
        if schedule == MESSAGE_DRIVEN:
            self._schedule = ScheduleMessageDriven(self._stage, micro_batches, in_flight=in_flight, **what)
        else:
            self._schedule = (Schedule1F1B if schedule == ONE_F_ONE_B else ScheduleGPipe)(
                self._stage, micro_batches, **what
            )
        self._buckets: GradientBuckets | None = None
        if groups is not None and groups.data is not None:
            for tensor in (*self.module.parameters(), *self.module.buffers()):
                dist.broadcast(tensor.detach(), group=groups.data, group_src=0)
            parameters = self.module.parameters()
            self._buckets = GradientBuckets(parameters, groups.data, mean=self._mean, bucket_bytes=bucket_bytes)

    @property
    def module(self) -> nn.Module:
        """This rank's part of the model."""
        module: nn.Module = self._stage.submod
        return module

    @property
    def is_first(self) -> bool:
        return bool(self._stage.is_first)

    @property
    def is_last(self) -> bool:
        return bool(self._stage.is_last)

    def step(self, *inputs: Any, target: Any = None) -> torch.Tensor | None:
        """Pass a batch forward and backward through all stages, and add its gradients to `.grad` of this one.

        inputs: the first stage's arguments, `target`: the last stage's, with samples along dimension 0. Other ranks'
        are not looked at. Gradients already in `.grad` are summed over replicas again: call `zero_grad` before.

        Returns the loss over this replica's batch on the last stage, else None. Raises ConfigError if a batch cannot be
        divided, or has another size than the first one; PeerLost if another stage's rank is gone; what all-reduces
        raise."""
        losses: list[torch.Tensor] = []
        self._schedule.step(
            *self._own(inputs, self.is_first), losses=losses, return_outputs=False, **self._target(target)
        )
        if self._buckets is not None:
            self._buckets.launch()
            self._buckets.wait()
        return self._loss(losses) if self.is_last else None

    def evaluate(self, *inputs: Any, target: Any = None) -> tuple[Any, torch.Tensor] | None:
        """Pass a batch forward only; returns the last stage's outputs and the loss on the last stage, else None."""
        losses: list[torch.Tensor] = []
        with torch.no_grad():
            outputs = self._schedule.eval(*self._own(inputs, self.is_first), losses=losses, **self._target(target))
        return (outputs, self._loss(losses)) if self.is_last else None

    def _target(self, target: Any) -> dict[str, Any]:
        return {"target": self._own((target,), self.is_last)[0]} if self.is_last else {}

    def _loss(self, losses: list[torch.Tensor]) -> torch.Tensor:
        total = torch.stack([loss.detach() for loss in losses]).sum()
        return total / self._micro_batches if self._mean else total

    def _own(self, batch: tuple[Any, ...], is_ours: bool) -> tuple[Any, ...]:
        """What of a batch this stage needs."""
        for tensor in batch if is_ours else ():
            if not isinstance(tensor, torch.Tensor):
                continue
            size = tensor.shape[0] if tensor.ndim else 0
            if size < 1 or size % self._micro_batches:
                raise ConfigError(
                    f"a batch of {size} samples cannot be divided into {self._micro_batches} micro-batches of one size"
                )
            if self._batch is not None and size != self._batch:
                raise ConfigError(
                    f"a batch of {size} samples after batches of {self._batch}: stages have memory for messages of one "
                    "size (a DataLoader's drop_last=True leaves out a last batch that is smaller)"
                )
            self._batch = size
        return batch if is_ours else ()


def _check(value: str, known: tuple[str, ...], what: str) -> None:
    if value not in known:
        raise ConfigError(f"{what} {value!r}: expected one of {', '.join(known)}")
