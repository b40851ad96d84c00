"""Progress callback for reading long files: set once for all readers, which are called from many places."""

from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path

WATCHER: ContextVar[Callable[[Path, int, int], None] | None] = ContextVar("WATCHER", default=None)
"""Called with a file, the bytes read so far, and its size; finally with all bytes read."""
