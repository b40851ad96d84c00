"""The program of one rank in an iteration, op by op in launch order: forward and backward passes as scheduled,
communication between and inside them, gradients, the optimizer.

Passes of a stage differ only in their micro-batch, so the first of each kind is built op by op and serves as a template
for the others (`blocks.py`).
"""

import dataclasses
import functools
import itertools
from typing import Any

import numpy as np

from emulator.cluster.cost import FREE, Cost
from emulator.jobs.blocks import Block, Ops
from emulator.jobs.costed import CostedJob, Stage, Step
from emulator.jobs.size import Budget
from emulator.jobs.units import Units
from emulator.jobs.workload.builder import GraphBuilder
from emulator.jobs.workload.graph import NO_MICRO_BATCH, Collective, Kind
from emulator.jobs.workload.models import Transformer
from emulator.jobs.workload.schedules import WEIGHTS as OF_WEIGHTS
from emulator.jobs.workload.schedules import passes

STREAMS = ("compute", "from before", "to next", "from next", "to before", "gradients", "weights")
COMPUTE, FROM_BEFORE, TO_NEXT, FROM_NEXT, TO_BEFORE, GRADIENTS, WEIGHTS = range(len(STREAMS))
TRANSFERS = 7
TENSOR, EXPERT, DATA, FORWARDS, BACKWARDS, TIED, CONTEXT = range(TRANSFERS)
"""Kinds of transfers."""
UNDIVIDED = 2
"""Priority of the op that ends a pass: above those of passes, so that nothing is scheduled in between."""


class OpTable:
    """The builder's op table for one plan, and the cost of each entry that is a collective."""

    def __init__(self, builder: GraphBuilder, plan: CostedJob, budget: Budget | None = None) -> None:
        self.builder, self.plan, self.budget = builder, plan, budget or Budget()
        self.costs: dict[int, Cost] = {}
        self.reduce_cost = functools.cache(plan.reduce)
        """Cost of reducing gradients, cached: equal for every bucket of a size."""


