"""How this project compiles: one decorator for every hot function, and compiling once per machine in place of once per
process.

`@kernel` is numba's njit without the GIL and with its cache on disk. numba notices when the file of a cached function
changes, but not when a function that it calls, in another file, does; so the cache has a directory of its own for each
state of all kernel sources, under the user's cache directory (SWITCHML_CACHE_DIR overrides).
"""

import contextlib
import functools
import hashlib
import os
import shutil
import sys
import threading
import time
from pathlib import Path

import numba
from filelock import FileLock

_CACHE_DIR_LOCK = threading.Lock()
_KEPT_S = 14 * 86400
"""How long kernels stay on disk that nobody uses. Nothing younger goes: another checkout may be at work with it."""


def cache_root() -> Path:
    """Where compiled kernels are kept."""
    chosen = os.environ.get("SWITCHML_CACHE_DIR")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "switchml"


@functools.cache
def _directory(package: str) -> Path:
    """The cache of one top-level package: named by a hash of its kernel sources and switchml's, and of numba's
    version."""
    here = Path(__file__).parent
    digest = hashlib.sha256(f"{numba.__version__} {sys.version}".encode())
    for root in dict.fromkeys((here, here.parent / package)):  # in the same order in every process
        for path in sorted(root.rglob("*.py")):
            text = path.read_bytes()
            if b"@kernel" in text or b"@intrinsic" in text:
                digest.update(str(path.relative_to(here.parent)).encode() + text)
    directory = cache_root() / "kernels" / f"{package}-{digest.hexdigest()[:16]}"
    if directory.exists():
        with contextlib.suppress(OSError):  # a cache that is not ours to write
            os.utime(directory)
    else:
        _prune(directory.parent)
    return directory


def _prune(parent: Path) -> None:
    """Remove what nobody has used for a while; `_directory` dates what is used."""
    with contextlib.suppress(OSError):  # nothing there yet, or another process is pruning too
        for path in parent.iterdir():
            if path.stat().st_mtime < time.time() - _KEPT_S:
                shutil.rmtree(path, ignore_errors=True)


def kernel(function=None, *, inline=False, **options):
    """njit(nogil=True, cache=True), with the cache described above. `inline`: copy the function into its callers
    instead."""
    if function is None:
        return functools.partial(kernel, inline=inline, **options)
    if inline:
        return numba.njit(inline="always", **options)(function)
    with _CACHE_DIR_LOCK:  # modules may be imported by several threads
        before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(_directory(function.__module__.partition(".")[0]))
        try:
            return numba.njit(nogil=True, cache=True, error_model="numpy", **options)(function)
        finally:
            numba.config.CACHE_DIR = before


def compile_once(entry, *arguments) -> None:
    """Have `entry` ready for arguments of these types: compiled by one process of the machine, loaded from disk by all
    others."""
    signature = tuple(numba.typeof(argument) for argument in arguments)
    if signature in entry.overloads:
        return
    directory = _directory(entry.py_func.__module__.partition(".")[0])
    name = hashlib.sha256(f"{entry.py_func.__module__}.{entry.py_func.__qualname__} {signature}".encode()).hexdigest()[
        :16
    ]
    marker = directory / f"ready-{name}"
    if marker.exists():
        entry.compile(signature)
        return
    directory.mkdir(parents=True, exist_ok=True)
    with FileLock(directory / "lock"):
        entry.compile(signature)
        marker.touch()
