"""What one client of the control plane may have at a time, and how long it waits after wrong secrets.

A client is whom `connections.client_of` names: an address, or a user of this machine. All is plain data and arithmetic;
jobs.py and sessions.py ask.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass

from switchml.control.membership import Reason, Refused


@dataclass(frozen=True)
class Quotas:
    """Limits of one client.

    `ranks`: its ranks in all jobs, forming ones included. `jobs`: the jobs that it began, v1 sessions included.
    `slot_share`: the part of the slots that its jobs may have, of those that others' jobs leave. `connections`: its
    open control connections beyond those of its ranks.
    """

    ranks: int = 1024
    jobs: int = 64
    slot_share: float = 0.5
    connections: int = 64

    def check_ranks(self, client: str, has: int) -> None:
        """Raises Refused if a client that `has` so many ranks may not have another one."""
        if has >= self.ranks:
            raise Refused(
                Reason.CAPACITY,
                f"{client} has {has} ranks in jobs here already, and a client may have {self.ranks} at a time "
                "(--client-ranks)",
            )

    def check_jobs(self, client: str, has: int) -> None:
        """The same for a client's jobs."""
        if has >= self.jobs:
            raise Refused(
                Reason.CAPACITY,
                f"{client} has begun {has} jobs here that are not over, and a client may have {self.jobs} at a time "
                "(--client-jobs)",
            )

    def slots_left(self, free: int, has: int) -> int:
        """How many of the `free` slots a client may get whose jobs have `has`."""
        return min(free, max(math.floor(self.slot_share * (free + has)) - has, 0))


UNLIMITED = Quotas(ranks=1 << 62, jobs=1 << 62, slot_share=1.0, connections=1 << 62)


class WrongSecrets:
    """Guesses of secrets, slowed down: after `FREE` wrong ones a client has to wait before its next try, half a second
    at first, twice as long after each further wrong one, up to `LONGEST_S`. Meanwhile it is refused, right secret or
    not, so that an answer tells nothing. Counted for each client and what it tries to enter, so that nobody can lock a
    host out of other jobs.
    """

    FREE = 5
    FIRST_S, LONGEST_S = 0.5, 30.0
    FORGOTTEN_AFTER_S = 600.0
    MOST = 10_000
    """Entries that are kept; the oldest goes first."""

    def __init__(self) -> None:
        self._wrong: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()
        """(client, job) → wrong secrets, and when the last one came."""

    def check(self, client: str, job: str, now: float) -> None:
        """Raises Refused while the client has to wait."""
        wrong, last = self._wrong.get((client, job), (0, now))
        left = last + self._delay_s(wrong) - now
        if left > 0:
            raise Refused(
                Reason.SECRET, f"{wrong} wrong secrets came from {client}: the next try is allowed in {left:.1f} s"
            )

    def count(self, client: str, job: str, now: float) -> None:
        """One more wrong secret."""
        wrong, last = self._wrong.pop((client, job), (0, now))
        self._wrong[client, job] = (wrong + 1 if now - last < self.FORGOTTEN_AFTER_S else 1), now
        if len(self._wrong) > self.MOST:
            self._wrong.popitem(last=False)

    def forgive(self, client: str, job: str) -> None:
        """The right secret came."""
        self._wrong.pop((client, job), None)

    def _delay_s(self, wrong: int) -> float:
        return 0.0 if wrong < self.FREE else min(self.FIRST_S * 2.0 ** min(wrong - self.FREE, 30), self.LONGEST_S)
