"""What may happen to a job and what may not: every result is compared with the exact one and with the other ranks',
every error with what really went on.

The ledger of an incarnation (one start of one job at one aggregator) holds what only the simulation knows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from emulator.faults import tensors
from emulator.faults.plan import JobPlan
from switchml.errors import AggregatorLost, CollectiveTimeout, JoinError, PeerLost, RanksDisagree, SumOverflow

Key = tuple[int, int]
"""An incarnation: which start of the aggregator, and the job's number there."""


class Violation(Exception):
    """Something happened that must not: the message says what, to whom, and why it must not."""


@dataclass
class Ledger:
    """`seed`: of its tensors. `gone`: ranks that left, and why: "left" or "lost". `results[call]`: the bytes that a
    rank got. `finished[rank]`: how many calls a rank had the results of when it left."""

    job: JobPlan
    seed: tuple[int, ...]
    gone: dict[int, str] = field(default_factory=dict)
    results: dict[int, bytes] = field(default_factory=dict)
    finished: dict[int, int] = field(default_factory=dict)
    disagrees: bool = False
    """A rank has submitted something else than the others."""
    _exact: dict[int, tensors.Exact] = field(default_factory=dict)

    def exact(self, number: int) -> tensors.Exact:
        """What call `number` has to give."""
        if number not in self._exact:
            self._exact[number] = tensors.expected(self.job, self.job.calls[number], (*self.seed, number))
        return self._exact[number]


class Checks:
    """Raises Violation from whatever it finds wrong."""

    def __init__(self, has_faults: bool):
        self.ledgers: dict[Key, Ledger] = {}
        self._has_faults = has_faults
        self.sums = self.errors = 0

    def result(self, key: Key, number: int, rank: int, got: np.ndarray) -> None:
        """An all-reduce has ended without an error."""
        ledger = self.ledgers[key]
        job, call = ledger.job, ledger.job.calls[number]
        where = f"{job.name} rank {rank} call {number} ({call.dtype} x {call.numel}, {call.op})"
        self.sums += 1
        if ledger.disagrees and number == job.misfit_call:
            raise Violation(f"{where} has a result, although rank {job.misfit_rank} called with another dtype")
        if ledger.disagrees and number > job.misfit_call:
            return  # the ranks' chunks no longer belong together (docs/protocol.md, section 5); an error is on its way
        exact = ledger.exact(number)
        if exact.overflows:
            raise Violation(f"{where} has a result, although the sum does not fit")
        if not exact.is_met_by(got):
            wrong = exact.wrong(got)
            first = int(wrong[0])
            raise Violation(
                f"{where}: {len(wrong)} elements are wrong, "
                f"the first at {first}: {got[first]}, not {exact.values[first]}"
            )
        mine = got.tobytes()
        if ledger.results.setdefault(number, mine) != mine:
            raise Violation(f"{where}: other bits than another rank's")

    def error(self, key: Key, number: int, rank: int, error: BaseException, is_late: bool, broke: bool) -> None:
        """An all-reduce has ended with `error`. `is_late`: the agent has one that took longer than it was given.
        `broke`: the rank's own control connection did."""
        ledger = self.ledgers[key]
        self.errors += 1
        if isinstance(error, SumOverflow):
            is_right = ledger.exact(number).overflows
        elif isinstance(error, PeerLost):
            is_right = self._explains(ledger, number, rank, error)
        elif isinstance(error, AggregatorLost):
            is_right = broke
        elif isinstance(error, RanksDisagree):
            is_right = ledger.disagrees
        elif isinstance(error, CollectiveTimeout):
            is_right = is_late
        else:
            is_right = False
        if not is_right:
            raise Violation(
                f"{ledger.job.name} rank {rank} call {number}: {type(error).__name__} without a cause: {error} (gone: "
                f"{ledger.gone or 'nobody'}; {'late' if is_late else 'in time'}; "
                f"its connection {'broke' if broke else 'held'})"
            )

    def _explains(self, ledger: Ledger, number: int, rank: int, error: PeerLost) -> bool:
        """Whether ranks are gone, and gone before they gave what call `number` needs: who left with its result in
        hand is no reason for others not to get theirs."""
        if not error.ranks or not set(error.ranks) <= set(ledger.gone) - {rank}:
            return False
        is_needed = any(ledger.gone[r] == "lost" or ledger.finished.get(r, 0) <= number for r in error.ranks)
        return is_needed or any(how == "lost" for how in ledger.gone.values())

    def refusal(self, job: JobPlan, rank: int, error: JoinError) -> None:
        """A rank could not join."""
        self.errors += 1
        if not self._has_faults and not job.misfit:
            raise Violation(f"{job.name} rank {rank}: refused, although nothing went wrong: {error}")
