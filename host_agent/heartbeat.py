"""Detection of a lost aggregator that is silent. The connection to an aggregator that is killed breaks at once; one
that is cut off or suspended just sends nothing, so it is pinged.

`Heartbeat` decides when to ping, without a thread or a clock.
"""

import enum

TURN_S = 0.1
QUIET_TURNS = 2
"""Turns without a packet after which the aggregator is pinged while packets are in flight."""
IDLE_TURNS = 10
"""Turns without a packet after which it is pinged while none are in flight: ranks that compute must fail over together
with those that wait."""
ANSWER_TURNS = 6
"""Turns until a ping's answer is overdue: three times TCP's minimum retransmission timeout."""
MAX_ANSWER_TURNS = 100
"""Maximum of that limit: after this time gRPC's own pings detect a loss (PEER_TIMEOUT_S of
switchml/control/channel.py)."""


class Beat(enum.Enum):
    """Result of a turn."""

    CALM = enum.auto()
    ASK = enum.auto()
    LOST = enum.auto()


class Heartbeat:
    """Heartbeat of one rank. `turn` must be called every TURN_S, so that a loss is detected within a second.

    The limits count turns, not seconds: on a machine so busy that threads wait long for a processor, turns are late as
    well, and an answer has more time. After each loss the limit doubles: if aggregators are slow, and not lost, a job
    should not move back and forth between them.
    """

    def __init__(self) -> None:
        self._answer_turns = ANSWER_TURNS
        self.begin()

    def begin(self) -> None:
        """Restart the count."""
        self._heard, self._quiet, self._asked = -1, 0, 0

    def turn(self, heard: int, is_waiting: bool) -> Beat:
        """Take a turn. `heard`: number of packets and answers received so far; `is_waiting`: whether packets are in
        flight."""
        if heard != self._heard:
            self.begin()
            self._heard = heard
            return Beat.CALM
        if self._asked:
            self._asked += 1
            if self._asked <= self._answer_turns:
                return Beat.CALM
            self._answer_turns = min(2 * self._answer_turns, MAX_ANSWER_TURNS)
            return Beat.LOST
        self._quiet += 1
        if self._quiet < (QUIET_TURNS if is_waiting else IDLE_TURNS):
            return Beat.CALM
        self._asked = 1
        return Beat.ASK
