"""Meters: arrays of token buckets, one bucket a rate, as BMv2 runs them (RFC 2698 for two rates).

Each bucket fills at `rate` units (packets or bytes) per microsecond up to `burst`. A packet takes its size from each
bucket, the fastest first; the first that has too few tokens determines the colour: its number, counted from 1 (two
rates: 1 yellow, 2 red). A meter without rates gives 0, green.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import RLock

import numpy as np

from emulator.p4switch.program import ir
from emulator.p4switch.state.arrays import CellArray
from emulator.p4switch.state.handles import locked


class MeterArray(CellArray):
    """`configured`: (size,) bool; `rate`: (size, rates) float64 units/µs; `burst`, `tokens`, `last`: (size, rates)
    uint64, `last` being the tokens produced between time 0 and the bucket's last update. Rates ascend along the last
    axis."""

    operation = "Meter"

    def __init__(self, array: ir.MeterArray, lock: RLock) -> None:
        super().__init__(array, lock)
        shape = (array.size, array.rate_count)
        self.rate_count = array.rate_count
        self.counts_bytes = array.counts_bytes
        self.table = array.table
        self.is_direct = array.is_direct
        self.configured = np.zeros(array.size, dtype=bool)
        self.rate = np.zeros(shape)
        self.burst = np.zeros(shape, dtype=np.uint64)
        self.tokens = np.zeros(shape, dtype=np.uint64)
        self.last = np.zeros(shape, dtype=np.uint64)

    def execute(self, index: int, n_bytes: int, now_us: int, pre_color: int = 0) -> int:
        """The colour of a packet of `n_bytes` bytes; no check: for the packet path."""
        if not self.configured[index]:
            return 0
        cost = n_bytes if self.counts_bytes else 1
        color = 0
        for level in reversed(range(self.rate_count)):
            produced = int(now_us * self.rate[index, level])
            tokens = int(self.tokens[index, level]) + max(produced - int(self.last[index, level]), 0)
            tokens = min(tokens, int(self.burst[index, level]))
            self.last[index, level] = produced
            if tokens < cost:
                self.tokens[index, level] = tokens
                color = level + 1
                break
            self.tokens[index, level] = tokens - cost
        return max(pre_color, color)

    def _set(self, index: int | slice, rates: Sequence[tuple[float, int]]) -> None:
        self.rate[index] = [rate for rate, _ in rates]
        self.burst[index] = self.tokens[index] = np.array([burst for _, burst in rates], dtype=np.uint64)
        self.last[index] = 0
        self.configured[index] = True

    def _check_rates(self, rates: Sequence[tuple[float, int]]) -> None:
        if len(rates) != self.rate_count:
            raise self._refusal("BAD_RATES_LIST", f"takes {self.rate_count} rates, not {len(rates)}")
        values = [rate for rate, _ in rates]
        if values != sorted(values) or any(not 0 <= rate < float("inf") for rate in values):
            raise self._refusal("INVALID_INFO_RATE_VALUE", f"has rates {values}: they must ascend from 0")
        if any(burst < 0 for _, burst in rates):
            raise self._refusal("INVALID_BURST_SIZE_VALUE", "can't have a negative burst")

    @locked
    def set_rates(self, index: int, rates: Sequence[tuple[float, int]]) -> None:
        """Set (units per microsecond, burst in units) of each rate, the lowest first; buckets start full."""
        self._check(index)
        self._check_rates(rates)
        self._set(index, rates)

    @locked
    def set_all_rates(self, rates: Sequence[tuple[float, int]]) -> None:
        self._check_rates(rates)
        self._set(slice(None), rates)

    @locked
    def get_rates(self, index: int) -> list[tuple[float, int]]:
        """The rates set, the lowest first; [] if none are."""
        self._check(index)
        if not self.configured[index]:
            return []
        return [(float(rate), int(burst)) for rate, burst in zip(self.rate[index], self.burst[index], strict=True)]

    @locked
    def reset_rates(self, index: int) -> None:
        """Remove the rates: all packets are green."""
        self._check(index)
        self.configured[index] = False

    @locked
    def reset(self) -> None:
        self.configured[:] = False
