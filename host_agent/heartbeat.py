"""Whether an aggregator that sends nothing is still there. The connection to one that is killed breaks at once; of one
that is cut off, or stopped, nothing more is heard. So it is asked.

`Heartbeat` decides when, without a thread or a clock.
"""

import enum

TURN_S = 0.1
QUIET_TURNS = 2
"""Turns without a packet after which the aggregator is asked, if packets are awaited."""
IDLE_TURNS = 10
"""The same if none are: ranks that compute meanwhile are to move with those that wait."""
ANSWER_TURNS = 6
"""How long an answer may take: three times the least retransmission timeout of TCP."""
MOST_ANSWER_TURNS = 100
"""After so long gRPC's own pings notice (PEER_TIMEOUT_S of switchml/control/channel.py)."""


class Beat(enum.Enum):
    """What a turn comes to."""

    CALM = enum.auto()
    ASK = enum.auto()
    LOST = enum.auto()


class Heartbeat:
    """Of one rank. A turn is to be taken every TURN_S, so that a loss is noticed within a second.

    Turns are counted, not seconds: on a machine so busy that threads wait long for a processor, turns come late as
    well, and an answer has more time. After each loss it has twice as many turns: if aggregators are slow, and not
    lost, a job is not to be sent to and fro between them.
    """

    def __init__(self) -> None:
        self._answer_turns = ANSWER_TURNS
        self.begin()

    def begin(self) -> None:
        """Count anew."""
        self._heard, self._quiet, self._asked = -1, 0, 0

    def turn(self, heard: int, is_waiting: bool) -> Beat:
        """`heard`: how many packets and answers have come so far; `is_waiting`: whether packets are awaited."""
        if heard != self._heard:
            self.begin()
            self._heard = heard
            return Beat.CALM
        if self._asked:
            self._asked += 1
            if self._asked <= self._answer_turns:
                return Beat.CALM
            self._answer_turns = min(2 * self._answer_turns, MOST_ANSWER_TURNS)
            return Beat.LOST
        self._quiet += 1
        if self._quiet < (QUIET_TURNS if is_waiting else IDLE_TURNS):
            return Beat.CALM
        self._asked = 1
        return Beat.ASK
