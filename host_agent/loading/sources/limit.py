"""How many reads of remote storage are under way at a time: as many as come back about as soon as one alone would. More
would wait in a queue in front of the slowest link, and when that overflows, TCP loses what it had gained.
"""

import asyncio
from collections import deque

FEWEST = 4
"""Reads at the beginning, and however long they take: one answer comes while the next ones are asked for."""
TOLERANCE = 2.0
"""Up to how many times the quickest read's duration is taken for the storage's own unevenness."""
SMOOTHING = 0.1
"""Weight of the latest read."""
FORGOTTEN_AFTER = 1000
"""Reads after which the quickest of each size is looked for anew: a path may become slower."""


class ReadLimit:
    """Turns to read, first come, first served; of one event loop. `most`: reads under way at a time at most.

    The limit follows the durations as TCP Vegas' window does (Brakmo and Peterson, 1995), in the form limit · gradient
    + √limit / 2: the gradient is the duration of the quickest read of about the same size, times TOLERANCE, over that
    of the one that has just come, from 0.5 to 1; the rest is what may wait in the queue."""

    def __init__(self, most: int):
        self._most = most
        self._fewest = float(min(FEWEST, most))
        self.limit = self._fewest
        self._under_way = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._quickest: dict[int, float] = {}
        self._reads = 0

    async def take(self) -> None:
        """Wait for a turn; `give_back` ends it."""
        if self._under_way < int(self.limit) and not self._waiting:
            self._under_way += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it had come
                self.give_back()
            raise

    def give_back(self, size_bytes: int = 0, elapsed_s: float = 0.0) -> None:
        """End a turn. `size_bytes`, `elapsed_s`: of a read that went well."""
        self._under_way -= 1
        if elapsed_s > 0:
            self._learn(size_bytes.bit_length(), elapsed_s)
        while self._waiting and self._under_way < int(self.limit):
            turn = self._waiting.popleft()
            if not turn.done():
                self._under_way += 1
                turn.set_result(None)

    def _learn(self, size: int, elapsed_s: float) -> None:
        self._reads += 1
        if self._reads % FORGOTTEN_AFTER == 0:
            self._quickest.clear()
        quickest = self._quickest[size] = min(elapsed_s, self._quickest.get(size, elapsed_s))
        gradient = min(1.0, max(0.5, TOLERANCE * quickest / elapsed_s))
        wanted = min(self.limit * gradient + 0.5 * self.limit**0.5, self._most)
        self.limit = max(self._fewest, self.limit + SMOOTHING * (wanted - self.limit))
