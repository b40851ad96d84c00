"""Values that absent ranks contribute to a collective, such that losses stay plausible. Floating-point tensors follow
the mode of `PeerSettings.values`; integers, bools and bytes (sizes, counts, flags, pickled objects) are this rank's
own.
"""

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist

from switchml.errors import ConfigError

Op = dist.ReduceOp
Reduction = dist.ReduceOp | dist.ReduceOp.RedOpType
"""Reduction operation; torch passes either type."""


@dataclass(frozen=True)
class Values:
    """Generates contributions. `mode`: "own", "noise" or "zeros". `noise`: standard deviation relative to the root mean
    square."""

    mode: str
    noise: float = 0.1
    seed: int = 0

    def reduce(self, tensor: torch.Tensor, op: Reduction, real: int, absent: int, draw: int) -> None:
        """Extend a reduction in place: `tensor` is the reduction over `real` ranks (their sum, if `op` is the mean),
        and becomes that over all. Absent ranks contribute the mean of the real ones, which is exact for one real rank
        in a world whose size is a power of two. `draw` numbers the collective: all real ranks draw the same noise."""
        world = real + absent
        mode = self.mode if tensor.is_floating_point() or tensor.is_complex() else "own"
        if not absent or not tensor.numel():
            if op == Op.AVG:
                _divide(tensor, world)
        elif op == Op.SUM or op == Op.AVG:
            self._sum(tensor, op == Op.AVG, real, absent, mode, draw)
        elif op == Op.PRODUCT:
            tensor.mul_(0) if mode == "zeros" else tensor.copy_(_power(tensor, real, world))
        elif op == Op.MAX or op == Op.MIN:
            if mode == "zeros":
                tensor.clamp_(min=0) if op == Op.MAX else tensor.clamp_(max=0)
        elif op == Op.BXOR:
            if world // real % 2 == 0:
                tensor.zero_()
        elif op != Op.BAND and op != Op.BOR:
            raise ConfigError(
                f"emulated peers can't reduce by {op}; expected SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR"
            )

    def _sum(self, tensor: torch.Tensor, is_mean: bool, real: int, absent: int, mode: str, draw: int) -> None:
        world = real + absent
        if mode == "zeros":
            if is_mean:
                _divide(tensor, world)
            return
        if mode == "noise":
            # The sum of `absent` independent noises has that many times the variance.
            spread = self.noise * float(_rms(tensor)) / real * absent**0.5
            noise = self._normal(tensor, draw, 0) * spread
        if is_mean:
            _divide(tensor, real)
        elif real == 1:
            tensor.mul_(world)
        elif tensor.is_floating_point() or tensor.is_complex():
            tensor.mul_(world / real)
        else:
            tensor.mul_(world).floor_divide_(real)
        if mode == "noise":
            tensor.add_(noise / world if is_mean else noise)

    def instead_of(self, rank: int, tensor: torch.Tensor, out: torch.Tensor, draw: int) -> None:
        """Fill `out` with the data from absent `rank` where a real one sends `tensor`, repeated or cut to its size."""
        if not out.numel():
            return
        if tensor.numel():
            times = -(-out.numel() // tensor.numel())
            flat = tensor.reshape(-1) if times == 1 else tensor.reshape(-1).repeat(times)
            out.copy_(flat[: out.numel()].reshape(out.shape))
        else:
            out.zero_()
        if out.is_floating_point():
            if self.mode == "zeros":
                out.zero_()
            elif self.mode == "noise":
                out.add_(self._normal(out, draw, rank + 1) * (self.noise * float(_rms(out))))

    def _normal(self, like: torch.Tensor, draw: int, rank: int) -> torch.Tensor:
        seed = (self.seed * 1_000_003 + draw) * 1_000_003 + rank
        generator = torch.Generator(device="cpu").manual_seed(seed % 2**63)
        dtype = like.dtype if like.is_complex() or like.dtype == torch.float64 else torch.float32
        return torch.randn(like.shape, generator=generator, dtype=dtype).to(like.dtype)


def _rms(tensor: torch.Tensor) -> torch.Tensor:
    wide = tensor if tensor.dtype in (torch.float64, torch.complex64, torch.complex128) else tensor.float()
    norm: torch.Tensor = torch.linalg.vector_norm(wide)
    return norm / math.sqrt(tensor.numel())


def _divide(tensor: torch.Tensor, by: int) -> None:
    if by > 1:
        tensor.div_(by) if tensor.is_floating_point() or tensor.is_complex() else tensor.floor_divide_(by)


def _power(tensor: torch.Tensor, real: int, world: int) -> torch.Tensor:
    if world % real == 0:
        return tensor ** (world // real)
    return (tensor.double() ** (world / real)).to(tensor.dtype)
