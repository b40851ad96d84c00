"""The cache directory, for results that take long to compute: compiled kernels, digests of code, the built
documentation. If it is full or not writable, a process shares a temporary folder with its child processes, so that each
kernel is still compiled only once.
"""

import atexit
import errno
import functools
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

from switchml.runtime.folders import TemporaryFolder

VARIABLE = "SWITCHML_CACHE_DIR"
NEEDED_BYTES = 32 << 20
"""The kernels of a training job take 15 MB."""
_CAN_NOT_TELL = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
"""Errors of file systems without space reservation."""


def cache_root() -> Path:
    """Return the cache directory; an unusable path if this user has no home directory."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return Path(chosen)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "switchml"
    except RuntimeError:
        return Path(os.devnull, "switchml")


@functools.cache
def share() -> None:
    """Ensure that child processes can share compiled kernels; to be called before starting them. If the cache directory
    can't hold kernels, print a note and make all processes use a temporary folder that is removed with this process.
    Existing contents of the cache directory are used from there."""
    root = cache_root()
    problem = _problem(root)
    if problem is None:
        return
    try:
        folder = TemporaryFolder("kernels")
    except OSError as error:
        _say(
            f"{root} can't keep compiled kernels ({problem}), nor can the temporary folder ({error.strerror}): each "
            "process compiles its own, which takes minutes"
        )
        return
    atexit.register(folder.cleanup)
    for name in ("kernels", "digests"):
        with suppress(OSError, shutil.Error):
            shutil.copytree(root / name, Path(folder.name, name), copy_function=os.symlink)
    os.environ[VARIABLE] = folder.name
    _say(
        f"{root} can't keep compiled kernels ({problem}): what it lacks is compiled for this run alone, which may take "
        f"minutes; make room, or set {VARIABLE}"
    )


def _problem(root: Path) -> str | None:
    """Return why `NEEDED_BYTES` can't be written there, or None."""
    probe = root / f"probe-{os.getpid()}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        with probe.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, NEEDED_BYTES)
    except OSError as error:
        return None if error.errno in _CAN_NOT_TELL else error.strerror or str(error)
    finally:
        with suppress(OSError):
            probe.unlink()
    return None


def _say(text: str) -> None:
    print(f"switchml: note: {text}", file=sys.stderr, flush=True)
