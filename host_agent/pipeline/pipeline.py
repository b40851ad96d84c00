"""`Pipeline`: a training step of a model whose stages are on different ranks."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.stage import _PipelineStageBase

from host_agent.pipeline.gradients import BUCKET_BYTES, GradientBuckets
from host_agent.pipeline.groups import PipelineGroups, pipeline_groups
from host_agent.pipeline.message_driven import ScheduleMessageDriven
from host_agent.pipeline.stages import Stage, keywords, send_only_what_fits, with_none, without_none
from switchml.errors import ConfigError

MESSAGE_DRIVEN, ONE_F_ONE_B, GPIPE = "message-driven", "1f1b", "gpipe"
SCHEDULES = (MESSAGE_DRIVEN, ONE_F_ONE_B, GPIPE)
REDUCTIONS = ("mean", "sum")
_NO_SAMPLES = -(1 << 62)
"""Value for a stage whose only tensors come from the previous stage."""


class Pipeline:
    """One rank's stage of a model, and the schedule of micro-batches through all stages::

        pipeline = Pipeline([nn.Sequential(*layers[:4]), nn.Sequential(*layers[4:])], 8, nn.CrossEntropyLoss())
        optimizer = torch.optim.SGD(pipeline.module.parameters(), lr=0.1)
        for images, labels in batches:
            optimizer.zero_grad()
            loss = pipeline.step(images, target=labels)  # on the last stage; None elsewhere
            optimizer.step()

    - stages: the model's parts in order, all on every rank, of which this rank keeps its own; or this rank's stage, as
      `torch.distributed.pipelining` creates it from a part (`PipelineStage`) or from a traced model (`build_stage`).
      Ranks are numbered as in `pipeline_groups`.
    - micro_batches: number of micro-batches into which a batch is divided, along dimension 0.
    - loss: function of the last stage's output and a micro-batch's target, returns a scalar.
    - reduction: "mean" if `loss` is a mean over samples, "sum" if it is a sum. Gradients are those of the whole batch,
      averaged or summed over replicas.
    - schedule: "message-driven" (ScheduleMessageDriven), or torch's "1f1b" or "gpipe".
    - groups: this rank's position and process groups. By default, for parts, the result of `pipeline_groups`; for a
      stage of torch, there are no replicas by default.
    - in_flight: maximum number of micro-batches in the message-driven schedule; by default the number of stages.

    Replicas start with the first one's parameters and buffers. A stage's gradients are all-reduced over `groups.data`,
    in buckets of `bucket_bytes`, once its last micro-batch has returned, while earlier stages still compute.

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
            self._stage = Stage(mine, groups.stage, groups.stages, device, group=groups.messages)
        self._parts = [self.module] if isinstance(stages, _PipelineStageBase) else list(stages)
        if schedule == ONE_F_ONE_B and micro_batches < self._stage.num_stages:
            raise ConfigError(
                f"{micro_batches} micro-batches for {self._stage.num_stages} stages: schedule {schedule} needs at "
                "least as many micro-batches as stages"
            )
        if in_flight is not None and schedule != MESSAGE_DRIVEN:
            raise ConfigError(f"in_flight={in_flight} with schedule {schedule}: only {MESSAGE_DRIVEN} has a choice")
        self._micro_batches, self._mean = micro_batches, reduction == "mean"
        self._shapes: list[Any] | None = None
        send_only_what_fits(self._stage)

        def of_last_stage(output: Any, target: Any) -> torch.Tensor:
            return loss(with_none(output), target)

        what: dict[str, Any] = {"loss_fn": of_last_stage, "scale_grads": self._mean}
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

    def step(self, *inputs: Any, target: Any = None, **options: Any) -> torch.Tensor | None:
        """Run a batch forward and backward through all stages, and add its gradients to the `.grad` of this stage.

        inputs: the first stage's arguments, `target`: the last stage's, with samples along dimension 0; ignored on
        other ranks. options: keyword arguments, passed to each stage whose forward accepts them; tensors are divided
        into micro-batches. Batches may differ in size and shape. Gradients already in `.grad` are summed over replicas
        again: call `zero_grad` before.

        Returns the loss over this replica's batch on the last stage, else None. Raises ConfigError on all ranks of the
        pipeline if a batch cannot be divided, UnsupportedTensor on a rank whose micro-batches have outputs of different
        shapes; PeerLost if another stage's rank is lost; and what all-reduces raise."""
        losses: list[torch.Tensor] = []
        args, named = self._agreed(inputs, target, options)
        self._schedule.step(*args, losses=losses, return_outputs=False, **named)
        if self._buckets is not None:
            self._buckets.launch()
            self._buckets.wait()
        return self._loss(losses) if self.is_last else None

    def evaluate(self, *inputs: Any, target: Any = None, **options: Any) -> tuple[Any, torch.Tensor] | None:
        """Run a batch forward only; returns the last stage's outputs and the loss on the last stage, else None."""
        losses: list[torch.Tensor] = []
        with torch.no_grad():
            args, named = self._agreed(inputs, target, options)
            outputs = self._schedule.eval(*args, losses=losses, **named)
        return (with_none(outputs), self._loss(losses)) if self.is_last else None

    def _loss(self, losses: list[torch.Tensor]) -> torch.Tensor:
        total = torch.stack([loss.detach() for loss in losses]).sum()
        return total / self._micro_batches if self._mean else total

    def _agreed(self, inputs: tuple[Any, ...], target: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Select the inputs of this stage after all stages have checked theirs: they exchange shapes again if those of
        any stage have changed since the previous batch, and none starts if one refuses."""
        args = without_none(inputs, self._micro_batches) if self.is_first else ()
        named = {name: options[name] for name in keywords(self.module, options)}
        if self.is_last:
            named["target"] = target
        tensors = {f"input {number}": value for number, value in enumerate(args)} | named
        tensors = {name: value for name, value in tensors.items() if isinstance(value, torch.Tensor)}
        refusal = self._refusal(tensors, options)
        shapes: list[Any] = [(name, value.shape, value.dtype) for name, value in tensors.items()]
        shapes += [parameter.requires_grad for parameter in self.module.parameters()]
        sizes = [0 if refusal else value.shape[0] for value in tensors.values() if with_none(value) is not None]
        most, least = max(sizes, default=_NO_SAMPLES), max((-size for size in sizes), default=_NO_SAMPLES)
        verdict = torch.tensor([shapes != self._shapes, refusal is not None, most, least], device=self._stage.device)
        dist.all_reduce(verdict, dist.ReduceOp.MAX, group=self._stage.group)
        changed, refused, most, least = verdict.tolist()
        if refused:
            raise ConfigError(refusal or "another stage of this pipeline refuses its part of this batch")
        if most != -least:
            raise ConfigError(
                f"a batch of {-least} samples on one stage and {most} on another: expected as many on all"
            )
        self._shapes = shapes
        if changed:
            self._schedule._stage_forward_initialized = self._schedule._stage_backward_initialized = False
        return args, named

    def _refusal(self, tensors: dict[str, torch.Tensor], options: dict[str, Any]) -> str | None:
        known = {name for part in self._parts for name in keywords(part, options)}
        if unknown := sorted(set(options) - known):
            return f"keyword {unknown[0]!r}: expected one that a stage's forward takes"
        for name, value in tensors.items():
            if not (value.ndim and value.shape[0]):
                return f"{name} is of shape {tuple(value.shape)}: expected samples along dimension 0"
            if value.shape[0] % self._micro_batches:
                size, count = value.shape[0], self._micro_batches
                return f"a batch of {size} samples cannot be divided into {count} micro-batches of one size"
        return None


def _check(value: str, known: tuple[str, ...], what: str) -> None:
    if value not in known:
        raise ConfigError(f"{what} {value!r}: expected one of {', '.join(known)}")
