"""Bits, bytes and rows of a GPU's vectors by torch's operators, none of which waits for the device: what numpy does
with masks whose counts it finds itself needs the count before."""

import torch


def packed(mask: torch.Tensor) -> torch.Tensor:
    """bool[n] → uint8[ceil(n / 8)], as numpy.packbits has them."""
    padded = torch.nn.functional.pad(mask.view(torch.uint8), (0, -mask.numel() % 8)).view(-1, 8)
    out = padded[:, 0] << 7
    for i in range(1, 8):
        out |= padded[:, i] << (7 - i)
    return out


def unpacked(bits: torch.Tensor, count: int) -> torch.Tensor:
    """bool[count], of what `packed` made."""
    mask = bits.new_empty((bits.numel(), 8))
    for i in range(8):
        mask[:, i] = (bits >> (7 - i)) & 1
    return mask.view(-1)[:count].view(torch.bool)


def places(mask: torch.Tensor, count: int) -> torch.Tensor:
    """int64[count]: where bool[n] is true, which is `count` times."""
    ones = torch.ones_like(mask, dtype=torch.int64)
    order = mask.cumsum(0) - 1
    out = order.new_zeros(count + 1)
    out.scatter_(0, torch.where(mask, order, count), ones.cumsum(0) - 1)
    return out[:count]
