"""Memory use over time of a block of operators, as in torch's eager autograd: a tensor lives from the operator that
writes it until the last one that needs it, in forward or in backward; a gradient until the preceding operator has used
it. The tensors of a transformer are in `blocks.py`, a whole training step is in `memory.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

KINDS = ("activations", "gradients", "temporary", "cached")
"""Categories of memory: activations and their gradients; weight gradients; gathered weights, copies for reduction, and
optimizer temporaries; and free blocks of the allocator that fit no later tensor."""
ACTIVATIONS, GRADIENTS, TEMPORARY, CACHED = range(4)
Bytes = tuple[float, float, float, float]
NOTHING: Bytes = (0.0, 0.0, 0.0, 0.0)


def _sum(one: Bytes, other: Bytes, times: float = 1.0) -> Bytes:
    a, b, c, d = other
    return (one[0] + times * a, one[1] + times * b, one[2] + times * c, one[3] + times * d)


@dataclass(frozen=True)
class Span:
    """Memory of a part of a step, in bytes by category: net change, and peak relative to its start."""

    net: Bytes = NOTHING
    peak: Bytes = NOTHING
    held: float = 0.0
    """Peak of tensors alone, which may occur at another time than the peak including cached blocks."""

    def then(self, *others: Span) -> Span:
        """Return this span followed by others."""
        net, peak, held = self.net, self.peak, self.held
        for other in others:
            peak = max(peak, _sum(net, other.peak), key=sum)
            held = max(held, sum(net[:CACHED]) + other.held)
            net = _sum(net, other.net)
        return Span(net, peak, held)

    def times(self, count: float) -> Span:
        """Return this span repeated `count` times: the peak is in the first or the last repetition."""
        if count <= 0:
            return Span()
        before = _sum(NOTHING, self.net, count - 1)
        peak = max(self.peak, _sum(before, self.peak), key=sum)
        return Span(_sum(before, self.net), peak, max(self.held, sum(before[:CACHED]) + self.held))


def change(kind: int, size: float) -> Span:
    """Return a span that allocates `size` bytes, or frees them if negative."""
    sizes = [0.0] * len(KINDS)
    sizes[kind] = size
    net: Bytes = (sizes[0], sizes[1], sizes[2], sizes[3])
    return Span(net, max(NOTHING, net, key=sum), max(0.0, sum(net[:CACHED])))


class _Count:
    """Current and peak bytes."""

    def __init__(self) -> None:
        self._now = [0.0] * len(KINDS)
        self._total = self._most = 0.0
        self._peak = NOTHING

    def add(self, size: float, kind: int = ACTIVATIONS) -> None:
        self._now[kind] += size
        self._total += size
        if self._total > self._most:
            self._most, self._peak = self._total, self._bytes()

    def _bytes(self) -> Bytes:
        a, b, c, d = self._now
        return (a, b, c, d)

    def span(self) -> Span:
        return Span(self._bytes(), self._peak, self._most)


@dataclass(frozen=True)
class Op:
    """An operator: reads tensors and writes one. Tensors are indexes into a block; sizes in bytes."""

    inputs: tuple[int, ...]
    output: int
    keeps: tuple[int, ...] = ()
    """Tensors that the operator's backward pass needs."""
    extra: float = 0.0
    """Additional output saved for backward: masks, statistics."""
    weight: float = 0.0
    """Bytes of the gradient of the operator's weight."""
    scratch: float = 0.0
    """Temporary memory in forward."""
    scratch_back: float = 0.0
    """Temporary memory in backward."""
    passes: bool = False
    """Whether the gradient of each input is that of the output, not a copy (addition)."""
    overwrites: bool = False
    """Whether the gradient of its input overwrites the saved tensor."""
    part: str = ""


class _Gradient:
    """Storage of a gradient, which several tensors may share."""

    def __init__(self, size: float) -> None:
        self.size, self.users = size, 1


