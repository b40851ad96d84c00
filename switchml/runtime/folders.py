"""Temporary folders, which a later process removes if their process was killed."""

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

_PREFIX, _SUFFIX = "switchml-", ".tmp"
_NEW_S = 60.0
"""A folder younger than this may not be locked yet."""


class TemporaryFolder(tempfile.TemporaryDirectory[str]):
    """A TemporaryDirectory named switchml-KIND-….tmp, locked (flock(2)) while its process lives. Creating one removes
    this user's folders whose processes were killed."""

    def __init__(self, kind: str) -> None:
        for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*{_SUFFIX}"):
            with suppress(OSError):
                _remove_if_left(path)
        super().__init__(prefix=f"{_PREFIX}{kind}-", suffix=_SUFFIX, ignore_cleanup_errors=True)
        self._lock = os.open(self.name, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def cleanup(self) -> None:
        super().cleanup()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _remove_if_left(path: Path) -> None:
    """Remove a folder whose process was killed. Raises OSError if its process lives, or if it belongs to another
    user."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        status = os.fstat(fd)
        if status.st_uid == os.getuid() and time.time() - status.st_mtime > _NEW_S:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(fd)
