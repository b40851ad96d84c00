"""Data structures of tables and value sets that the VM reads: records at stable addresses, and hash tables of them that
are updated entry by entry."""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from emulator.p4switch.engine.vm.tables import CHUNK_BITS, link, move_slots
from switchml.runtime.jit import compile_once

MAX_CHUNKS = 1 << 24 - CHUNK_BITS
"""Handles have 24 bits."""
M64 = (1 << 64) - 1
_MIX = 0x9E3779B97F4A7C15


def warm() -> None:
    """Compile the kernels that change hash tables."""
    compile_once(link, *[0] * 6)
    compile_once(move_slots, *[0] * 4)


def to_limbs(value: int, n: int) -> list[int]:
    """The low n limbs of a value."""
    if n == 1:
        return [value & M64]
    return [value >> 64 * i & M64 for i in range(n)]


class KeepAlive:
    """Keeps arrays alive whose addresses the VM uses."""

    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []

    def __call__(self, values: np.ndarray | Sequence[Any], dtype: type | None = None) -> int:
        """The address of an array, or of a new array of the values; empty arrays are replaced by one element."""
        self._arrays.append(np.asarray(values if len(values) else [0], dtype))
        return self._arrays[-1].ctypes.data


def seed_of(number: int) -> int:
    """Initial hash value for the mask with a number, as int64."""
    return (number * _MIX + (1 << 63) & M64) - (1 << 63)


class Records:
    """Records of `n_words` words, by index. With `has_directory` the VM can access them by index, too: `directory`
    holds the bytes per record, then the addresses of the chunks."""

    def __init__(self, n_words: int, *, has_directory: bool = False) -> None:
        self._all = struct.Struct(f"={n_words}Q")
        self.n_bytes = 8 * n_words
        self.directory = np.zeros(1 + MAX_CHUNKS if has_directory else 1, dtype=np.int64)
        self.directory[0] = self.n_bytes
        self._chunks: dict[int, tuple[int, memoryview]] = {}

    def _chunk(self, index: int) -> tuple[int, memoryview]:
        number = index >> CHUNK_BITS
        if number not in self._chunks:
            block = np.zeros(self.n_bytes << CHUNK_BITS, dtype=np.uint8)
            if len(self.directory) > 1:
                self.directory[1 + number] = block.ctypes.data
            self._chunks[number] = block.ctypes.data, block.data
        return self._chunks[number]

    def _offset(self, index: int) -> int:
        return (index & (1 << CHUNK_BITS) - 1) * self.n_bytes

    def address(self, index: int) -> int:
        """Address of a record, which may not be written yet."""
        return self._chunk(index)[0] + self._offset(index)

    def write(self, index: int, words: Sequence[int]) -> None:
        """Write all words (0 to 2^64 - 1) of a record."""
        self._all.pack_into(self._chunk(index)[1], self._offset(index), *words)

    def write_some(self, index: int, at: int, *words: int) -> None:
        """Write words into a record, starting at byte `at`."""
        struct.pack_into(f"={len(words)}Q", self._chunk(index)[1], self._offset(index) + at, *words)


class Slots:
    """A hash table of records. `words`: its description for the VM, as in vm.tables.SLOTS. Keys have `n` limbs, stored
    in a record from byte `key_at`. `expected`: expected number of records, if known."""

    def __init__(self, words: np.ndarray, n: int, key_at: int, expected: int = 0) -> None:
        self._words, self._address, self._n_limbs = words, words.ctypes.data, n
        self._first_size = 1 << max(2 * min(expected, _MAX_EXPECTED) - 1, 7).bit_length()
        words[2] = key_at
        self.clear()

    def _hold(self, size: int) -> None:
        self._slots = np.zeros(2 * size, dtype=np.int64)
        self._words[:2] = self._slots.ctypes.data, size - 1
        self._size = size

    def clear(self) -> None:
        self._n_used = 0
        self._hold(self._first_size)

    def link(self, key: int, mask: int, number: int, record: int) -> None:
        """Set the record for a key under a mask (addresses of limbs); 0: none. `number`: the mask's."""
        self._n_used += link(self._address, key, mask, self._n_limbs, seed_of(number), record)
        if 2 * self._n_used > self._size:
            before, size = self._slots, self._size
            self._hold(2 * size)
            move_slots(before.ctypes.data, size, self._slots.ctypes.data, 2 * size - 1)


_MAX_EXPECTED = 1 << 20
"""Maximum number of records that a hash table is initially sized for; untouched memory is not committed."""
