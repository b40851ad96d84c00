"""What one rank does in an iteration, op by op in the order in which it launches them: forward and backward passes as
its schedule has them, exchanges between and inside them, gradients, the optimizer.

Passes of a stage differ in nothing but their micro-batch; so the first of each kind is built op by op and becomes a
template for the others (`blocks.py`).
"""

from __future__ import annotations

import numpy as np

from emulator.cluster.collectives import cost
from emulator.cluster.cost import FREE, Cost
from emulator.jobs.blocks import Block, Ops
from emulator.jobs.costing import Plan, Stage, Step
from emulator.workload.builder import GraphBuilder
from emulator.workload.graph import Collective, Kind
from emulator.workload.job import Job
from emulator.workload.schedules import passes

STREAMS = ("compute", "from before", "to next", "from next", "to before", "gradients")
COMPUTE, FROM_BEFORE, TO_NEXT, FROM_NEXT, TO_BEFORE, GRADIENTS = range(len(STREAMS))
TRANSFERS = 6
TENSOR, EXPERT, DATA, FORWARDS, BACKWARDS, TIED = range(TRANSFERS)
"""Which transfers an op belongs to."""
UNDIVIDED = 2
"""Priority of what ends a pass: above those of passes, so that nothing comes between."""


class OpTable:
    """The builder's op table, and the cost of each entry that is a collective."""

    def __init__(self, builder: GraphBuilder) -> None:
        self.builder = builder
        self.costs: dict[int, Cost] = {}
        self._cache: dict[tuple[float, float], Cost] = {}

    def reduce_cost(self, plan: Plan, elements: float, density: float) -> Cost:
        """Of reducing so many gradients: the same for every bucket of a size."""
        key = elements, density
        if key not in self._cache:
            self._cache[key] = plan.reduce(elements, density)
        return self._cache[key]

    def compute(
        self, name: str, seconds: float, flops: float = 0.0, kind: Kind = Kind.COMPUTE, priority: int = 0
    ) -> int:
        return self.builder.add_work(name, kind, flops=flops, seconds=seconds, priority=priority)

    def transfer(
        self,
        name: str,
        collective: Collective,
        bytes: float,
        cost: Cost,
        kind: Kind = Kind.COLLECTIVE,
        is_source: bool = False,
        priority: int = 0,
    ) -> int:
        work = self.builder.add_work(
            name, kind, collective=collective, bytes=bytes, is_source=is_source, priority=priority
        )
        self.costs[work] = cost
        return work


