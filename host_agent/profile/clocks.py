"""Clock comparison between ranks, at the beginning and end of a capture: each rank sends rank 0 some messages over the
store of the job's default process group, and rank 0 answers. Each records the times of its own sends and receives, by
its own clock; `emulator.traces.align` computes the clock offsets from them.

Not a collective: a rank without a peer gives up after a timeout.
"""

import contextlib
import itertools
import time
from datetime import timedelta
from typing import Any

ROUNDS = 12
"""Number of messages of each rank; the quickest one determines the offset."""
PATIENCE = timedelta(seconds=5)
"""Timeout for another rank, which may be an iteration behind. After it, there is no comparison."""

_windows = itertools.count()


class Pings:
    """This rank's sends and receives: `rows` of (message, CLOCK_MONOTONIC in nanoseconds, whether it was sent here). A
    request is message 2n, its answer 2n + 1."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rows: list[tuple[int, int, bool]] = []
        self._rank, self._ranks = rank, ranks
        self._window = next(_windows)
        self._is_alone = ranks < 2
        self._first = 0

    def exchange(self) -> None:
        """Compare clocks with rank 0, if it responds; all ranks must call this at about the same time."""
        store = None if self._is_alone else _store()
        if store is None:
            return
        questions = range(self._first, self._first + ROUNDS * (self._ranks - 1))
        self._first = questions.stop
        try:
            if self._rank:
                self._ask(store, len(questions))
            else:
                self._answer(store, questions)
        except RuntimeError:  # base class of torch.distributed's errors: a rank did not respond, or the store is closed
            self._is_alone = True

    def columns(self) -> dict[str, list[int] | list[bool]]:
        """`rows` as columns by name, for JSON."""
        message, at_ns, is_sent = zip(*self.rows, strict=True) if self.rows else ((), (), ())
        return {"message": list(message), "at_ns": list(at_ns), "sent": list(is_sent)}

    def _ask(self, store: Any, questions: int) -> None:
        first = self._first - questions
        for _ in range(ROUNDS):
            number = first + (store.add(self._key("count", first), 1) - 1)
            question, answer = self._key("question", number), self._key("answer", number)
            self._note(2 * number, True)
            store.set(question, "")
            store.wait([answer], PATIENCE)
            self._note(2 * number + 1, False)
            for key in (question, answer):
                store.delete_key(key)

    def _answer(self, store: Any, questions: range) -> None:
        for number in questions:
            store.wait([self._key("question", number)], PATIENCE)
            self._note(2 * number, False)
            self._note(2 * number + 1, True)
            store.set(self._key("answer", number), "")

    def _note(self, message: int, is_sent: bool) -> None:
        self.rows.append((message, time.monotonic_ns(), is_sent))

    def _key(self, what: str, number: int) -> str:
        return f"switchml/clocks/{self._window}/{what}/{number}"


def _store() -> Any:
    """Store of the default process group; None if there is none, or if ranks are not processes."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()) or dist.get_backend() == "switchml-emulated":
        return None
    with contextlib.suppress(AttributeError, RuntimeError):
        return dist.distributed_c10d._get_default_store()
    return None
