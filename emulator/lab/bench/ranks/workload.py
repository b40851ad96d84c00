"""One rank's tensors in a benchmark of collectives: its calls, their inputs and the expected results."""

from dataclasses import dataclass

import numpy as np

from emulator.lab.bench.ranks.inputs import SharedTensors, numbers, stored
from emulator.lab.bench.sizes import Case

IN_PLACE = ("all_reduce", "broadcast")
_ROOT = 0
_NOTHING = 24_700
"""Fill value that no result can equal, in any dtype."""


@dataclass(frozen=True)
class Step:
    """One collective on tensors of `dtype`, from `source` into `target`, which are the same array if it is in place.
    bfloat16 is stored in uint16."""

    kind: str
    source: np.ndarray
    target: np.ndarray
    dtype: str


class Workload:
    """A case on one rank. `calls`: the collectives of each call, which start together; `result`: the concatenated
    results of all of them; `expected`: their exact values in float64."""

    def __init__(self, case: Case, tensors: SharedTensors, rank: int):
        n, dtype, elements = tensors.workers, case.dtype, case.elements

        def values(of: int, part: slice) -> np.ndarray:
            return numbers(stored(tensors.read_inputs(of)[part], dtype), dtype)

        inputs, sums = stored(tensors.read_inputs(rank)[:elements], dtype), tensors.read_sums()
        if dtype != "float32":
            sums = np.zeros(elements)
            for r in range(n):  # one at a time: all ranks' inputs at once would need n times the memory on each rank
                sums += values(r, slice(elements))
        self._zeros = tensors.zeros(rank, case.elements)
        self._fills: list[tuple[np.ndarray, np.ndarray | float]] = []
        self.calls: list[list[Step]] = []
        spans = list(zip(np.cumsum((0, *case.parts[:-1])).tolist(), case.parts, strict=True))
        sizes = [size // n if kind == "reduce_scatter" else size for _, size in spans for kind in case.kinds]
        self.result = np.empty(sum(sizes), inputs.dtype)
        targets = iter(np.split(self.result, np.cumsum(sizes)[:-1]))
        expected = []
        for start, size in spans:
            whole, share, steps = slice(start, start + size), size // n, []
            owned = [slice(start + r * share, start + (r + 1) * share) for r in range(n)]
            for kind in case.kinds:
                target = next(targets)
                source = target if kind in IN_PLACE else inputs[owned[rank] if kind == "all_gather" else whole].copy()
                self._fills.append((target, inputs[whole] if kind in IN_PLACE else target.dtype.type(_NOTHING)))
                steps.append(Step(kind, source, target, dtype))
                if kind == "all_gather":
                    expected += [values(r, owned[r]) for r in range(n)]
                elif kind == "broadcast":
                    expected.append(values(_ROOT, whole))
                else:
                    expected.append(sums[owned[rank] if kind == "reduce_scatter" else whole])
            self.calls.append(steps)
        in_order = case.collective == "all_reduce"  # concatenated in order, the results are the beginning of the sums
        self.expected = sums[:elements] if in_order else np.concatenate(expected).astype(np.float64)

    def fill(self) -> None:
        """Write the inputs of in-place collectives, and fill other targets with a value that no result can equal."""
        for target, values in self._fills:
            target[:] = values
        if self._zeros is not None:
            self.result[self._zeros] = 0
