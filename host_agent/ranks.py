"""The processes of a job's ranks: forked from a process that has done their imports, controlled by their parent.

A request is any object that can be pickled. A rank sends exactly one answer to each, or a `Failure` in its place, and
may report progress before. The rank's class defines the requests.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import connection, context, process
from typing import TYPE_CHECKING, Any, Protocol

from switchml import errors
from switchml.errors import AggregatorLost, ConfigError, JobError, PeerLost
from switchml.runtime.children import die_with_parent, how_it_ended

if TYPE_CHECKING:
    from typing import Self  # Python 3.11

ANSWER_S = 300.0
"""Default limit in seconds for an answer; the first start on a machine compiles."""
ROOT_CAUSE_S = 3.0
"""Seconds after a first failure to look for its cause: a rank that waits for a dead peer often reports an error before
the death is detected."""
_WATCH_EVERY_S = 0.5

Report = Callable[[Any], None]
"""Function that sends a report of a rank's progress to the parent."""


# The process of one rank


@dataclass(frozen=True)
class Failure:
    """A rank's error, after which it can't continue. `is_consequence`: whether another rank's failure caused it."""

    kind: str
    message: str
    is_consequence: bool

    @classmethod
    def of(cls, error: Exception) -> Failure:
        kind = type(error).__name__
        message = (str(error).strip() or kind).split("\n")[0]
        # The error of a future is a C++ RuntimeError that quotes the original.
        if quoted := re.search(r"when running the callback: (\w+): (.*)", message):
            kind, message = quoted.groups()
        is_consequence = issubclass(getattr(errors, kind, Exception), JobError)
        is_consequence |= "onnection closed" in message or "onnection reset" in message
        return cls(kind, message, is_consequence)


@dataclass(frozen=True)
class _Progress:
    """A progress report, sent to the parent."""

    report: Any


class Rank(Protocol):
    """Interface of a rank."""

    def answer(self, request: Any) -> Any:
        """Process a request. An exception becomes a `Failure`."""

    def leave(self) -> None:
        """Leave the job in good order."""


def _main(make: Callable[[Report], Rank], pipe: connection.Connection) -> None:
    """Entry point of the process. Its parent is the fork server, which ends with the process that it forks for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the parent decides what ends when
    die_with_parent(os.getppid())  # a network namespace exists for as long as a process in it
    try:
        rank = make(lambda report: pipe.send(_Progress(report)))
        while (request := pipe.recv()) is not None:
            pipe.send(rank.answer(request))
        rank.leave()
    except (EOFError, ConnectionError):
        os._exit(1)  # the parent has ended, or has closed the pipe
    except Exception as error:
        pipe.send(Failure.of(error))
        os._exit(1)  # leaving in good order would wait for ranks that wait for this one


# The parent


class Team:
    """The processes of a job's ranks, one per element of `makers`, a factory of the `Rank`. As a context manager it
    ends them: in good order, or at once after an error."""

    def __init__(self, ranks: context.ForkServerContext, makers: Sequence[Callable[[Report], Rank]]):
        self._pipes: list[connection.Connection] = []
        self._processes: list[process.BaseProcess] = []
        for rank, make in enumerate(makers):
            ours, theirs = ranks.Pipe()
            child = ranks.Process(target=_main, args=(make, theirs), name=f"rank {rank}", daemon=True)
            child.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(child)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        try:
            if kind is None:
                self._send([None] * len(self._pipes))
                for child in self._processes:
                    child.join(ROOT_CAUSE_S)
        finally:
            self._stop()

    def ask(self, request: Any, **options: Any) -> list[Any]:
        """Send a request to all ranks and return their answers in order. Raises a failed rank's error; `options` are
        those of `ask_each`."""
        return self.ask_each([request] * len(self._pipes), **options)

    def ask_each(
        self,
        requests: Sequence[Any],
        *,
        timeout_s: float = ANSWER_S,
        on_report: Report = lambda report: None,
        watch: Callable[[], None] = lambda: None,
    ) -> list[Any]:
        """Like `ask`, with a request per rank. `on_report` receives progress reports; `watch` is called often, and may
        raise."""
        self._send(requests)
        answers: dict[int, Any] = {}
        failures: dict[int, Failure] = {}
        deadline = time.monotonic() + timeout_s
        waiting: dict[Any, int] = {pipe: rank for rank, pipe in enumerate(self._pipes)}
        while waiting and (remaining_s := deadline - time.monotonic()) > 0:
            for pipe in connection.wait(list(waiting), min(remaining_s, _WATCH_EVERY_S)):
                rank = waiting[pipe]
                try:
                    answer = self._pipes[rank].recv()
                except (EOFError, OSError):
                    raise self._death(rank) from None
                if isinstance(answer, _Progress):
                    on_report(answer.report)
                    continue
                del waiting[pipe]
                if isinstance(answer, Failure):
                    failures[rank] = answer
                    deadline = min(deadline, time.monotonic() + (ROOT_CAUSE_S if answer.is_consequence else 0.0))
                else:
                    answers[rank] = answer
            watch()
        if failures:
            rank = next((rank for rank, each in failures.items() if not each.is_consequence), next(iter(failures)))
            cause = failures[rank]
            error = {"AggregatorLost": AggregatorLost, "ConfigError": ConfigError}.get(cause.kind, JobError)
            raise error(f"rank {rank} failed: {cause.kind}: {cause.message}")
        if waiting:
            raise PeerLost(f"rank {sorted(waiting.values())} did not answer in {timeout_s:g} s", (*waiting.values(),))
        return [answers[rank] for rank in sorted(answers)]

    def _stop(self) -> None:
        """Kill the remaining processes."""
        for child in self._processes:
            child.kill()
        for child in self._processes:
            child.join()
            child.close()
        for pipe in self._pipes:
            pipe.close()

    def _send(self, requests: Sequence[Any]) -> None:
        for rank, (pipe, request) in enumerate(zip(self._pipes, requests, strict=True)):
            try:
                pipe.send(request)
            except OSError:
                raise self._death(rank) from None

    def _death(self, rank: int) -> PeerLost:
        child = self._processes[rank]
        child.join(ROOT_CAUSE_S)
        return PeerLost(f"rank {rank} (pid {child.pid}) {how_it_ended(child.exitcode)}", (rank,))
