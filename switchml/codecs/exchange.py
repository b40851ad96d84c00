"""One compressed all-reduce, including error feedback, and its simplest driver: all ranks in one process.

`allreduce` is the generator that a rank runs. `together` is the reference for drivers that have a network; tests and
experiments use it.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from switchml.codecs.base import (
    Codec,
    ErrorFeedback,
    Gather,
    Max,
    Payload,
    Request,
    SparseSum,
    StepContext,
    Sum,
    vector,
)
from switchml.codecs.select import floats_of, ordered_bits
from switchml.errors import RanksDisagree


@dataclass(frozen=True)
class AsyncMax:
    """Request a maximum asynchronously; the result is a function that returns it when needed."""

    request: Max


def allreduce(
    codec: Codec,
    error_feedback: ErrorFeedback,
    codec_state: Any,
    feedback_state: Any,
    x: np.ndarray,
    context: StepContext,
    guards: "list[StepGuard] | None" = None,
) -> Generator[Request | AsyncMax, Any, np.ndarray]:
    """Return the mean of all ranks' `x`, float32[n], as compressed by the codec.

    1. Add the error feedback.  2. Exchange.  3. Update the error feedback.

    If a value of any rank is not finite, no rank updates its state, and the mean is not finite. `guards`: collects the
    guards of a step's tensors, for `roll_back`.
    """
    guard = StepGuard(codec_state, feedback_state)
    if guards is not None:
        guards.append(guard)
    with np.errstate(invalid="ignore", over="ignore"):
        compensated = error_feedback.compensate(feedback_state, vector(x), context)
    answer = yield AsyncMax(guard.flag(compensated))
    outcome = yield from codec.exchange(codec_state, compensated, context)
    if guard.failed(answer(), outcome.mean):
        return failed_mean(outcome.mean)
    error_feedback.update(feedback_state, compensated, outcome.own, context)
    return outcome.mean


class StepGuard:
    """One tensor's part of a step, rolled back unless the values of all ranks are finite: `states`, of its codec and
    error feedback, are then restored. They hold plain values, lists, and arrays that a step replaces."""

    def __init__(self, *states: Any) -> None:
        self.has_failed = False
        self._before = [
            (state, {name: list(value) if isinstance(value, list) else value for name, value in vars(state).items()})
            for state in states
            if state is not None
        ]

    def flag(self, compensated: np.ndarray) -> Max:
        """Return the request for the common flag: 1 if a value is not finite, else 0."""
        return Max(np.array([not np.isfinite(compensated).all()], np.float32))

    def failed(self, flags: np.ndarray, mean: np.ndarray) -> bool:
        """Return whether any rank's flag is set, or the mean is not finite, as sums of huge values may be; in that
        case, restore the states."""
        self.has_failed = bool(flags[0] > 0) or not np.isfinite(mean).all()
        if self.has_failed:
            self.restore()
        return self.has_failed

    def restore(self) -> None:
        """Restore the states."""
        for state, values in self._before:
            vars(state).update(values)


def roll_back(guards: Sequence[StepGuard]) -> None:
    """End a step of several tensors: if one has failed, restore the states of all, since a step that is skipped, as by
    a GradScaler, also drops what the others have sent. All ranks decide alike, by their common flags."""
    if any(guard.has_failed for guard in guards):
        for guard in reversed(guards):
            guard.restore()


def failed_mean(mean: np.ndarray) -> np.ndarray:
    """Return the mean of a failed step: NaN if a codec has hidden the values that are not finite."""
    return mean if not np.isfinite(mean).all() else np.full_like(mean, np.nan)


def together(generators: Sequence[Generator[Any, Any, Any]]) -> list[Any]:
    """Drive the generators of all ranks, in rank order, concurrently; return their results.

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
    """Return the result of each rank's request, all of one class."""
    first = requests[0]
    if isinstance(first, AsyncMax):
        return [partial(np.copy, answer) for answer in reduce([r.request for r in requests])]
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


def _size(request: Request | AsyncMax) -> int:
    if isinstance(request, AsyncMax):
        return request.request.values.size
    if isinstance(request, Gather):
        return request.payload.count
    return request.count if isinstance(request, SparseSum) else request.values.size


def max_as_sum(request: Max, context: StepContext) -> Sum:
    """Return the `Sum` that gives every rank the values of all ranks exactly; `max_of_sum` reads its result.

    The maximum of a few floats thus needs only integer sums: every rank writes its bits at its own position in a vector
    of zeros, and takes the maximum of the sum.
    """
    places = np.zeros((context.world, request.values.size), np.int32)
    places[context.rank] = ordered_bits(request.values)
    return Sum(places.reshape(-1), "int32")


def max_of_sum(total: np.ndarray, context: StepContext) -> np.ndarray:
    """Return the maximum over the ranks, float32[m], from the sum requested by `max_as_sum`."""
    return floats_of(total.reshape(context.world, -1).max(axis=0))
