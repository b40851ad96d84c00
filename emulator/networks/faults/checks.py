"""Checks of outcomes: every result is compared with the exact one and with the other ranks', and every error must have
a cause among the simulated events.

The ledger of an incarnation (one start of one job at one aggregator) records facts known only to the simulation.
"""

from dataclasses import dataclass, field

import numpy as np
import simpy

from emulator.networks.faults import tensors
from emulator.networks.faults.late import CallRecord, audit, usual_s
from emulator.networks.faults.plan import JobPlan
from emulator.networks.netsim.config import LinkConfig
from switchml.errors import (
    AggregatorLost,
    CollectiveTimeout,
    JoinError,
    LeftBehind,
    PeerLost,
    RanksDisagree,
    SumOverflow,
)

Key = tuple[int, int]
"""An incarnation: generation (number of starts) of the aggregator, and the job's number there."""


MAX_DEADLINES = 10
"""Upper limit, in deadlines, on the extra time of a sum that doesn't wait for late ranks: one deadline for each rank
that contributed to the previous chunk but not to this one; the maximum in 300 seeds was 3.2."""


class Violation(Exception):
    """A forbidden outcome: the message states what happened, to which rank, and why it is wrong."""


@dataclass
class Ledger:
    """Record of one incarnation. `seed`: of its tensors. `departed`: ranks no longer in the job, with the reason:
    "left" or "lost". `results[call]`: the result's bytes. `finished[rank]`: number of results that a rank had when it
    left."""

    job: JobPlan
    seed: tuple[int, ...]
    departed: dict[int, str] = field(default_factory=dict)
    results: dict[int, bytes] = field(default_factory=dict)
    finished: dict[int, int] = field(default_factory=dict)
    started: set[int] = field(default_factory=set)
    """Ranks for which the job has started."""
    all_finished: simpy.Event | None = None
    """Triggered when all ranks have all results (World.all_finished)."""
    disagrees: bool = False
    """Whether a rank has submitted a different call than the others."""
    books: dict[int, CallRecord] = field(default_factory=dict)
    """Books of the sums that don't wait for late ranks, by call."""
    _exact: dict[int, tensors.Exact] = field(default_factory=dict)

    def exact(self, number: int) -> tensors.Exact:
        """The expected result of call `number`."""
        if number not in self._exact:
            self._exact[number] = tensors.expected(self.job, self.job.calls[number], (*self.seed, number))
        return self._exact[number]


