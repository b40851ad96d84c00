"""All-reduce of sparse COO tensors, such as the gradients of `nn.Embedding(sparse=True)`, without making them dense.

It consists of two all-reduces with sparse streams. The first has a few bits for each row of the whole tensor, and
determines the rows that any rank has; blocks without such rows are skipped. The second has only those rows, in order.
The result has the same indices and identical bits on every rank, as for dense tensors.
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
        tensor = tensor.detach().coalesce().cpu()  # of a GPU: waits for the work queued on the caller's stream
        self.shape, self.sparse_shape = tensor.shape, tensor.shape[: tensor.sparse_dim()]
        self.count = int(np.prod(self.sparse_shape, dtype=np.int64))
        width = int(np.prod(self.shape[tensor.sparse_dim() :], dtype=np.int64))
        indices = tensor.indices().numpy()
        self.values = tensor.values().resolve_neg().reshape(indices.shape[1], width).contiguous()
        self.numbers = np.ravel_multi_index(tuple(indices), tuple(self.sparse_shape)) if indices.size else indices[0]

    def replace(self, tensor: torch.Tensor, numbers: np.ndarray, values: torch.Tensor) -> None:
        """Replace the rows of `tensor`, which has the same shape, by these rows."""
        indices = torch.from_numpy(np.stack(np.unravel_index(numbers, tuple(self.sparse_shape))))
        shaped = values.reshape(len(numbers), *self.shape[len(self.sparse_shape) :])
        with torch.no_grad():  # not detach(): a detached sparse tensor has its own indices
            result = torch.sparse_coo_tensor(indices, shaped, self.shape, is_coalesced=True)
            tensor.copy_(result.to(tensor.device))


def union_of_rows(agent: Agent, numbers: np.ndarray, count: int, timeout_s: float | None) -> np.ndarray:
    """Rows, of `count`, that any rank has in `numbers` (ascending, without duplicates); waits for all ranks.

    Each row has a counter with just enough bits for the number of ranks, several of them in an int32.
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
    """[len(union), width]: this rank's rows at their positions among those of all ranks, zeros elsewhere."""
    values = rows.values.new_zeros((len(union), rows.values.shape[1]))
    values[torch.from_numpy(np.searchsorted(union, rows.numbers))] = rows.values
    return values
