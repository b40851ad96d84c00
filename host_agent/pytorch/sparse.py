"""All-reduce of sparse COO tensors, such as the gradients of `nn.Embedding(sparse=True)`, without making them dense.

Two all-reduces, both through sparse streams. The first is of a few bits for each row of the whole tensor, and tells
which rows some rank has; blocks of rows that nobody has are skipped. The second is of those rows alone, in order. The
result has the same indices and the same bits on every rank, as dense tensors have.
"""

import numpy as np
import torch

from host_agent.base import Agent
from switchml.protocol.sparse import Sparse

ROW_BLOCK = 128
"""int32 words of a block in the first all-reduce: as many as a packet of 1024 bytes holds."""


class Rows:
    """A coalesced view of a COO tensor as rows: `numbers` int64[k], ascending, of `count`; `values` [k, width]."""

    def __init__(self, tensor: torch.Tensor):
        tensor = tensor.detach().coalesce().cpu()  # of a GPU: waits for what the caller's stream has queued
        self.shape, self.sparse_shape = tensor.shape, tensor.shape[: tensor.sparse_dim()]
        self.count = int(np.prod(self.sparse_shape, dtype=np.int64))
        width = int(np.prod(self.shape[tensor.sparse_dim() :], dtype=np.int64))
        indices = tensor.indices().numpy()
        self.values = tensor.values().resolve_neg().reshape(indices.shape[1], width).contiguous()
        self.numbers = np.ravel_multi_index(tuple(indices), tuple(self.sparse_shape)) if indices.size else indices[0]

    def replace(self, tensor: torch.Tensor, numbers: np.ndarray, values: torch.Tensor) -> None:
        """Let `tensor`, of the same shape, have these rows and no others."""
        indices = torch.from_numpy(np.stack(np.unravel_index(numbers, tuple(self.sparse_shape))))
        shaped = values.reshape(len(numbers), *self.shape[len(self.sparse_shape) :])
        with torch.no_grad():  # and not detach(): a detached sparse tensor has indices of its own
            result = torch.sparse_coo_tensor(indices, shaped, self.shape, is_coalesced=True)
            tensor.copy_(result.to(tensor.device))


def union_of_rows(agent: Agent, numbers: np.ndarray, count: int, timeout_s: float | None) -> np.ndarray:
    """The rows, of `count`, that some rank names in `numbers` (ascending, without doubles); waits for all ranks.

    A row is a counter of just as many bits as the number of ranks needs, several of them in an int32.
    """
    bits = agent.world_size.bit_length()
    per_word = 31 // bits
    words = np.zeros(-(-count // per_word), np.int32)
    shifts = (bits * (numbers % per_word)).astype(np.int32)
    np.add.at(words, numbers // per_word, np.int32(1) << shifts)
    agent.allreduce(words, out=words, sparse=Sparse(ROW_BLOCK), timeout_s=timeout_s)
    used = np.flatnonzero(words)
    fields = (words[used, None] >> (bits * np.arange(per_word, dtype=np.int32))) & ((1 << bits) - 1)
    at, field = np.nonzero(fields)
    return used[at] * per_word + field


def spread(rows: Rows, union: np.ndarray) -> torch.Tensor:
    """[len(union), width]: this rank's rows at their places among those of all ranks, zeros elsewhere."""
    values = rows.values.new_zeros((len(union), rows.values.shape[1]))
    values[torch.from_numpy(np.searchsorted(union, rows.numbers))] = rows.values
    return values
