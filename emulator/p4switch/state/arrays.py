"""Register and counter arrays: NumPy arrays that both engines and the control plane share.

Register cells are unsigned numbers of any width, stored as 64-bit limbs, the least significant first. All methods for
the control plane hold the switch's lock and raise ControlError.
"""

from __future__ import annotations

from threading import RLock
from typing import ClassVar

import numpy as np

from emulator.p4switch.program import ir
from emulator.p4switch.state.handles import locked
from emulator.p4switch.values import stored_in_register
from switchml.errors import ControlError


class CellArray:
    """What arrays of one cell per index share. `operation` is that of their ControlErrors."""

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
    """`data`: (size, limbs) uint64, limb 0 least significant; `width` in bits."""

    operation = "Register"

    def __init__(self, array: ir.RegisterArray, lock: RLock) -> None:
        super().__init__(array, lock)
        self.width = array.width
        self.data = np.zeros((array.size, (array.width + 63) // 64), dtype="<u8")

    def __getitem__(self, index: int) -> int:
        """The value of a cell; no lock, no check: for the packet path."""
        return int.from_bytes(self.data[index].tobytes(), "little")

    def __setitem__(self, index: int, value: int) -> None:
        """Store the low bits of `value`; no lock, no check: for the packet path."""
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
    """`data`: (size, 2) uint64, packets and bytes."""

    operation = "Counter"

    def __init__(self, array: ir.CounterArray, lock: RLock) -> None:
        super().__init__(array, lock)
        self.table = array.table
        self.data = np.zeros((array.size, 2), dtype=np.uint64)

    def count(self, index: int, n_bytes: int) -> None:
        """Count a packet; no lock, no check: for the packet path."""
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
