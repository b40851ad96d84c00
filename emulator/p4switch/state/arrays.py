"""Register, counter and meter arrays: NumPy arrays shared by both engines and the control plane.

Register cells are unsigned numbers of any width, stored as 64-bit limbs, the least significant first. All methods for
the control plane acquire the switch's lock and raise ControlError.
"""

from collections.abc import Sequence
from threading import RLock
from typing import ClassVar

import numpy as np

from emulator.p4switch.program import ir
from emulator.p4switch.state.handles import locked
from emulator.p4switch.values import stored_in_register
from switchml.errors import ControlError


class CellArray:
    """Base class of arrays with one cell per index. `operation` is that of their ControlErrors."""

    operation: ClassVar[str]
    data: np.ndarray

    def __init__(self, array: ir.RegisterArray | ir.CounterArray | ir.MeterArray, lock: RLock) -> None:
        self.name = array.name
        self.size = array.size
        self.lock = lock

    def _check(self, index: int) -> None:
        if not 0 <= index < self.size:
            raise self._refusal("INVALID_INDEX", f"has {self.size} cells, there is no cell {index}")

    def _refusal(self, code: str, problem: str) -> ControlError:
        return ControlError(self.operation, code, f"{self.operation.lower()} {self.name} {problem}")

    @locked
    def reset(self) -> None:
        self.data[:] = 0


class RegisterArray(CellArray):
    """A register array. `data`: (size, limbs) uint64, limb 0 least significant; `width` in bits."""

    operation = "Register"

    def __init__(self, array: ir.RegisterArray, lock: RLock) -> None:
        super().__init__(array, lock)
        self.width = array.width
        self.data = np.zeros((array.size, (array.width + 63) // 64), dtype="<u8")

    def __getitem__(self, index: int) -> int:
        """Value of a cell, without lock or range check, for the packet path."""
        return int.from_bytes(self.data[index].tobytes(), "little")

    def __setitem__(self, index: int, value: int) -> None:
        """Store the low bits of `value`, without lock or range check, for the packet path."""
        raw = stored_in_register(value, self.width).to_bytes(8 * self.data.shape[1], "little")
        self.data[index] = np.frombuffer(raw, dtype="<u8")

    @locked
    def read(self, index: int) -> int:
        self._check(index)
        return self[index]

    @locked
    def read_all(self) -> list[int]:
        return [self[index] for index in range(self.size)]

    @locked
    def write(self, index: int, value: int) -> None:
        """Store the low bits of `value`."""
        self._check(index)
        self[index] = value

    @locked
    def write_range(self, start: int, end: int, value: int) -> None:
        """Store in cells start..end-1."""
        if not 0 <= start <= end <= self.size:
            raise self._refusal("INVALID_INDEX", f"has {self.size} cells, not {start} to {end}")
        for index in range(start, end):
            self[index] = value


class CounterArray(CellArray):
    """A counter array. `data`: (size, 2) uint64, packets and bytes."""

    operation = "Counter"

    def __init__(self, array: ir.CounterArray, lock: RLock) -> None:
        super().__init__(array, lock)
        self.table = array.table
        self.data = np.zeros((array.size, 2), dtype=np.uint64)

    def count(self, index: int, n_bytes: int) -> None:
        """Count a packet, without lock or range check, for the packet path."""
        self.data[index] += np.array((1, n_bytes), dtype=np.uint64)

    @locked
    def read(self, index: int) -> tuple[int, int]:
        """(packets, bytes)."""
        self._check(index)
        return int(self.data[index, 0]), int(self.data[index, 1])

    @locked
    def write(self, index: int, packets: int, n_bytes: int) -> None:
        self._check(index)
        self.data[index] = np.array((packets & (2**64 - 1), n_bytes & (2**64 - 1)), dtype=np.uint64)


class MeterArray(CellArray):
    """Token-bucket meters, with one bucket per rate, as in BMv2 (RFC 2698 for two rates). Each bucket fills at `rate`
    units (packets or bytes) per microsecond up to `burst`. A packet takes its size from each bucket, the fastest first;
    the first bucket with too few tokens determines the color: its number, counted from 1 (two rates: 1 yellow, 2 red).
    A meter without rates returns 0, green.

    `configured`: (size,) bool; `rate`: (size, rates) float64 units/µs; `burst`, `tokens`, `last`: (size, rates) uint64,
    where `last` is the number of tokens produced between time 0 and the bucket's last update. Rates ascend along the
    last axis."""

    operation = "Meter"

    def __init__(self, array: ir.MeterArray, lock: RLock) -> None:
        super().__init__(array, lock)
        shape = (array.size, array.rate_count)
        self.rate_count = array.rate_count
        self.counts_bytes = array.counts_bytes
        self.is_direct = array.is_direct
        self.configured = np.zeros(array.size, dtype=bool)
        self.rate = np.zeros(shape)
        self.burst = np.zeros(shape, dtype=np.uint64)
        self.tokens = np.zeros(shape, dtype=np.uint64)
        self.last = np.zeros(shape, dtype=np.uint64)

    def execute(self, index: int, n_bytes: int, now_us: int, pre_color: int = 0) -> int:
        """Color of a packet of `n_bytes` bytes, without range check, for the packet path."""
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
        """The configured rates, the lowest first; [] if not configured."""
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
