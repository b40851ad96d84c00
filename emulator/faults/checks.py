"""What may happen to a job and what may not: every result is compared with the exact one and with the other ranks', every
error with what really went on.

The ledger of an incarnation (one start of one job at one aggregator) holds what only the simulation knows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from emulator.faults import tensors
from emulator.faults.plan import Call, JobPlan
from switchml.errors import AggregatorLost, CollectiveTimeout, JoinError, PeerLost, RanksDisagree, SumOverflow

Key = tuple[int, int]
"""An incarnation: which start of the aggregator, and the job's number there."""


class Violation(Exception):
    """Something happened that must not: the message says what, to whom, and why it must not."""


@dataclass
class Ledger:
    """`gone`: ranks that left, and why: "left" or "lost". `results[call]`: the bytes that a rank got."""

    job: JobPlan
    gone: dict[int, str] = field(default_factory=dict)
    results: dict[int, bytes] = field(default_factory=dict)
    disagrees: bool = False
    """A rank has submitted something else than the others."""


class Checks:
    """Raises Violation from whatever it finds wrong."""

    def __init__(self, has_faults: bool):
        self.ledgers: dict[Key, Ledger] = {}
        self.ended_generations: set[int] = set()
        self._has_faults = has_faults
        self.sums = self.errors = 0

    def result(self, key: Key, number: int, call: Call, seed: tuple, rank: int, got: np.ndarray) -> None:
        """An all-reduce has ended without an error."""
        ledger = self.ledgers[key]
        job, where = ledger.job, f"{ledger.job.name} rank {rank} call {number} ({call.dtype} x {call.numel}, {call.op})"
        self.sums += 1
        if ledger.disagrees and number >= job.misfit_call:
            raise Violation(f"{where} has a result, although rank {job.misfit_rank} called with another dtype")
        if tensors.overflows(job, call, seed):
            raise Violation(f"{where} has a result, although the sum does not fit")
        exact, off = tensors.expected(job, call, seed)
        if not tensors.is_right(got, exact, off):
            wrong = np.flatnonzero(~((got == exact) | (np.isnan(got) & np.isnan(exact)) if got.dtype.kind == "f" else got == exact))
            first = int(wrong[0])
            raise Violation(f"{where}: {len(wrong)} elements are wrong, the first at {first}: {got[first]}, not {exact[first]}")
        mine = got.tobytes()
        if ledger.results.setdefault(number, mine) != mine:
            raise Violation(f"{where}: other bits than another rank's")

    def error(
        self, key: Key, number: int, call: Call, seed: tuple, rank: int, error: BaseException, waited_s: float, broke: bool
    ) -> None:
        """An all-reduce has ended with `error`, `waited_s` after it was submitted. `broke`: the rank's own connection did."""
        ledger = self.ledgers[key]
        job, where = ledger.job, f"{ledger.job.name} rank {rank} call {number}"
        self.errors += 1
        if isinstance(error, SumOverflow):
            is_right = tensors.overflows(job, call, seed)
        elif isinstance(error, PeerLost):
            is_right = bool(error.ranks) and set(error.ranks) <= set(ledger.gone) - {rank}
        elif isinstance(error, AggregatorLost):
            is_right = broke and (key[0] in self.ended_generations or self._has_faults)
        elif isinstance(error, RanksDisagree):
            is_right = ledger.disagrees
        elif isinstance(error, CollectiveTimeout):
            is_right = call.timeout_s is not None and waited_s >= call.timeout_s
        else:
            is_right = False
        if not is_right:
            raise Violation(
                f"{where}: {type(error).__name__} without a cause: {error} "
                f"(gone: {ledger.gone or 'nobody'}, waited {waited_s:.3f} s, own connection {'broke' if broke else 'held'})"
            )

    def refusal(self, job: JobPlan, rank: int, error: JoinError) -> None:
        """A rank could not join."""
        self.errors += 1
        if not self._has_faults and not job.misfit:
            raise Violation(f"{job.name} rank {rank}: refused, although nothing went wrong: {error}")
