"""Values of one group's collectives: real ranks exchange theirs by Gloo, absent ranks contribute those of `values.py`
or of a recorded run. No time passes here. Ranks and the `number` of a collective are those in the group.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work

from emulator.peers.recording import Reader, Writer
from emulator.peers.values import Op, Reduction, Values
from switchml.errors import ConfigError

Tensors = Sequence[torch.Tensor]
Recorded = tuple[list[torch.Tensor], list[torch.Tensor]]
"""Inputs and outputs of a rank in a collective."""


class Gloo(Protocol):
    """The used subset of torch's ProcessGroupGloo, which its stub lacks."""

    def allreduce(self, tensors: list[torch.Tensor], options: dist.AllreduceOptions, /) -> Work: ...

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], /) -> Work: ...

    def broadcast(self, tensors: list[torch.Tensor], options: dist.BroadcastOptions, /) -> Work: ...

    def send(self, tensors: list[torch.Tensor], rank: int, tag: int, /) -> Work: ...

    def recv(self, tensors: list[torch.Tensor], rank: int, tag: int, /) -> Work: ...


class Exchange:
    """Exchanges values. `ranks`: members of the group, in the world; `real`: indexes of its real members; `gloo`: a
    group of these, or None."""

    def __init__(
        self,
        ranks: tuple[int, ...],
        me: int,
        real: tuple[int, ...],
        gloo: Gloo | None,
        values: Values,
        reader: Reader | None = None,
        writer: Writer | None = None,
    ):
        self._ranks, self._me, self._real, self._gloo = ranks, me, real, gloo
        self._values, self._reader, self._writer = values, reader, writer
        self._absent = [rank for rank in range(len(ranks)) if rank not in real]

    # Reductions

    def all_reduce(self, tensor: torch.Tensor, op: Reduction, number: int) -> None:
        """All-reduce in place."""
        both = [tensor]
        self._reduce("all_reduce", both, both, op, number)

    def reduce(self, tensor: torch.Tensor, op: Reduction, root: int, number: int) -> None:
        """Reduce in place at `root`; elsewhere `tensor` is unchanged."""
        out = tensor if self._me == root else tensor.clone()
        self._reduce("reduce", [tensor], [out], op, number)

    def reduce_scatter(self, out: torch.Tensor, chunks: Tensors, op: Reduction, number: int) -> None:
        """Set `out` to the reduction of all ranks' chunks for this rank."""
        self._reduce("reduce_scatter", list(chunks), [out], op, number, self._me)

    def _reduce(
        self,
        name: str,
        inputs: list[torch.Tensor],
        outputs: list[torch.Tensor],
        op: Reduction,
        number: int,
        mine: int = 0,
    ) -> None:
        """Set `outputs` to the reduction of `inputs[mine]`; other `inputs` are chunks for other real ranks."""
        before = [tensor.clone() for tensor in inputs] if self._writer else []
        then = self._recorded(name, number, inputs, outputs)
        is_sum = op == Op.SUM or op == Op.AVG
        is_here = inputs is outputs and then is None and outputs[0].is_contiguous()
        needed = self._real if len(inputs) > 1 else (0,)
        parts = {rank: inputs[rank] if is_here else inputs[rank].clone() for rank in needed}
        if then is not None and is_sum:
            parts = {rank: part - then[0][rank] for rank, part in parts.items()}
        if self._gloo is not None:
            for part in parts.values():  # a mean is a sum that is later divided by the number of all ranks
                self._gloo.allreduce([part], reduction(Op.SUM if op == Op.AVG else op)).wait()
        out, part = outputs[0], parts[mine].reshape(outputs[0].shape)
        if then is None:
            # Seeded with the group's collective number: ranks that reduce the same data draw the same values.
            self._values.reduce(part, op, len(self._real), len(self._absent), number)
            if not is_here:
                out.copy_(part)
        elif is_sum:
            if op == Op.AVG:
                part = part / len(self._ranks) if part.is_floating_point() else part // len(self._ranks)
            out.copy_(then[1][0] + part)
        else:
            out.copy_(_TWO[str(op)](then[1][0], part) if str(op) in _TWO else then[1][0])
        self._note(name, number, before, outputs)

    # Copies

    def broadcast(self, tensor: torch.Tensor, root: int, number: int) -> None:
        """Broadcast from `root`. An absent root's value is that of the first real rank."""
        then = self._recorded("broadcast", number, [tensor], [tensor])
        if root not in self._real and then is not None:
            tensor.copy_(then[1][0])
            return
        if self._gloo is not None:
            options = dist.BroadcastOptions()
            options.rootRank = self._real.index(root) if root in self._real else 0
            self._gloo.broadcast([tensor], options).wait()
        self._note("broadcast", number, [tensor], [tensor])

    def all_gather(self, outs: Tensors, tensor: torch.Tensor, number: int, name: str = "all_gather") -> None:
        """Set `outs[r]` to the tensor of rank r."""
        then = self._recorded(name, number, [tensor], outs)
        parts = [tensor]
        if self._gloo is not None:
            parts = [torch.empty_like(tensor) for _ in self._real]
            self._gloo.allgather([parts], [tensor.contiguous()]).wait()
        inputs = [tensor.clone()] if self._writer else []
        parts = [part.clone() for part in parts]
        for rank, part in zip(self._real, parts, strict=True):
            _fill(outs[rank], part)
        for place, rank in enumerate(self._absent):
            if then is not None:
                outs[rank].copy_(then[1][rank])
            else:
                self._values.instead_of(self._ranks[rank], parts[place % len(parts)], outs[rank], number)
        self._note(name, number, inputs, outs)

    def gather(self, outs: Tensors, tensor: torch.Tensor, root: int, number: int) -> None:
        """Gather as in `all_gather`, at `root`; `outs` is empty elsewhere."""
        if self._gloo is not None and root not in self._real:
            return
        if root != self._me:
            outs = [torch.empty_like(tensor) for _ in self._ranks]
        self.all_gather(outs, tensor, number, "gather")

    def scatter(self, out: torch.Tensor, chunks: Tensors, root: int, number: int) -> None:
        """Set `out` to `root`'s chunk for this rank; if `root` is absent, `out` is unchanged unless recorded."""
        then = self._recorded("scatter", number, [out], [out])
        if root not in self._real:
            if then is not None:
                out.copy_(then[1][0])
            return
        if self._me == root:
            for place, rank in enumerate(self._real):
                if rank != root and self._gloo is not None:
                    self._gloo.send([chunks[rank].contiguous()], place, 0).wait()
            out.copy_(chunks[root])
        elif self._gloo is not None:
            receive(self._gloo, out, self._real.index(root), 0)
        self._note("scatter", number, [out], [out])

    def all_to_all(self, outs: Tensors, chunks: Tensors, number: int) -> None:
        """Set `outs[r]` to rank r's chunk for this rank. An absent rank sends back what it receives, so that sizes
        match."""
        then = self._recorded("all_to_all", number, chunks, outs)
        inputs = [chunk.clone() for chunk in chunks]
        _fill(outs[self._me], inputs[self._me])
        if self._gloo is not None:
            sends = [
                self._gloo.send([inputs[rank].contiguous()], place, 0)
                for place, rank in enumerate(self._real)
                if rank != self._me and inputs[rank].numel()
            ]
            for place, rank in enumerate(self._real):
                if rank != self._me and outs[rank].numel():
                    receive(self._gloo, outs[rank], place, 0)
            for work in sends:
                work.wait()
        for rank in self._absent:
            if then is not None:
                outs[rank].copy_(then[1][rank])
            else:
                self._values.instead_of(self._ranks[rank], inputs[rank], outs[rank], number)
        self._note("all_to_all", number, inputs if self._writer else [], outs)

    # Replay and recording

    def _recorded(self, name: str, number: int, inputs: Tensors, outputs: Tensors) -> Recorded | None:
        """Return this rank's recorded inputs and outputs; None without replay."""
        if self._reader is None or not self._absent:
            return None
        return self._reader.find((self._ranks, number), name, inputs, outputs)

    def _note(self, name: str, number: int, inputs: Tensors, outputs: Tensors) -> None:
        if self._writer is not None:
            self._writer.add((self._ranks, number), name, inputs, outputs)


_TWO = {
    str(Op.MAX): torch.maximum,
    str(Op.MIN): torch.minimum,
    str(Op.BAND): torch.bitwise_and,
    str(Op.BOR): torch.bitwise_or,
}
"""Functions that combine a recorded result with that of the real ranks; for other operations the recorded result is
used."""


def reduction(op: Reduction) -> dist.AllreduceOptions:
    """Return options for Gloo's all-reduce."""
    options = dist.AllreduceOptions()
    options.reduceOp = op  # type: ignore[assignment]  # the stub only allows one of the types
    return options


def receive(gloo: Gloo, out: torch.Tensor, source: int, tag: int) -> None:
    """Receive into `out`, contiguous or not."""
    whole = out if out.is_contiguous() else torch.empty(out.shape, dtype=out.dtype)
    gloo.recv([whole], source, tag).wait()
    if whole is not out:
        out.copy_(whole)


def _fill(out: torch.Tensor, tensor: torch.Tensor) -> None:
    if out.numel() != tensor.numel():
        raise ConfigError(f"an output of {out.numel()} elements for a tensor of {tensor.numel()}; expected as many")
    out.copy_(tensor.reshape(out.shape))
