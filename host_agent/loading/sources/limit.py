"""Limit on concurrent reads from remote storage: as many as complete about as quickly as a single one. More would queue
in front of the slowest link, and when that queue overflows, TCP slows down.
"""

import asyncio
from collections import deque

FEWEST = 4
"""Initial and minimum limit, whatever the durations: one response is received while the next ones are requested."""
TOLERANCE = 2.0
"""Ratio to the quickest read's duration up to which a read counts as normal variation of the storage."""
SMOOTHING = 0.1
"""Weight of the latest read."""
FORGOTTEN_AFTER = 1000
"""Number of reads after which the quickest durations are reset, since a path may become slower."""


class ReadLimit:
    """Semaphore with an adaptive limit for reads, first come, first served; used by one event loop. `most`: maximum
    number of reads in flight.

    The limit follows the durations as TCP Vegas' window does (Brakmo and Peterson, 1995), in the form limit · gradient
    + √limit / 2: the gradient is the duration of the quickest read of about the same size, times TOLERANCE, over that
    of the read that has just completed, clamped to 0.5 to 1; the rest is the tolerated queue."""

    def __init__(self, most: int):
        self._most = most
        self._fewest = float(min(FEWEST, most))
        self.limit = self._fewest
        self._under_way = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._quickest: dict[int, float] = {}
        self._reads = 0

    async def take(self) -> None:
        """Wait for a permit; `give_back` releases it."""
        if self._under_way < int(self.limit) and not self._waiting:
            self._under_way += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the permit had been granted
                self.give_back()
            raise

    def give_back(self, size_bytes: int = 0, elapsed_s: float = 0.0) -> None:
        """Release a permit. `size_bytes`, `elapsed_s`: of a successful read."""
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