class Rank:
    """Collects the ops of one rank in the order in which it launches them."""

    def __init__(self, plan: Plan, number: int, op_table: OpTable) -> None:
        self.plan, self.job, self.table = plan, plan.job, op_table
        self.number = number
        self.stage = plan.stages[number]
        self.block = Block()
        self.counts = dict.fromkeys((TENSOR, EXPERT, DATA), 0)
        self.done: list[tuple[Step, int]] = []
        """Steps of the last backward pass and the ops after which their gradients are complete."""
        self.recent: list[int] = []
        """The last two ops of compute."""
        self.pieces = _pieces(self.stage, number, self.job)
        self.message_driven = self.job.schedule == "axonn" and self.job.pp > 1
        self.last_backward = None
        start = self.block.add(op_table.compute("start of iteration", plan.iteration_s, kind=Kind.DELAY), COMPUTE)
        self.returned: dict[int, int] = {}
        """Micro-batch → the op of the first stage that ends its backward pass."""
        self.templates: dict[tuple[int, int], tuple[Ops, dict[int, int]]] = {}
        order = passes(self.job, number)
        final = len(order) - 1
        for i, (forward, micro_batch, piece) in enumerate(order.tolist()):
            is_last = not forward and i >= final - self.job.virtual_stages + 1
            if not is_last and self._repeated(forward, micro_batch, piece):
                continue
            self.block.cut()
            if forward:
                self._forward(micro_batch, piece, start)
            else:
                self._backward(micro_batch, piece, is_last)
            if not is_last:
                self._remember(forward, micro_batch, piece)
        self._finish()

    def _remember(self, forward: int, micro_batch: int, piece: int) -> None:
        """Keep the pass just added as a template, unless it waits for ops of earlier passes."""
        if self.message_driven or self.job.zero == 3:
            return
        ops = self.block.cut()
        used = {kind: int((ops.kind == kind).sum()) for kind in self.counts}
        numbers = ops.number.copy()
        for kind, count in used.items():
            numbers[ops.kind == kind] -= self.counts[kind] - count
        numbers[(ops.kind == FORWARDS) | (ops.kind == BACKWARDS)] -= micro_batch
        template = Ops(ops.work, ops.stream, ops.kind, numbers, ops.micro_batch, ops.dep_counts, ops.deps)
        self.templates[forward, piece] = template, used

    def _repeated(self, forward: int, micro_batch: int, piece: int) -> bool:
        """Add a pass from its template, where there is one."""
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

    # Passes

    def _forward(self, micro_batch: int, piece: int, start: int) -> None:
        virtual = piece * self.job.pp + self.number
        after: tuple[int, ...] = ()
        if virtual > 0:
            after = (self._hand(FROM_BEFORE, FORWARDS, virtual - 1, micro_batch, Kind.RECV),)
        if self.message_driven:
            after = (*after, start)
            if self.number == 0 and micro_batch >= self.job.pp:
                # A new micro-batch for every one that has come back (AxoNN, inter_layer.py).
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

    def _pack(self, name: str, micro_batch: int, after: tuple[int, ...]) -> int:
        """Compress or restore what the pass keeps."""
        seconds = self.plan.packing_s[self.number] / self.job.virtual_stages
        return self.block.add(
            self.table.compute(name, seconds, kind=Kind.CODEC), COMPUTE, micro_batch=micro_batch, after=after
        )

    def _whole(
        self, direction: str, steps: tuple[Step, ...], micro_batch: int, after: tuple[int, ...], priority: int
    ) -> int:
        """A pass as a whole, so that a message-driven stage does not change its mind between layers: all of its
        compute, then what it exchanges with tensor- and expert-parallel ranks, before anything else."""
        stretch, is_forward = self.stage.stretch, direction == "forward"
        seconds = sum(s.forward_s if is_forward else s.backward_s + s.recompute_s for s in steps) * stretch
        compute = self.table.compute(f"{direction} of stage {self.number}", seconds, priority=priority)
        last = self.block.add(compute, COMPUTE, micro_batch=micro_batch, after=after)
        times = [1 if is_forward or not s.recomputes_all else 2 for s in steps]
        exchanges = (
            ("tensor-parallel all-reduces", Collective.ALL_REDUCE, TENSOR, 1, "reduce"),
            ("expert all-to-alls", Collective.ALL_TO_ALL, EXPERT, 2, "exchange"),
        )
        for name, what, kind, each, field in exchanges:
            costs = [(n * each, getattr(s, field)) for n, s in zip(times, steps, strict=True)]
            size = sum(n * each * getattr(s, f"{field}_bytes") for n, s in zip(times, steps, strict=True))
            if not size:
                continue
            whole = Cost(sum(n * each.seconds for n, each in costs))
            work = self.table.transfer(f"{name} of a {direction} pass", what, size, whole, priority=UNDIVIDED)
            last = self.block.add(work, COMPUTE, kind, self._number(kind), micro_batch, (last,))
        return last

    def _steps_forward(
        self, steps: tuple[Step, ...], micro_batch: int, after: tuple[int, ...], is_recomputed: bool = False
    ) -> int:
        last = -1
        for step in steps:
            seconds = (step.recompute_s if is_recomputed else step.forward_s) * self.stage.stretch
            after = self._gather(step, micro_batch, after) if self.job.zero == 3 else after
            last = self._exchange(step, micro_batch, after)
            after = () if last >= 0 else after
            work = self.table.compute(
                f"{step.name} {'recomputed' if is_recomputed else 'forward'}", seconds, step.forward_flops
            )
            last = self.block.add(work, COMPUTE, micro_batch=micro_batch, after=after)
            self.recent = [*self.recent[-1:], last]
            last = self._communicate_after(step, micro_batch, last)
            after = ()
        return last

    def _steps_backward(self, steps: tuple[Step, ...], micro_batch: int, after: tuple[int, ...], is_last: bool) -> int:
        stretch = self.stage.stretch
        groups = _layers(steps) if any(step.recomputes_all for step in steps) else [steps]
        last = -1
        for group in reversed(groups):
            if group[0].recomputes_all:
                self._steps_forward(group, micro_batch, after, is_recomputed=True)
                after = ()
            for step in reversed(group):
                is_recomputed = 0.0 if step.recomputes_all else step.recompute_s
                work = self.table.compute(
                    f"{step.name} backward", (step.backward_s + is_recomputed) * stretch, step.backward_flops
                )
                if self.job.zero == 3 and not step.recomputes_all:
                    after = self._gather(step, micro_batch, after)
                last = self.block.add(work, COMPUTE, micro_batch=micro_batch, after=after)
                self.recent = [*self.recent[-1:], last]
                own = last
                last = self._exchange_after(step, micro_batch, self._communicate_after(step, micro_batch, last))
                after = ()
                if is_last:
                    self._ready(step, own)
        return last

    # Exchanges

    def _number(self, kind: int) -> int:
        self.counts[kind] += 1
        return self.counts[kind] - 1

    def _communicate_after(self, step: Step, micro_batch: int, last: int) -> int:
        if step.exchange_bytes:
            last = self._all_to_all(step, micro_batch, (last,))
        if step.reduce_bytes:
            work = self.table.transfer(
                "tensor-parallel all-reduce", Collective.ALL_REDUCE, step.reduce_bytes, step.reduce
            )
            last = self.block.add(work, COMPUTE, TENSOR, self._number(TENSOR), micro_batch, (last,))
        return last

    def _exchange(self, step: Step, micro_batch: int, after: tuple[int, ...]) -> int:
        return self._all_to_all(step, micro_batch, after or (len(self.block) - 1,)) if step.exchange_bytes else -1

    def _exchange_after(self, step: Step, micro_batch: int, last: int) -> int:
        return self._all_to_all(step, micro_batch, (last,)) if step.exchange_bytes else last

    def _all_to_all(self, step: Step, micro_batch: int, after: tuple[int, ...]) -> int:
        work = self.table.transfer("expert all-to-all", Collective.ALL_TO_ALL, step.exchange_bytes, step.exchange)
        return self.block.add(work, COMPUTE, EXPERT, self._number(EXPERT), micro_batch, after)

    def _hand(
        self, stream: int, kind: int, boundary: int, micro_batch: int, what: Kind, after: tuple[int, ...] = ()
    ) -> int:
        name = "activations" if kind == FORWARDS else "their gradients"
        work = self.table.transfer(
            f"{what.name.lower()} {name}", Collective.P2P, self.plan.hand_over_bytes, self.plan.hand_over, what
        )
        return self.block.add(work, stream, kind, boundary * self.job.micro_batches + micro_batch, micro_batch, after)

    def _gather(self, step: Step, micro_batch: int, after: tuple[int, ...]) -> tuple[int, ...]:
        """ZeRO 3: a step's weights, gathered while the two steps before run (FSDP's prefetching)."""
        if self.job.dp == 1 or not step.parameters:
            return after
        size = 2.0 * step.parameters
        one = cost(self.plan.cluster, "all_gather", size, self.plan.data_parallel)
        work = self.table.transfer("gather weights", Collective.ALL_GATHER, size, one, is_source=True)
        before = tuple(self.recent[:1]) if len(self.recent) == 2 else ()
        return (*after, self.block.add(work, GRADIENTS, DATA, self._number(DATA), micro_batch, before))

    # Gradients

    def _ready(self, step: Step, op: int) -> None:
        self.done.append((step, op))

    def _finish(self) -> None:
        """Reduce gradients, then the optimizer's step, then gather what ZeRO has sharded."""
        job, plan = self.job, self.plan
        waits: list[int] = [self.last_backward] if self.last_backward is not None else []
        if job.dp > 1:
            waits = (
                self._reduce_in_buckets()
                if self._overlaps
                else [self._reduce("gradients", self.stage.parameters, waits, COMPUTE, self._density)]
            )
        if job.pp > 1 and plan.tied is not FREE and self.number in (0, job.pp - 1):
            work = self.table.transfer(
                "gradients of the tied embedding", Collective.ALL_REDUCE, plan.tied.bytes, plan.tied
            )
            waits = [self.block.add(work, COMPUTE, TIED, 0, after=tuple(waits))]
        optimizer = self.table.compute(f"optimizer of stage {self.number}", plan.optimizer_s[self.number])
        last = self.block.add(optimizer, COMPUTE, after=tuple(waits))
        if job.zero in (1, 2) and job.dp > 1:
            size = 2.0 * self.stage.parameters
            one = cost(plan.cluster, "all_gather", size, plan.data_parallel)
            work = self.table.transfer("gather weights", Collective.ALL_GATHER, size, one)
            self.block.add(work, COMPUTE, DATA, self._number(DATA), after=(last,))

    @property
    def _density(self) -> float:
        """Of all gradients of the stage."""
        nonzero = sum(step.parameters * step.density for step in self.stage.steps)
        return nonzero / self.stage.parameters if self.stage.parameters else 1.0

    @property
    def _overlaps(self) -> bool:
        return (self.job.overlap or self.job.zero == 3) and not self.message_driven

    def _reduce(self, name: str, elements: float, after: list[int], stream: int, density: float = 1.0) -> int:
        """Reduce so many gradients; with a codec, between compressing and decompressing them."""
        plan = self.plan
        waits = tuple(after)
        if plan.codec is not None:
            compress_s = plan.codec.seconds(plan.cluster, elements)
            compress = self.table.compute(f"compress {name}", compress_s, kind=Kind.CODEC)
            waits = (self.block.add(compress, stream, after=waits),)
        gathers = plan.codec is not None and plan.codec.gathers
        what = (
            Collective.ALL_GATHER if gathers else Collective.REDUCE_SCATTER if self.job.zero else Collective.ALL_REDUCE
        )
        size = elements * self.job.gradient_bytes if plan.codec is None else plan.codec.wire_bytes(elements)
        work = self.table.transfer(name, what, size, self.table.reduce_cost(plan, elements, density))
        last = self.block.add(work, stream, DATA, self._number(DATA), after=waits)
        if plan.codec is not None:
            back = self.table.compute(f"decompress {name}", plan.coding_s(elements) - compress_s, kind=Kind.CODEC)
            last = self.block.add(back, stream, after=(last,))
        return last

    def _reduce_in_buckets(self) -> list[int]:
        """As DDP does: buckets fill in the order in which backward produces gradients; what is left is the last
        one."""
        bucket = self.job.bucket_bytes / self.job.gradient_bytes
        waits, pending, nonzero = [], 0.0, 0.0
        for step, op in self.done:
            pending += step.parameters
            nonzero += step.parameters * step.density
            while pending >= bucket:
                waits.append(self._reduce("bucket of gradients", bucket, [op], GRADIENTS, nonzero / pending))
                pending, nonzero = pending - bucket, nonzero * (1 - bucket / pending)
        if pending > 0:
            waits.append(
                self._reduce("last bucket of gradients", pending, [self.done[-1][1]], GRADIENTS, nonzero / pending)
            )
        return waits[-1:]


def _pieces(stage: Stage, number: int, job: Job) -> list[tuple[Step, ...]]:
    """A stage's steps, split into its pieces: layers evenly, the embedding with the first, the loss with the last."""
    steps = list(stage.steps)
    if job.virtual_stages == 1:
        return [tuple(steps)]
    first = [steps.pop(0)] if number == 0 else []
    last = [steps.pop()] if number == job.pp - 1 else []
    size = len(steps) // job.virtual_stages
    pieces = [steps[i * size : (i + 1) * size] for i in range(job.virtual_stages)]
    pieces[0] = first + pieces[0]
    pieces[-1] = pieces[-1] + last
    return [tuple(piece) for piece in pieces]


def _layers(steps: tuple[Step, ...]) -> list[tuple[Step, ...]]:
    """Steps that are recomputed together: attention and MLP of one layer; what is not recomputed stands alone."""
    groups: list[list[Step]] = []
    for step in steps:
        if (
            step.recomputes_all
            and step.name == "mlp"
            and groups
            and groups[-1][0].recomputes_all
            and len(groups[-1]) == 1
        ):
            groups[-1].append(step)
        else:
            groups.append([step])
    return [tuple(group) for group in groups]
