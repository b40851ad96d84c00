"""One compressed all-reduce, memory included, and its simplest driver: all ranks in one process.

`allreduce` is what a rank runs. `together` is the reference for drivers that have a network; tests and experiments use
it.
"""

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from switchml.codecs.base import Codec, Gather, Max, Memory, Payload, Request, SparseSum, Sum, Turn, vector
from switchml.codecs.select import floats_of, ordered_bits
from switchml.errors import RanksDisagree


def allreduce(
    codec: Codec, memory: Memory, codec_state: Any, memory_state: Any, x: np.ndarray, turn: Turn
) -> Generator[Request, Any, np.ndarray]:
    """The mean of all ranks' `x`, float32[n], as the codec sees it.

    1. Add what the memory holds.  2. Exchange.  3. Remember what was not sent.
    """
    compensated = memory.compensate(memory_state, vector(x), turn)
    outcome = yield from codec.exchange(codec_state, compensated, turn)
    memory.update(memory_state, compensated, outcome.own, turn)
    return outcome.mean


def together(generators: Sequence[Generator[Request, Any, Any]]) -> list[Any]:
    """Drive the generators of all ranks, in rank order, side by side; return what each returned.

    Raises RanksDisagree if their requests differ.
    """
    answers: list[Any] = [None] * len(generators)
    while True:
        requests, returned = [], []
        for generator, answer in zip(generators, answers, strict=True):
            try:
                requests.append(generator.send(answer))
            except StopIteration as stop:
                returned.append(stop.value)
        if not requests:
            return returned
        if returned or len({(type(r), _size(r)) for r in requests}) > 1:
            raise RanksDisagree(f"the ranks ask for {[type(r).__name__ for r in requests]}: expected the same of all")
        answers = reduce(requests)


def reduce(requests: Sequence[Any]) -> list[Any]:
    """The answer to each rank's request, all of one class."""
    first = requests[0]
    if isinstance(first, Sum):
        values = np.stack([r.values for r in requests])
        total = values.sum(axis=0, dtype=np.float64 if values.dtype.kind == "f" else np.int64)
        answer = total.astype(first.values.dtype)
        if values.dtype.kind != "f" and not np.array_equal(answer, total):
            raise RanksDisagree(f"a sum of {len(requests)} ranks does not fit {first.values.dtype}")
        return [answer.copy() for _ in requests]
    if isinstance(first, Max):
        return [np.max(np.stack([r.values for r in requests]), axis=0) for _ in requests]
    if isinstance(first, SparseSum):
        total = np.zeros(first.count, np.float64)
        for r in requests:
            total[r.indices] += r.values
        return [total.astype(np.float32) for _ in requests]
    return [[Payload.from_bytes(r.payload.to_bytes()) for r in requests] for _ in requests]


def _size(request: Request) -> int:
    if isinstance(request, Gather):
        return request.payload.count
    return request.count if isinstance(request, SparseSum) else request.values.size


def max_as_sum(request: Max, turn: Turn) -> Sum:
    """The `Sum` that gives every rank the values of all ranks, exactly; `max_of_sum` reads its result.

    The maximum of a few floats thus needs only integer sums: every rank writes its bits at its own place in a vector of
    zeros, and takes the maximum of the sum.
    """
    places = np.zeros((turn.world, request.values.size), np.int32)
    places[turn.rank] = ordered_bits(request.values)
    return Sum(places.reshape(-1), "int32")


def max_of_sum(total: np.ndarray, turn: Turn) -> np.ndarray:
    """float32[m], the maximum over the ranks, from the sum that `max_as_sum` asked for."""
    return floats_of(total.reshape(turn.world, -1).max(axis=0))
