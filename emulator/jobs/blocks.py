"""The ops of one rank as arrays, collected one by one or copied from an earlier pass."""

from dataclasses import dataclass, replace

import numpy as np

from emulator.jobs.size import Budget
from emulator.jobs.workload.graph import NO_MICRO_BATCH

ALONE = -1
"""Transfer kind of an op that involves its rank alone."""
LOOSE = 4
"""Memory per op before its pass is converted to arrays, relative to an op in arrays."""
PASS = 10
"""Memory overhead of a pass's arrays, in ops."""


@dataclass
class Ops:
    """Ops of one rank as arrays: op type, stream, transfer kind and index within that kind, micro-batch, and
    dependencies (counts and op numbers)."""

    op_type: np.ndarray
    stream: np.ndarray
    kind: np.ndarray
    number: np.ndarray
    micro_batch: np.ndarray
    dep_counts: np.ndarray
    deps: np.ndarray


class Block:
    """Collects the ops of one rank: one by one, or a repetition of an earlier pass, which costs a few array
    operations."""

    def __init__(self, budget: Budget | None = None) -> None:
        self._budget = budget or Budget()
        self._done: list[Ops] = []
        self._rows: list[tuple[int, int, int, int, int]] = []
        self._after: list[tuple[int, ...]] = []
        self._first = 0

    def __len__(self) -> int:
        return self._first + len(self._rows)

    def add(
        self,
        op_type: int,
        stream: int,
        kind: int = ALONE,
        number: int = 0,
        micro_batch: int = NO_MICRO_BATCH,
        after: tuple[int, ...] = (),
    ) -> int:
        """Append an op and return its number."""
        if len(self._rows) % 1024 == 1023:
            self._check(LOOSE * len(self._rows))
        self._rows.append((op_type, stream, kind, number, micro_batch))
        self._after.append(after)
        return len(self) - 1

    def cut(self) -> Ops | None:
        """Convert the ops added since the last cut to arrays; dependencies are relative to the first of them."""
        if not self._rows:
            return None
        columns = np.array(self._rows, np.int32).T
        counts = np.fromiter(map(len, self._after), np.int64, len(self._after))
        deps = np.fromiter((op - self._first for ops in self._after for op in ops), np.int32, int(counts.sum()))
        op_type, stream, kind, number, micro_batch = columns
        self._done.append(Ops(op_type, stream, kind, number, micro_batch, counts, deps))
        self._first += len(self._rows)
        self._rows, self._after = [], []
        self._check(0)
        return self._done[-1]

    def repeat(self, template: Ops, micro_batch: int, number_from: np.ndarray) -> None:
        """Append the ops of `template` again for another micro-batch, with transfers numbered from `number_from` of
        each kind."""
        self.cut()
        self._check(len(template.op_type))
        number = template.number + number_from[template.kind]
        micro_batches = np.full(len(template.op_type), micro_batch, np.int32)
        self._done.append(replace(template, number=number, micro_batch=micro_batches))
        self._first += len(template.op_type)

    def _check(self, more: int) -> None:
        self._budget.check_ops(self._first + PASS * len(self._done) + more)

    def whole(self) -> Ops:
        """Return all ops; dependencies are relative to the block's first op."""
        self.cut()
        first = np.cumsum([0, *(len(part.op_type) for part in self._done[:-1])])
        columns = {
            name: np.concatenate([getattr(part, name) for part in self._done])
            for name in ("op_type", "stream", "kind", "number", "micro_batch", "dep_counts")
        }
        deps = np.concatenate([part.deps + at for part, at in zip(self._done, first, strict=True)])
        return Ops(**columns, deps=deps.astype(np.int32))
