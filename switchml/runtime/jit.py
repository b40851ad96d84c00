"""How this project compiles: one decorator for every hot function, and compiling once per machine in place of once per
process.

`@kernel` is numba's njit without the GIL and with its cache on disk. numba notices when the file of a cached function
changes, but not when one does that it takes functions or constants from, and it keeps a cache for each path of a file.
So each module's kernels have a directory of their own, named by what stands in the module and in all modules of ours
that it imports, under the user's cache directory (SWITCHML_CACHE_DIR overrides): a change compiles anew what it may
have changed, and checkouts that say the same share what is compiled.
"""

import contextlib
import functools
import hashlib
import os
import re
import shutil
import sys
import time
from pathlib import Path

import numba
from filelock import FileLock
from numba.core import caching

_KEPT_S = 14 * 86400
"""How long kernels stay on disk that nobody uses. Nothing younger goes: another checkout may be at work with it."""
_PACKAGES = ("switchml", "host_agent", "emulator")
_LEFT_OUT = "switchml.errors"
"""Nothing of it ends in compiled code, and many import it."""
_IMPORT = re.compile(
    r"^(?:from[ \t]+(?P<base>[.\w]+)[ \t]+import[ \t]+(?P<names>\([^)]*\)|[^\n#]+)|import[ \t]+(?P<plain>[^\n#]+))",
    re.MULTILINE,
)


def cache_root() -> Path:
    """Where compiled kernels are kept."""
    chosen = os.environ.get("SWITCHML_CACHE_DIR")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "switchml"


@functools.cache
def _directory(module: str) -> Path:
    """Where the kernels of a module are kept."""
    digest = hashlib.sha256(f"{numba.__version__} {sys.version}".encode())
    for name in sorted(_reached(module)):
        digest.update(f"{name} ".encode() + hashlib.sha256(_source(name).encode()).digest())
    directory = _kernels() / f"{module}-{digest.hexdigest()[:16]}"
    if directory.exists():
        with contextlib.suppress(OSError):  # a cache that is not ours to write
            os.utime(directory)
    return directory


@functools.cache
def _kernels() -> Path:
    """Where all kernels are. Removes what nobody has used for a while; `_directory` dates what is used."""
    parent = cache_root() / "kernels"
    with contextlib.suppress(OSError):  # nothing there yet, or another process is at it too
        for path in parent.iterdir():
            if path.stat().st_mtime < time.time() - _KEPT_S:
                shutil.rmtree(path, ignore_errors=True)
    return parent


def _reached(module: str) -> set[str]:
    """`module` and the modules of ours that it imports, directly or not, when it is imported itself."""
    reached, ahead = set(), [module]
    while ahead:
        name = ahead.pop()
        if name not in reached and name != _LEFT_OUT:
            reached.add(name)
            ahead += _imports(name)
    return reached


@functools.cache
def _imports(module: str) -> tuple[str, ...]:
    file, found = _file(module), []
    is_package = file is not None and file.name == "__init__.py"
    for match in _IMPORT.finditer(_source(module)):
        if match["plain"]:
            found += [name.split()[0] for name in match["plain"].split(",")]
            continue
        base = match["base"]
        if base.startswith("."):
            up = len(base) - len(base.lstrip(".")) - is_package
            parents = module.split(".")
            base = ".".join([*parents[: len(parents) - up], *filter(None, [base.lstrip(".")])])
        names = [name.split()[0] for name in match["names"].strip("() \n").split(",") if name.strip()]
        inside = [f"{base}.{name}" for name in names if _file(f"{base}.{name}")]
        found += inside if len(inside) == len(names) else [base, *inside]
    return tuple(name for name in found if _file(name))


@functools.cache
def _file(module: str) -> Path | None:
    """The source of one of our modules, None for another's."""
    if module.partition(".")[0] not in _PACKAGES:
        return None
    path = Path(__file__).parents[2].joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


@functools.cache
def _source(module: str) -> str:
    return (_file(module) or Path(sys.modules[module].__file__)).read_text(encoding="utf-8")


class _Locator(caching._CacheLocator):
    """Tells numba where a function's cache is."""

    def __init__(self, function):
        self._function = function

    @classmethod
    def from_function(cls, function, path):
        return cls(function)

    def get_cache_path(self):
        return str(_directory(self._function.__module__))

    def get_source_stamp(self):
        return ""  # the directory's name says what the source is

    def get_disambiguator(self):
        return str(self._function.__code__.co_firstlineno)


class _Impl(caching.CompileResultCacheImpl):
    _locator_classes = (_Locator,)


class _Cache(caching.FunctionCache):
    """Where nothing can be kept, each process compiles for itself."""

    _impl_class = _Impl

    def load_overload(self, signature, context):
        with contextlib.suppress(OSError):
            return super().load_overload(signature, context)

    def save_overload(self, signature, data):
        with contextlib.suppress(OSError):
            super().save_overload(signature, data)


def kernel(function=None, *, inline=False, **options):
    """njit(nogil=True), with the cache described above. `inline`: copy the function into its callers instead."""
    if function is None:
        return functools.partial(kernel, inline=inline, **options)
    if inline:
        return numba.njit(inline="always", **options)(function)
    compiled = numba.njit(nogil=True, error_model="numpy", **options)(function)
    compiled._cache = _Cache(function)
    return compiled


def compile_once(entry, *arguments) -> None:
    """Have `entry` ready for arguments of these types: compiled by one process of the machine, loaded from disk by all
    others."""
    signature = tuple(numba.typeof(argument) for argument in arguments)
    if signature in entry.overloads:
        return
    name = hashlib.sha256(f"{entry.py_func.__qualname__} {signature}".encode()).hexdigest()[:16]
    directory = _directory(entry.py_func.__module__)
    marker = directory / f"ready-{name}"
    with contextlib.ExitStack() as stack:
        if not marker.exists():
            with contextlib.suppress(OSError):  # a cache that is not ours to write
                directory.mkdir(parents=True, exist_ok=True)
                stack.enter_context(FileLock(directory / f"lock-{name}"))
        entry.compile(signature)
        with contextlib.suppress(OSError):
            marker.touch()
