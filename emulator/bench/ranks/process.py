"""The process of one rank: it enters its host's network namespace, answers its parent's requests in their order, and
ends with its parent.

A request is a small frozen dataclass. Each gets exactly one answer, or a `Failure` in its place. What requests mean is
up to the rank's class: `reducing.ReducingRank` or `training.TrainingRank`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import connection
from typing import Any, Protocol

from emulator.testbed.namespaces import die_with_parent, enter
from switchml.errors import JobError

GROUP_TIMEOUT = timedelta(seconds=300)
"""Of torch's process groups."""


@dataclass(frozen=True)
class Place:
    """Which rank a process is, and where it runs. `namespace`: its host's, "" for the parent's own network.
    `interface`: the one that Gloo uses."""

    rank: int
    world_size: int
    namespace: str = ""
    interface: str = "lo"


@dataclass(frozen=True)
class Failure:
    """A rank cannot go on. `is_consequence`: only because of what happened to another one."""

    rank: int
    kind: str
    message: str
    is_consequence: bool

    @classmethod
    def of(cls, rank: int, error: Exception) -> Failure:
        message = (str(error).strip() or type(error).__name__).split("\n")[0]
        is_consequence = isinstance(error, JobError) or "onnection closed" in message or "onnection reset" in message
        return cls(rank, type(error).__name__, message, is_consequence)


class Rank(Protocol):
    """What a rank does."""

    def answer(self, request: Any) -> Any:
        """Do what a request says. What it raises becomes a `Failure`."""

    def leave(self) -> None:
        """Leave the job in good order."""


def main(kind: Callable[[Place], Rank], place: Place, pipe: connection.Connection) -> None:
    """Entry point of the process. Its parent is the fork server, which ends with the process that it forks for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the parent decides what ends when
    die_with_parent(os.getppid())  # a namespace stays for as long as a process lives in it
    try:
        if place.namespace:
            enter(place.namespace)
        os.environ["GLOO_SOCKET_IFNAME"] = place.interface
        rank = kind(place)
        while (request := pipe.recv()) is not None:
            pipe.send(rank.answer(request))
        rank.leave()
    except (EOFError, ConnectionError):
        os._exit(1)  # the parent is gone, or has closed the pipe
    except Exception as error:
        pipe.send(Failure.of(place.rank, error))
        os._exit(1)  # leaving in good order would wait for ranks that wait for us
