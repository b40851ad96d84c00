"""Limits on the resources of one client of the control plane, and delays after wrong secrets.

Clients are identified by `connections.client_of`: an address, or a user of this machine. Plain data and arithmetic,
used by jobs.py and sessions.py.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass

from switchml.control.membership import Reason, Refused


@dataclass(frozen=True)
class Quotas:
    """Limits of one client.

    `ranks`: its ranks in all jobs, including forming ones. `jobs`: the jobs that it started, including v1 sessions.
    `slot_share`: maximum share of slots for its jobs, of those not used by the jobs of others. `connections`: its open
    control connections beyond those of its ranks.
    """

    ranks: int = 1024
    jobs: int = 64
    slot_share: float = 0.5
    connections: int = 64

    def check_ranks(self, client: str, has: int) -> None:
        """Raises Refused if a client that `has` this many ranks may not have another one."""
        if has >= self.ranks:
            raise Refused(
                Reason.CAPACITY,
                f"{client} has {has} ranks in jobs here already, and a client may have {self.ranks} at a time "
                "(--client-ranks)",
            )

    def check_jobs(self, client: str, has: int) -> None:
        """Raises Refused if a client that `has` this many jobs may not have another one."""
        if has >= self.jobs:
            raise Refused(
                Reason.CAPACITY,
                f"{client} has begun {has} jobs here that are not over, and a client may have {self.jobs} at a time "
                "(--client-jobs)",
            )

    def slots_left(self, free: int, has: int) -> int:
        """Number of the `free` slots that a client whose jobs have `has` slots may get."""
        return min(free, max(math.floor(self.slot_share * (free + has)) - has, 0))


UNLIMITED = Quotas(ranks=1 << 62, jobs=1 << 62, slot_share=1.0, connections=1 << 62)


class WrongSecrets:
    """Rate limit of guesses of secrets: after `FREE` wrong ones a client has to wait before its next attempt, half a
    second at first, twice as long after each further wrong one, up to `LONGEST_S`. Meanwhile it is refused even with
    the right secret, so that the answer reveals nothing. Counted per client and job name, so that nobody can lock a
    host out of other jobs.
    """

    FREE = 5
    FIRST_S, LONGEST_S = 0.5, 30.0
    FORGOTTEN_AFTER_S = 600.0
    MOST = 10_000
    """Maximum number of entries; the oldest is dropped first."""

    def __init__(self) -> None:
        self._wrong: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()
        """(client, job) → number of wrong secrets, and time of the last one."""

    def check(self, client: str, job: str, now: float) -> None:
        """Raises Refused while the client has to wait."""
        wrong, last = self._wrong.get((client, job), (0, now))
        left = last + self._delay_s(wrong) - now
        if left > 0:
            raise Refused(
                Reason.SECRET, f"{wrong} wrong secrets came from {client}: the next try is allowed in {left:.1f} s"
            )

    def count(self, client: str, job: str, now: float) -> None:
        """Count a wrong secret."""
        wrong, last = self._wrong.pop((client, job), (0, now))
        self._wrong[client, job] = (wrong + 1 if now - last < self.FORGOTTEN_AFTER_S else 1), now
        if len(self._wrong) > self.MOST:
            self._wrong.popitem(last=False)

    def forgive(self, client: str, job: str) -> None:
        """Reset the count after the right secret."""
        self._wrong.pop((client, job), None)

    def _delay_s(self, wrong: int) -> float:
        return 0.0 if wrong < self.FREE else min(self.FIRST_S * 2.0 ** min(wrong - self.FREE, 30), self.LONGEST_S)
