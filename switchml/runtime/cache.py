"""Where what takes long to make is kept: compiled kernels, digests of code, the built documentation. Where that place
is full or not ours to write, a process shares a temporary folder with those that it starts, so that each kernel is
compiled once all the same.
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
"""A training's kernels take 15 MB."""
_CAN_NOT_TELL = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
"""Of file systems that reserve nothing."""


def cache_root() -> Path:
    """Where all of it is kept; a place where nothing can be, if this user has no home."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return Path(chosen)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "switchml"
    except RuntimeError:
        return Path(os.devnull, "switchml")


@functools.cache
def share() -> None:
    """Before processes start that need the same kernels: where those can't be kept, say so, and have all keep them in a
    folder that goes with this process. What the full place has is used from there."""
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
    """Why nothing of `NEEDED_BYTES` can be written there."""
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
