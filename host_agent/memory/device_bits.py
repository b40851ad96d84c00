"""Bit packing, bytes and rows of vectors on a GPU with torch operators that do not synchronize with the device: numpy
determines the size of a masked selection itself, while these functions take it as an argument."""

import torch


def packed(mask: torch.Tensor) -> torch.Tensor:
    """Pack bool[n] to uint8[ceil(n / 8)], as numpy.packbits does."""
    padded = torch.nn.functional.pad(mask.view(torch.uint8), (0, -mask.numel() % 8)).view(-1, 8)
    out = padded[:, 0] << 7
    for i in range(1, 8):
        out |= padded[:, i] << (7 - i)
    return out


def unpacked(bits: torch.Tensor, count: int) -> torch.Tensor:
    """Unpack the result of `packed` to bool[count]."""
    mask = bits.new_empty((bits.numel(), 8))
    for i in range(8):
        mask[:, i] = (bits >> (7 - i)) & 1
    return mask.view(-1)[:count].view(torch.bool)


def places(mask: torch.Tensor, count: int) -> torch.Tensor:
    """int64[count]: indices of the `count` true elements of bool[n]."""
    ones = torch.ones_like(mask, dtype=torch.int64)
    order = mask.cumsum(0) - 1
    out = order.new_zeros(count + 1)
    out.scatter_(0, torch.where(mask, order, count), ones.cumsum(0) - 1)
    return out[:count]
