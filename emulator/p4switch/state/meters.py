"""Meters: arrays of token buckets, one bucket a rate, as BMv2 runs them (RFC 2698 for two rates).

Of each rate, tokens come at `rate` units (packets or bytes) a microsecond up to `burst`. A packet takes its size from
each bucket, the fastest first; the first that has too few tells the colour: its number, counted from 1 (two rates: 1
yellow, 2 red). A meter without rates gives 0, green.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import RLock

import numpy as np

from emulator.p4switch.program import ir
from emulator.p4switch.state.handles import locked
from switchml.errors import ControlError


class MeterArray:
    """`configured`: (size,) bool; `rate`: (size, rates) float64 units/µs; `burst`, `tokens`, `last`: (size, rates)
    uint64, `last` being the tokens made since time 0 when the bucket was last filled. Rates ascend along the last
    axis."""

    def __init__(self, array: ir.MeterArray, lock: RLock) -> None:
        shape = (array.size, array.rate_count)
        self.name = array.name
        self.size = array.size
        self.rate_count = array.rate_count
        self.counts_bytes = array.counts_bytes
        self.table = array.table
        self.is_direct = array.is_direct
        self.configured = np.zeros(array.size, dtype=bool)
        self.rate = np.zeros(shape)
        self.burst = np.zeros(shape, dtype=np.uint64)
        self.tokens = np.zeros(shape, dtype=np.uint64)
        self.last = np.zeros(shape, dtype=np.uint64)
        self.lock = lock

    def execute(self, index: int, n_bytes: int, now_us: int, pre_color: int = 0) -> int:
        """The colour of a packet of `n_bytes` bytes; no check: for the packet path."""
        if not self.configured[index]:
            return 0
        needed = n_bytes if self.counts_bytes else 1
        color = 0
        for level in reversed(range(self.rate_count)):
            made = int(now_us * self.rate[index, level])
            tokens = int(self.tokens[index, level]) + max(made - int(self.last[index, level]), 0)
            tokens = min(tokens, int(self.burst[index, level]))
            self.last[index, level] = made
            if tokens < needed:
                self.tokens[index, level] = tokens
                color = level + 1
                break
            self.tokens[index, level] = tokens - needed
        return max(pre_color, color)

    def _check(self, index: int) -> None:
        if not 0 <= index < self.size:
            raise ControlError(
                "Meter", "INVALID_INDEX", f"meter {self.name} has {self.size} cells, there is no cell {index}"
            )

    def _set(self, index: int, rates: Sequence[tuple[float, int]]) -> None:
        self.rate[index] = [rate for rate, _ in rates]
        self.burst[index] = self.tokens[index] = np.array([burst for _, burst in rates], dtype=np.uint64)
        self.last[index] = 0
        self.configured[index] = True

    def _check_rates(self, rates: Sequence[tuple[float, int]]) -> None:
        if len(rates) != self.rate_count:
            raise ControlError(
                "Meter", "BAD_RATES_LIST", f"meter {self.name} takes {self.rate_count} rates, not {len(rates)}"
            )
        values = [rate for rate, _ in rates]
        if values != sorted(values) or any(not 0 <= rate < float("inf") for rate in values):
            raise ControlError(
                "Meter", "INVALID_INFO_RATE_VALUE", f"meter {self.name}: the rates {values} must ascend from 0"
            )
        if any(burst < 0 for _, burst in rates):
            raise ControlError("Meter", "INVALID_BURST_SIZE_VALUE", f"meter {self.name}: a burst can't be negative")

    @locked
    def set_rates(self, index: int, rates: Sequence[tuple[float, int]]) -> None:
        """Set (units per microsecond, burst in units) of each rate, the lowest first; buckets start full."""
        self._check(index)
        self._check_rates(rates)
        self._set(index, rates)

    @locked
    def set_all_rates(self, rates: Sequence[tuple[float, int]]) -> None:
        """`set_rates` on every cell."""
        self._check_rates(rates)
        for index in range(self.size):
            self._set(index, rates)

    @locked
    def get_rates(self, index: int) -> list[tuple[float, int]]:
        """What was set, the lowest rate first; [] if nothing was."""
        self._check(index)
        if not self.configured[index]:
            return []
        return [(float(rate), int(burst)) for rate, burst in zip(self.rate[index], self.burst[index], strict=True)]

    @locked
    def reset_rates(self, index: int) -> None:
        """Forget what was set: everything is green again."""
        self._check(index)
        self.configured[index] = False

    @locked
    def reset(self) -> None:
        """`reset_rates` on every cell."""
        self.configured[:] = False
