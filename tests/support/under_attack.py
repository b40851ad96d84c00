"""Shared by tests of faults: rank processes in a job, and a second job, which must not be affected."""

from __future__ import annotations

import threading
import time

import numpy as np

from tests.support.launch import (
    DEADLINE_S,
    START_S,
    Aggregator,
    Rank,
    contribution,
    good,
    join_all,
    leave_all,
    on_all,
    total,
    until,
)

BIG = 3_000_000
"""Elements of a tensor that takes long enough to be hit in the middle."""


def join_ranks(ranks: list[Rank], address: str, job: str, **options) -> None:
    send_all(ranks, "leave")  # whatever an earlier test left
    for number, rank in enumerate(ranks):
        rank.send("join", address=address, job=job, rank=number, world_size=len(ranks), **options)
    for rank in ranks:
        assert rank.next(START_S) == {}


def send_all(ranks: list[Rank], do: str, **arguments) -> list[dict]:
    for rank in ranks:
        rank.send(do, **arguments)
    return [rank.next() for rank in ranks]


def wait_for_traffic(aggregator: Aggregator, job: str) -> None:
    """Wait until a job is in the middle of its data."""

    def is_under_way() -> bool:
        status = aggregator.job(job)
        assert status is None or status.state in ("forming", "running"), status.reason
        return status is not None and min((rank.counters["accepted"] for rank in status.ranks), default=0) > 2000

    until(is_under_way)


class Bystander:
    """A job of two ranks in this process that all-reduces continuously and checks each sum."""

    def __init__(self, aggregator: Aggregator):
        self.agents = join_all(aggregator.address, 2, job="bystander")
        self.rounds = [0, 0]
        self._stop = threading.Event()
        self._barrier = threading.Barrier(2)
        self._outcomes: list = []
        self._thread = threading.Thread(
            target=lambda: self._outcomes.extend(on_all(self.agents, self._work, 3 * DEADLINE_S))
        )
        self._thread.start()

    def _work(self, agent) -> None:
        stopped = False
        while not stopped:
            seed = self.rounds[agent.rank]
            result = agent.allreduce(contribution(seed, agent.rank, 20_000))
            np.testing.assert_array_equal(result, total(seed, 2, 20_000))
            self.rounds[agent.rank] += 1
            # Both stop after the same round, when either has seen `_stop`.
            stopped = agent.allreduce(np.array([self._stop.is_set()], "int32"))[0] > 0
            time.sleep(0.002)

    def more(self, rounds: int = 20) -> None:
        """Wait for `rounds` more rounds."""
        goal = min(self.rounds) + rounds
        until(lambda: min(self.rounds) >= goal or not self._thread.is_alive())

    def finish(self) -> None:
        self._stop.set()
        self._thread.join()
        leave_all(self.agents)
        good(self._outcomes)
        assert min(self.rounds) > 0