class Rank:
    """Collects the ops of one rank in launch order."""

    def __init__(self, number: int, op_table: OpTable) -> None:
        self.table, self.plan, self.job = op_table, op_table.plan, op_table.plan.job
        self.number = number
        self.stage = self.plan.stages[number]
        self.block = Block(op_table.budget)
        self.counts = dict.fromkeys((TENSOR, EXPERT, DATA, CONTEXT), 0)
        self.done: list[tuple[Step, int]] = []
        """Steps of the last backward pass and the ops after which their gradients are complete."""
        self._last_compute: tuple[int, ...] = ()
        self.pieces = _pieces(self.stage, number, self.plan)
        self.units: Units | None = None
        """Units of the piece whose pass is being built, where weights are sharded (ZeRO 3)."""
        self.message_driven = self.job.schedule == "axonn" and self.job.pp > 1
        self.last_backward: int | None = None
        self.start = self._compute("start of iteration", self.plan.iteration_s, kind=Kind.DELAY)
        self.returned: dict[int, int] = {}
        """Micro-batch → op of the first stage that ends its backward pass."""
        self.templates: dict[tuple[int, int], tuple[Ops, dict[int, int]]] = {}
        op_table.budget.check_ops(
            (3 if self.job.splits_backward else 2) * self.job.micro_batches * self.job.virtual_stages
        )
        order = passes(self.job, number)
        first_of_last = len(order) - self.job.virtual_stages
        for i, (forward, micro_batch, piece) in enumerate(map(np.ndarray.tolist, order)):
            is_last = forward != 1 and i >= first_of_last
            if not is_last and self._repeated(forward, micro_batch, piece):
                continue
            self.block.cut()
            if self.job.zero == 3 and self.job.dp > 1:
                self.units = Units(self, self.pieces[piece], bool(forward), self.units)
            if forward == OF_WEIGHTS:
                self._weights(self.pieces[piece], micro_batch, is_last)
            elif forward:
                self._forward(micro_batch, piece)
            else:
                self._backward(micro_batch, piece, is_last)
            if not is_last:
                self._remember(forward, micro_batch, piece)
        self._finish()

    def _remember(self, forward: int, micro_batch: int, piece: int) -> None:
        """Save the pass just added as a template, unless it depends on ops of earlier passes."""
        if self.message_driven or self.job.zero == 3:
            return
        if (ops := self.block.cut()) is None:
            return
        used = {kind: int((ops.kind == kind).sum()) for kind in self.counts}
        numbers = ops.number.copy()
        for kind, count in used.items():
            numbers[ops.kind == kind] -= self.counts[kind] - count
        numbers[(ops.kind == FORWARDS) | (ops.kind == BACKWARDS)] -= micro_batch
        self.templates[forward, piece] = dataclasses.replace(ops, number=numbers), used

    def _repeated(self, forward: int, micro_batch: int, piece: int) -> bool:
        """Append a pass from its template, if there is one; return whether there was."""
        if (forward, piece) not in self.templates:
            return False
        template, used = self.templates[forward, piece]
        number_from = np.zeros(TRANSFERS + 1, np.int32)
        for kind, count in used.items():
            number_from[kind] = self.counts[kind]
            self.counts[kind] += count
        number_from[FORWARDS] = number_from[BACKWARDS] = micro_batch
        self.block.repeat(template, micro_batch, number_from)
        return True

    # Ops

    def _compute(
        self,
        name: str,
        seconds: float,
        micro_batch: int = NO_MICRO_BATCH,
        after: tuple[int, ...] = (),
        *,
        stream: int = COMPUTE,
        flops: float = 0.0,
        kind: Kind = Kind.COMPUTE,
        priority: int = 0,
    ) -> int:
        """Append an op of this rank alone and return its number."""
        op_type = self.table.builder.add_op_type(name, kind, flops=flops, seconds=seconds, priority=priority)
        op = self.block.add(op_type, stream, micro_batch=micro_batch, after=after)
        if stream == COMPUTE:
            self._last_compute = (op,)
        return op

    def _exchange(
        self,
        name: str,
        collective: Collective,
        bytes: float,
        cost: Cost,
        to: int,
        micro_batch: int = NO_MICRO_BATCH,
        after: tuple[int, ...] = (),
        *,
        stream: int = COMPUTE,
        number: int | None = None,
        kind: Kind = Kind.COLLECTIVE,
        is_source: bool = False,
        priority: int = 0,
    ) -> int:
        """Append this rank's op of a transfer of kind `to`, by default the next one of that kind, and return its
        number."""
        op_type = self.table.builder.add_op_type(
            name, kind, collective=collective, bytes=bytes, is_source=is_source, priority=priority
        )
        self.table.costs[op_type] = cost
        if number is None:
            number = self.counts[to]
            self.counts[to] += 1
        return self.block.add(op_type, stream, to, number, micro_batch, after)

    # Passes

    def _forward(self, micro_batch: int, piece: int) -> None:
        virtual = piece * self.job.pp + self.number
        after: tuple[int, ...] = ()
        if virtual > 0:
            after = (self._hand(FROM_BEFORE, FORWARDS, virtual - 1, micro_batch, Kind.RECV),)
        if self.message_driven:
            after = (*after, self.start)
            if self.number == 0 and micro_batch >= self.job.pp:
                # A new micro-batch for each one that has returned (AxoNN, inter_layer.py).
                after = (*after, self.returned[micro_batch - self.job.pp])
            last = self._whole("forward", self.pieces[piece], micro_batch, after, 0)
        else:
            last = self._steps_forward(self.pieces[piece], micro_batch, after)
            last = self._pack("compress activations", micro_batch, (last,)) if self.plan.packing_s else last
        if virtual < self.job.pp * self.job.virtual_stages - 1:
            self._hand(TO_NEXT, FORWARDS, virtual, micro_batch, Kind.SEND, (last,))

    def _backward(self, micro_batch: int, piece: int, is_last: bool) -> None:
        virtual = piece * self.job.pp + self.number
        after: tuple[int, ...] = ()
        if virtual < self.job.pp * self.job.virtual_stages - 1:
            after = (self._hand(FROM_NEXT, BACKWARDS, virtual, micro_batch, Kind.RECV),)
        steps = self.pieces[piece]
        if self.message_driven:
            if not after:
                after = (len(self.block) - 1,)  # the loss follows its own forward pass
            last = self._whole("backward", steps, micro_batch, after, 1)
            self.returned[micro_batch] = last
        else:
            if self.plan.packing_s:
                after = (self._pack("restore activations", micro_batch, after),)
            last = self._steps_backward(steps, micro_batch, after, is_last)
        self.last_backward = last
        if virtual > 0:
            self._hand(TO_BEFORE, BACKWARDS, virtual - 1, micro_batch, Kind.SEND, (last,))

    def _weights(self, steps: tuple[Step, ...], micro_batch: int, is_last: bool) -> None:
        """Append weight gradients, from inputs that the backward pass saved."""
        for step in reversed(steps):
            seconds = step.weights_s * self.stage.stretch
            own = self._compute(f"{step.name} weight gradients", seconds, micro_batch, flops=step.weights_flops)
            if is_last:
                self.done.append((step, own))
            self.last_backward = own

    def _hand(
        self, stream: int, to: int, boundary: int, micro_batch: int, kind: Kind, after: tuple[int, ...] = ()
    ) -> int:
        """Append the send or receive of a micro-batch between adjacent stages."""
        name = f"{kind.name.lower()} {'activations' if to == FORWARDS else 'their gradients'}"
        number = boundary * self.job.micro_batches + micro_batch
        what = name, Collective.P2P, self.plan.activation_p2p_bytes, self.plan.activation_p2p
        return self._exchange(*what, to, micro_batch, after, stream=stream, number=number, kind=kind)

    def _pack(self, name: str, micro_batch: int, after: tuple[int, ...]) -> int:
        """Append compression or decompression of the pass's saved activations."""
        seconds = self.plan.packing_s[self.number] / self.job.virtual_stages
        return self._compute(name, seconds, micro_batch, after, kind=Kind.CODEC)

    def _whole(
        self, direction: str, steps: tuple[Step, ...], micro_batch: int, after: tuple[int, ...], priority: int
    ) -> int:
        """Append a pass as few large ops, so that a message-driven stage does not switch passes between layers: all of
        its compute, then its communication with tensor- and expert-parallel ranks, before anything else."""
        is_forward = direction == "forward"
        seconds = sum(s.forward_s if is_forward else s.backward_s + s.recompute_s for s in steps) * self.stage.stretch
        last = self._compute(f"{direction} of stage {self.number}", seconds, micro_batch, after, priority=priority)
        times = [(1 if is_forward or not s.recomputes_all else 2, s) for s in steps]
        reduces = [(n, s.reduce, s.reduce_bytes) for n, s in times]
        exchanges = [(2 * n, s.exchange, s.exchange_bytes) for n, s in times]
        for name, what, to, each in (
            ("tensor-parallel all-reduces", Collective.ALL_REDUCE, TENSOR, reduces),
            ("expert all-to-alls", Collective.ALL_TO_ALL, EXPERT, exchanges),
        ):
            size, whole = sum(n * bytes for n, _, bytes in each), Cost(sum(n * one.seconds for n, one, _ in each))
            if size:
                name = f"{name} of a {direction} pass"
                last = self._exchange(name, what, size, whole, to, micro_batch, (last,), priority=UNDIVIDED)
        return last

    def _steps_forward(
        self, steps: tuple[Step, ...], micro_batch: int, after: tuple[int, ...], is_recomputed: bool = False
    ) -> int:
        last = -1
        for number, step in enumerate(steps):
            seconds = (step.recompute_s if is_recomputed else step.forward_s) * self.stage.stretch
            if self.units is not None and not is_recomputed:
                after = (*after, *self.units.enter(number, micro_batch))
            if step.exchange_bytes:
                self._all_to_all(step, micro_batch, after or (len(self.block) - 1,))
                after = ()
            name = f"{step.name} {'recomputed' if is_recomputed else 'forward'}"
            last = self._compute(name, seconds, micro_batch, after, flops=step.forward_flops)
            last = self._communicate_after(step, micro_batch, last, is_forward=True)
            after = ()
        return last

    def _steps_backward(self, steps: tuple[Step, ...], micro_batch: int, after: tuple[int, ...], is_last: bool) -> int:
        groups = _layers(steps) if any(step.recomputes_all for step in steps) else [steps]
        last, number = -1, len(steps)
        for group in reversed(groups):
            if self.units is not None and group[0].recomputes_all:
                after = (*after, *self.units.enter(number - 1, micro_batch))
            if group[0].recomputes_all:
                self._steps_forward(group, micro_batch, after, is_recomputed=True)
                after = ()
            for step in reversed(group):
                number -= 1
                if self.units is not None:
                    after = (*after, *self.units.enter(number, micro_batch))
                seconds = step.backward_s + (0.0 if step.recomputes_all else step.recompute_s)
                flops = step.backward_flops
                if self.job.splits_backward:
                    seconds, flops = seconds - step.weights_s, flops - step.weights_flops
                seconds *= self.stage.stretch
                own = self._compute(f"{step.name} backward", seconds, micro_batch, after, flops=flops)
                last = self._communicate_after(step, micro_batch, own, is_forward=False)
                if step.exchange_bytes:
                    last = self._all_to_all(step, micro_batch, (last,))
                after = ()
                if self.units is not None and (is_last or self.job.fsdp.reduce_each):
                    self.units.leave(number, last)
                if is_last:
                    self.done.append((step, own))
        return last

    def _communicate_after(self, step: Step, micro_batch: int, last: int, *, is_forward: bool) -> int:
        direction = 0 if is_forward else 1
        if step.context_bytes[direction]:
            kind = Collective.ALL_GATHER if self.job.cp_exchange == "ring" else Collective.ALL_TO_ALL
            name = f"context of attention {'forward' if is_forward else 'backward'}"
            what = kind, step.context_bytes[direction], step.context[direction]
            last = self._exchange(name, *what, CONTEXT, micro_batch, (last,))
        if step.exchange_bytes:
            last = self._all_to_all(step, micro_batch, (last,))
        if step.reduce_bytes:
            what = Collective.ALL_REDUCE, step.reduce_bytes, step.reduce
            last = self._exchange("tensor-parallel all-reduce", *what, TENSOR, micro_batch, (last,))
        return last

    def _all_to_all(self, step: Step, micro_batch: int, after: tuple[int, ...]) -> int:
        what = "expert all-to-all", Collective.ALL_TO_ALL, step.exchange_bytes, step.exchange
        return self._exchange(*what, EXPERT, micro_batch, after)

    # Sharded weights (launched by `units.py`)

    def last_compute(self) -> tuple[int, ...]:
        """The most recently launched compute op."""
        return self._last_compute

    def gather_unit(
        self, parameters: float, experts: float, micro_batch: int, after: tuple[int, ...], is_forward: bool
    ) -> int:
        """All-gather a unit's weights ahead of their use."""
        stream = WEIGHTS if self.plan.in_network else GRADIENTS
        return self._gather(parameters, experts, micro_batch, after, not is_forward, stream=stream, is_source=True)

    def reduce_unit(self, parameters: float, experts: float, after: tuple[int, ...]) -> int:
        """Reduce-scatter a unit's gradients."""
        return self._reduce("gradients of a unit", parameters, after, GRADIENTS, 1.0, experts)

    def _gather(
        self,
        parameters: float,
        experts: float,
        micro_batch: int,
        after: tuple[int, ...],
        during_scatter: bool = False,
        **how: Any,
    ) -> int:
        size, one = self.plan.gather(parameters, during_scatter, experts)
        name = "gather weights beside gradients" if during_scatter and self.plan.in_network else "gather weights"
        return self._exchange(name, Collective.ALL_GATHER, size, one, DATA, micro_batch, after, **how)

    # Gradients

    def _finish(self) -> None:
        """Reduce gradients, run the optimizer step, then gather what ZeRO has sharded."""
        job, plan, last = self.job, self.plan, self.last_backward
        waits: tuple[int, ...] = (last,) if last is not None else ()
        if self.units is not None:
            waits = (*waits, *self.units.reduced)
        elif job.dp > 1 and job.overlap and not self.message_driven:
            waits = self._reduce_in_buckets()
        elif job.dp > 1:
            parameters = self.stage.parameters
            nonzero = sum(step.parameters * step.density for step in self.stage.steps)
            density = nonzero / parameters if parameters else 1.0
            waits = (self._reduce("gradients", parameters, waits, COMPUTE, density, self.stage.expert_parameters),)
        if job.pp > 1 and plan.tied is not FREE and self.number in (0, job.pp - 1):
            what = "gradients of the tied embedding", Collective.ALL_REDUCE, plan.tied.bytes, plan.tied
            waits = (self._exchange(*what, TIED, after=waits, number=0),)
        last = self._compute(f"optimizer of stage {self.number}", plan.optimizer_s[self.number], after=waits)
        if job.zero in (1, 2) and job.dp > 1:
            self._gather(self.stage.parameters, self.stage.expert_parameters, NO_MICRO_BATCH, (last,))

    def _reduce(
        self, name: str, elements: float, after: tuple[int, ...], stream: int, density: float, experts: float
    ) -> int:
        """Reduce `elements` gradients, some of experts, with compression before and decompression after if there is a
        codec."""
        plan, codec = self.plan, self.plan.codec
        what = Collective.REDUCE_SCATTER if self.job.zero else Collective.ALL_REDUCE
        size = elements * self.job.gradient_bytes
        if codec is not None:
            what, size = Collective.ALL_GATHER if codec.gathers else what, codec.wire_bytes(elements)
            compress_s = codec.compress_s(plan.cluster, elements)
            after = (self._compute(f"compress {name}", compress_s, after=after, stream=stream, kind=Kind.CODEC),)
        costed = self.table.reduce_cost(elements, density, experts)
        last = self._exchange(name, what, size, costed, DATA, after=after, stream=stream)
        if codec is not None:
            seconds = plan.coding_s(elements) - compress_s
            last = self._compute(f"decompress {name}", seconds, after=(last,), stream=stream, kind=Kind.CODEC)
        return last

    def _reduce_in_buckets(self) -> tuple[int, ...]:
        """Reduce buckets, filled in the order in which the backward pass produces gradients; the remainder is the last
        bucket. Return the op after which all are reduced."""
        bucket = self.job.bucket_parameters(self.plan.model)
        last: tuple[int, ...] = ()
        pending, nonzero, experts = 0.0, 0.0, 0.0
        for step, op in self.done:
            pending += step.parameters
            nonzero += step.parameters * step.density
            experts += step.expert_parameters
            while pending >= bucket:
                full = bucket / pending
                what = nonzero / pending, experts * full
                last = (self._reduce("bucket of gradients", bucket, (op,), GRADIENTS, *what),)
                pending, nonzero, experts = pending - bucket, nonzero * (1 - full), experts * (1 - full)
        if pending > 0:
            what = nonzero / pending, experts
            last = (self._reduce("last bucket of gradients", pending, (op,), GRADIENTS, *what),)
        return last


def _pieces(stage: Stage, number: int, plan: CostedJob) -> list[tuple[Step, ...]]:
    """Split a stage's steps into its pieces: the embedding with the first, the loss with the last."""
    job, model, steps = plan.job, plan.model, list(stage.steps)
    if job.virtual_stages == 1 or not isinstance(model, Transformer):
        return [tuple(steps)]
    first = [steps.pop(0)] if number == 0 else []
    last = [steps.pop()] if number == job.pp - 1 else []
    ends = np.cumsum([0, *(2 * layers for layers in job.piece_layers(model, number))])
    pieces = [steps[start:end] for start, end in itertools.pairwise(ends.tolist())]
    pieces[0] = first + pieces[0]
    pieces[-1] = pieces[-1] + last
    return [tuple(piece) for piece in pieces]


def _layers(steps: tuple[Step, ...]) -> list[tuple[Step, ...]]:
    """Group steps that are recomputed together: attention and MLP of one layer; others are single."""
    groups: list[list[Step]] = []
    for step in steps:
        own = groups[-1] if groups else []
        if step.recomputes_all and step.name == "mlp" and len(own) == 1 and own[0].recomputes_all:
            own.append(step)
        else:
            groups.append([step])
    return [tuple(group) for group in groups]