@dataclass
class Block:
    """Operators in forward order. Tensor 0 is the input, which the preceding block allocates and this one frees; the
    last output is freed by the following block. In backward, likewise, it frees the gradient of its output and leaves
    that of its input."""

    sizes: list[float]
    ops: list[Op] = field(default_factory=list)
    replayed: range = range(0)
    """Operators whose tensors forward does not save, and that backward recomputes (checkpointing)."""
    stored: frozenset[int] = frozenset()
    """Outputs of replayed operators that are saved nevertheless, including `extra`."""
    held: frozenset[int] = frozenset()
    """Tensors that live until the end of the block's forward pass without being needed by an operator."""

    def add(
        self,
        inputs: int | Iterable[int],
        size: float,
        *,
        keeps: str | Iterable[int] = "",
        extra: float = 0.0,
        weight: float = 0.0,
        scratch: float = 0.0,
        scratch_back: float = 0.0,
        passes: bool = False,
        overwrites: bool = False,
        part: str = "",
    ) -> int:
        """Add an operator and return its output. `keeps`: "in", "out", "in out", or tensors."""
        read = (inputs,) if isinstance(inputs, int) else tuple(inputs)
        self.sizes.append(size)
        output = len(self.sizes) - 1
        if isinstance(keeps, str):
            keeps = (read if "in" in keeps else ()) + ((output,) if "out" in keeps else ())
        self.ops.append(Op(read, output, tuple(keeps), extra, weight, scratch, scratch_back, passes, overwrites, part))
        return output

    def checkpoint(self, which: range | None = None, stored: Iterable[int] = ()) -> Block:
        """Mark operators (default: all) as recomputed in backward, and return the block."""
        self.replayed, self.stored = range(len(self.ops)) if which is None else which, frozenset(stored)
        return self

    @property
    def output(self) -> int:
        return self.ops[-1].output

    def _holds(self) -> list[int]:
        """Return the number of users of each tensor after the forward pass."""
        holds = [0] * len(self.sizes)
        written = {self.ops[i].output for i in self.replayed}
        for i, op in enumerate(self.ops):
            if i not in self.replayed:
                for tensor in op.keeps:
                    holds[tensor] += 1
        for tensor in self._entering(written) | self.stored:
            holds[tensor] += 1
        return holds

    @property
    def kept(self) -> int:
        """Number of tensors saved for backward."""
        return sum(map(bool, self._holds()))

    def _entering(self, written: set[int]) -> set[int]:
        """Return the tensors that the replayed operators start from."""
        return {tensor for i in self.replayed for tensor in self.ops[i].inputs} - written

    def forward(self) -> Span:
        """Return the span from the block's input to its output."""
        count, holds = _Count(), self._holds()
        last_use = {tensor: i for i, op in enumerate(self.ops) for tensor in (*op.inputs, op.output)}
        last_use |= dict.fromkeys((self.output, *self.held), len(self.ops))
        for i, op in enumerate(self.ops):
            count.add(self.sizes[op.output] + op.extra + op.scratch)
            is_forgotten = i in self.replayed and op.output not in self.stored
            count.add(-op.scratch - (op.extra if is_forgotten else 0.0))
            for tensor in {*op.inputs, op.output}:
                if last_use[tensor] == i and not holds[tensor]:
                    count.add(-self.sizes[tensor])
        count.add(-sum(self.sizes[tensor] for tensor in self.held if not holds[tensor]))
        return count.span()

    def backward(self, accumulates: bool = False) -> Span:
        """Return the span from the gradient of its output to that of its input. `accumulates`: weight gradients are
        added to existing ones, and are temporary; otherwise they remain allocated."""
        count, holds = _Count(), self._holds()
        gradients = {self.output: _Gradient(self.sizes[self.output])}

        def release(gradient: _Gradient) -> None:
            gradient.users -= 1
            if not gradient.users:
                count.add(-gradient.size)

        def arrive(tensor: int, gradient: _Gradient) -> None:
            before = gradients.setdefault(tensor, gradient)
            if before is gradient:
                return
            if before.users > 1:  # shared with another tensor: torch adds up into a new one
                count.add(before.size)
                gradients[tensor] = _Gradient(before.size)
                release(before)
            release(gradient)

        for i in range(len(self.ops) - 1, -1, -1):
            if self.replayed and i == self.replayed[-1]:
                self._replay(count, holds)
            op = self.ops[i]
            mine = gradients.pop(op.output)
            count.add(op.scratch_back)
            arriving = []
            for tensor in op.inputs:
                if op.passes:
                    mine.users += 1
                    arriving.append((tensor, mine))
                elif self.sizes[tensor]:
                    count.add(0.0 if op.overwrites else self.sizes[tensor])
                    arriving.append((tensor, _Gradient(self.sizes[tensor])))
            count.add(op.weight, TEMPORARY if accumulates else GRADIENTS)
            if accumulates:
                count.add(-op.weight, TEMPORARY)
            count.add(-op.scratch_back - (0.0 if op.overwrites else op.extra))
            for tensor in op.keeps:
                self._let_go(tensor, count, holds, size=0.0 if op.overwrites else self.sizes[tensor])
            release(mine)
            for tensor, gradient in arriving:
                arrive(tensor, gradient)
        return count.span()

    def _let_go(self, tensor: int, count: _Count, holds: list[int], size: float) -> None:
        holds[tensor] -= 1
        if not holds[tensor]:
            count.add(-size)

    def _replay(self, count: _Count, holds: list[int]) -> None:
        """Recompute the replayed operators up to the last one that backward needs."""
        needed = [i for i in self.replayed if self.ops[i].keeps or self.ops[i].extra]
        again = [self.ops[i] for i in self.replayed if needed and i <= needed[-1]]
        starts = self._entering({self.ops[i].output for i in self.replayed}) | self.stored
        for op in again:
            for tensor in op.keeps:
                holds[tensor] += 1
        last_use = {tensor: k for k, op in enumerate(again) for tensor in (*op.inputs, op.output)}
        here = {tensor for tensor, users in enumerate(holds) if users and tensor in starts}
        for k, op in enumerate(again):
            if op.output not in here:
                count.add(self.sizes[op.output])
                here.add(op.output)
            count.add(op.scratch + (0.0 if op.output in self.stored else op.extra))
            count.add(-op.scratch)
            for tensor in {*op.inputs, op.output}:
                if last_use[tensor] == k and not holds[tensor]:
                    count.add(-self.sizes[tensor])
        for tensor in starts:
            self._let_go(tensor, count, holds, self.sizes[tensor])
