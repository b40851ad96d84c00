"""What a check reports: a fault, its evidence, the gain of mending it, and the settings that mend it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

HIGH, MEDIUM = 0.10, 0.03
"""From which share of the iteration on a gain makes a finding one of high or of medium severity."""


@dataclass(frozen=True)
class Sighting:
    """An op that shows the fault: when it ran, on the common clock of the joined trace."""

    rank: int
    op: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Finding:
    """One thing to change."""

    kind: str
    """For programs: "straggler", "small messages", …"""
    title: str
    evidence: Sequence[str]
    """Sentences with the numbers that show it."""
    settings: Sequence[str]
    """What to change, the best first."""
    replayed: str
    """What was changed in the replay that the gain comes from."""
    gain_s: float
    """Seconds by which the replayed iteration got shorter."""
    share: float
    """`gain_s` of the replayed iteration."""
    sightings: Sequence[Sighting] = ()
    is_bound: bool = False
    """The change takes away more than any setting can: mending gains at most this."""

    @property
    def severity(self) -> str:
        """ "high", "medium" or "low", by `share`."""
        return "high" if self.share >= HIGH else "medium" if self.share >= MEDIUM else "low"

    def to_json(self) -> dict[str, Any]:
        """Plain data, severity included."""
        return {"severity": self.severity} | asdict(self)
