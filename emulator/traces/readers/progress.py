"""Who watches the reading of long files: set once for all readers, which are called from many places."""

from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path

WATCHER: ContextVar[Callable[[Path, int, int], None] | None] = ContextVar("WATCHER", default=None)
"""Called with a file, how many of its bytes have been read, and how many it has; in the end with all of them."""