class Checks:
    """Count results and errors; raise Violation for wrong ones."""

    def __init__(self, has_faults: bool, goes_on: bool = False):
        """`has_faults`: whether faults may occur; `goes_on`: agents fail over and no rank dies or leaves early, so no
        call may fail whatever happens to aggregators, once the job has started for all ranks."""
        self.ledgers: dict[Key, Ledger] = {}
        self._has_faults, self._goes_on = has_faults, goes_on
        self.sums = self.errors = 0

    def result(self, key: Key, number: int, rank: int, result: np.ndarray) -> None:
        """Check the result of a collective that ended without an error."""
        ledger = self.ledgers[key]
        job, call = ledger.job, ledger.job.calls[number]
        where = f"{job.name} rank {rank} call {number} ({call.kind}, {call.dtype} x {call.numel}, {call.op})"
        self.sums += 1
        if call.bucket >= 0:
            if len(ledger.books[number].entries) == job.workers:
                self._balance(ledger, number)
            return  # the others are audited at the end
        if ledger.disagrees and number == job.misfit_call and job.misfit == "dtype":
            raise Violation(f"{where} has a result, although rank {job.misfit_rank} called with another dtype")
        if self._mixes(ledger, number):
            return  # an error will follow
        exact = ledger.exact(number)
        if exact.overflows:
            raise Violation(f"{where} has a result, although the sum does not fit")
        exact = exact.at(call, rank)
        wrong = exact.wrong(result)
        if len(wrong):
            first = int(wrong[0])
            raise Violation(
                f"{where}: {len(wrong)} elements are wrong, "
                f"the first at {first}: {result[first]}, not {exact.values[first]}"
            )
        own = result.tobytes()
        if call.kind in ("reduce_scatter", "reduce"):
            return  # each rank has its own share
        if ledger.results.setdefault(number, own) != own:
            raise Violation(f"{where}: bits differ from another rank's")

    def _balance(self, ledger: Ledger, number: int) -> None:
        """Audit the book of a call, for the ranks that completed it."""
        job, call = ledger.job, ledger.job.calls[number]
        if problem := audit(job, call, ledger.books[number], not self._has_faults):
            raise Violation(f"{job.name} call {number} ({call.dtype} x {call.numel}, {call.op}): {problem}")

    def waited(self, job: JobPlan, link: LinkConfig, number: int, rank: int, seconds: float) -> None:
        """Check the duration of a call, for a rank that was not stopped and without packet loss."""
        if seconds > MAX_DEADLINES * job.deadline_s + usual_s(job, link):
            raise Violation(
                f"{job.name} rank {rank} call {number} took {seconds:.3g} s, although nothing was lost and sums wait "
                f"{job.deadline_s:g} s for late ranks"
            )

    def balance_all(self) -> None:
        """Audit the books of calls that did not complete on every rank, at the end of the run."""
        for ledger in self.ledgers.values():
            for number, book in ledger.books.items():
                if len(book.entries) < ledger.job.workers:
                    self._balance(ledger, number)

    def error(
        self,
        key: Key,
        number: int,
        rank: int,
        error: BaseException,
        is_late: bool,
        broke: bool,
        is_behind: bool = False,
    ) -> None:
        """Check the error of a collective. `is_late`: one of the agent's calls has exceeded its timeout. `broke`: the
        rank's own control connection broke. `is_behind`: the other ranks went on, so that results for this rank are no
        longer available."""
        ledger = self.ledgers[key]
        self.errors += 1
        may_be_lost = not self._goes_on or len(ledger.started) < ledger.job.workers
        is_right = (
            (isinstance(error, SumOverflow) and (ledger.exact(number).overflows or self._mixes(ledger, number)))
            or (isinstance(error, PeerLost) and may_be_lost and self._explains(ledger, number, rank, error))
            or (isinstance(error, AggregatorLost) and may_be_lost and (broke or self._goes_on))
            or (isinstance(error, RanksDisagree) and ledger.disagrees)
            or (isinstance(error, CollectiveTimeout) and is_late)
            or (isinstance(error, LeftBehind) and is_behind)
        )
        if not is_right:
            raise Violation(
                f"{ledger.job.name} rank {rank} call {number}: {type(error).__name__} without a cause: {error} "
                f"(departed: {ledger.departed or 'nobody'}; {'late' if is_late else 'in time'}; "
                f"{'results are gone' if is_behind else 'all results are kept'}; "
                f"its connection {'broke' if broke else 'held'})"
            )

    @staticmethod
    def _mixes(ledger: Ledger, number: int) -> bool:
        """Whether a rank made a different call before call `number`, or, at it, a call whose kind uses another queue:
        the ranks' chunks no longer match (docs/protocol.md, section 5), and a sum may mix different calls, or overflow.
        """
        job = ledger.job
        return ledger.disagrees and number >= job.misfit_call + (job.misfit == "dtype")

    def _explains(self, ledger: Ledger, number: int, rank: int, error: PeerLost) -> bool:
        """Whether the ranks that `error` names departed before they contributed to call `number`. A rank that left with
        its result does not prevent others from completing, unless they are at different calls."""
        if not error.ranks or not set(error.ranks) <= set(ledger.departed) - {rank}:
            return False
        is_needed = any(ledger.departed[r] == "lost" or ledger.finished.get(r, 0) <= number for r in error.ranks)
        return is_needed or self._mixes(ledger, number) or any(how == "lost" for how in ledger.departed.values())

    def refusal(self, job: JobPlan, rank: int, error: JoinError) -> None:
        """Check that a rank's join was refused for a reason."""
        self.errors += 1
        if not self._has_faults and not job.misfit:
            raise Violation(f"{job.name} rank {rank}: refused, although nothing went wrong: {error}")
