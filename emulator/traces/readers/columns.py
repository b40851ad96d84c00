"""Growing tables of numbers: what a reader collects event by event, kept as packed arrays, so that ten million events
take hundreds of megabytes and not thousands.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable

import numpy as np


class Columns:
    """`Columns(start="d", lane="i")` has an `array.array` of that type code for each name, to append to."""

    def __init__(self, **codes: str) -> None:
        self._codes = codes
        for name, code in codes.items():
            setattr(self, name, array(code))

    def arrays(self) -> dict[str, np.ndarray]:
        """Each column as a NumPy array over the same memory."""
        columns = ((name, getattr(self, name), np.dtype(code)) for name, code in self._codes.items())
        return {name: np.frombuffer(column, dtype) if column else np.empty(0, dtype) for name, column, dtype in columns}


class Numbers(dict):
    """Numbers for names: `numbers[key]` counts the keys before it, from 0."""

    def __missing__(self, key: Hashable) -> int:
        self[key] = number = len(self)
        return number
