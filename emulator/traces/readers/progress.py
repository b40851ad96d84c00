"""Who wants to know how far the reading of a long file has come. Readers are called from many places, so the watcher is
set once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path

WATCHER: ContextVar[Callable[[Path, int, int], None] | None] = ContextVar("WATCHER", default=None)
"""Called with a file, how many of its bytes have been read, and how many it has; in the end with all of them."""
