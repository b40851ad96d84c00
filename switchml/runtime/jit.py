"""Compilation in this project: one decorator for all hot functions, and one compilation per machine rather than per
process.

`@kernel` is numba's njit without the GIL and with its disk cache. numba detects a change of the file of a cached
function, but not of the files from which it uses functions or constants, and its cache is keyed by file path. So the
kernels of each module have a separate directory under the user's cache directory (SWITCHML_CACHE_DIR overrides), named
by the digest of the module and of all modules of this project that it imports (dependencies.py): a change recompiles
its dependents, and equal checkouts share compiled kernels. Of several processes that need a kernel at the same time,
one compiles it.
"""

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

import numba
import numpy as np
from numba.core import caching
from numba.core.compiler_lock import global_compiler_lock

from switchml.runtime import dependencies
from switchml.runtime.cache import cache_root
from switchml.runtime.callees import CalleeCacheImpl, CalleeCompiler

Address: TypeAlias = int | np.uint64
"""Type of a memory address in kernels."""
if TYPE_CHECKING:
    int64 = int
else:
    int64 = np.int64
"""np.int64, declared as int for type checkers: numba has one integer type for both."""

_MAX_UNUSED_S = 14 * 86400
"""Time that unused kernels stay on disk. Newer ones are never removed: another checkout may use them."""
_types: Any = numba.types  # not all of them have type hints
_config: Any = numba.config  # its names follow from the environment
_Function = TypeVar("_Function", bound=Callable[..., Any])


@functools.cache
def _directory(module: str) -> Path:
    """Return the cache directory of a module's kernels."""
    code = dependencies.digest(module, cache_root() / "digests")
    checked = " with checked bounds" if _config.BOUNDSCHECK else ""
    digest = hashlib.sha256(f"{numba.__version__} {sys.version} {code}{checked}".encode())
    directory = _kernels() / f"{module}-{digest.hexdigest()[:16]}"
    if directory.exists():
        with contextlib.suppress(OSError):  # the cache may be read-only
            os.utime(directory)
    return directory


@functools.cache
def _kernels() -> Path:
    """Return the parent directory of all kernels. Removes those unused for `_MAX_UNUSED_S`; `_directory` updates the
    time of use."""
    parent = cache_root() / "kernels"
    with contextlib.suppress(OSError):  # nothing there yet, or a concurrent process
        for path in parent.iterdir():
            if path.stat().st_mtime < time.time() - _MAX_UNUSED_S:
                shutil.rmtree(path, ignore_errors=True)
    return parent


class _Locator(caching._CacheLocator):
    """Tells numba the location of a function's cache."""

    def __init__(self, function: Any) -> None:
        self._function = function

    @classmethod
    def from_function(cls, function: Any, path: str) -> "_Locator":
        return cls(function)

    def get_cache_path(self) -> str:
        return str(_directory(self._function.__module__))

    def get_source_stamp(self) -> str:
        return ""  # the directory's name identifies the code

    def get_disambiguator(self) -> str:
        return dependencies.of_function(self._function)


class _CalleeLocator(_Locator):
    def get_disambiguator(self) -> str:
        return f"{super().get_disambiguator()}-callee"


class _Impl(caching.CompileResultCacheImpl):
    _locator_classes: Any = [_Locator]


class _CalleeImpl(CalleeCacheImpl):
    _locator_classes: Any = [_CalleeLocator]


class _Cache(caching.FunctionCache):
    """Cache of a kernel. A process that finds an entry missing holds a lock until the entry is compiled and saved:
    other processes wait, and load it. Where nothing can be written or locked, each process compiles its own.

    A kernel stays locked while its callees are compiled. The lock is a POSIX lock: it ends with its process, forked
    processes do not inherit it, and on a deadlock between processes the system lets one continue without it (EDEADLK).
    """

    _impl_class: Any = _Impl
    _lock: IO[bytes] | None = None

    def load_overload(self, signature: Any, context: Any) -> Any:
        with contextlib.suppress(OSError):
            found = super().load_overload(signature, context)
            if found is None:
                self._acquire()
                found = super().load_overload(signature, context)
            return found

    def save_overload(self, signature: Any, data: Any) -> None:
        with contextlib.suppress(OSError):
            super().save_overload(signature, data)

    def _acquire(self) -> None:
        self._impl.locator.ensure_cache_path()
        self._lock = open(f"{self._cache_path}/{self._impl.filename_base}.lock", "ab")  # noqa: SIM115
        fcntl.lockf(self._lock, fcntl.LOCK_EX)

    def release(self) -> None:
        """Release the kernel's lock, whether it was compiled or not."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None


class _CalleeCache(_Cache):
    _impl_class = _CalleeImpl


@overload
def kernel(function: _Function) -> _Function: ...
@overload
def kernel(*, inline: bool = False, **options: Any) -> Callable[[_Function], _Function]: ...
def kernel(function: Any = None, *, inline: bool = False, **options: Any) -> Any:
    """njit(nogil=True), with the cache described above. `inline`: copy the function into its callers instead.

    For type checkers the function's type is unchanged.
    """
    if function is None:
        return functools.partial(kernel, inline=inline, **options)
    if inline:
        return numba.njit(inline="always", **options)(function)
    settings: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True, **options}
    compiled = numba.njit(**settings)(function)
    _have_one_compile(compiled, _Cache(function))
    settings["no_cpython_wrapper"] = True
    callee = numba.njit(**settings, pipeline_class=CalleeCompiler)(function)
    _have_one_compile(callee, _CalleeCache(function))
    _have_kernels_call(callee, compiled)
    return compiled


def _have_one_compile(dispatcher: Any, cache: _Cache) -> None:
    compile_alone = dispatcher.compile

    def compile_or_load(signature: Any) -> Any:
        with global_compiler_lock:  # numba's lock of threads: `cache` has one lock for all of them
            try:
                return compile_alone(signature)
            finally:
                cache.release()

    dispatcher._cache = cache
    dispatcher.compile = compile_or_load


def _have_kernels_call(callee: Any, compiled: Any) -> None:
    """Make other kernels call `callee` where they name `compiled`, which Python calls.

    Both are the same function, but `callee` can't take Python objects: unboxing the arrays of a loop's state takes
    several times as long to compile as the kernel itself.

    numba compiles a function for every literal and every integer width of its arguments: `le16(data, 4)` and
    `le16(data, 6)` are two functions. Here, literals become values, signed integers have 64 bits, and so have
    addresses, which are unsigned in arrays.
    """
    annotations = compiled.py_func.__annotations__

    def get_call_template(arguments: Any, keywords: Any) -> Any:
        signature, folded = callee._compiler.fold_argument_types(arguments, keywords)
        shared = (_shared(each, annotations.get(name)) for name, each in zip(signature.parameters, folded, strict=True))
        return callee.get_call_template(tuple(shared), {})

    compiled.get_call_template = get_call_template
    compiled.get_overload = callee.get_overload


def _shared(argument: Any, annotation: object) -> Any:
    if isinstance(argument, (_types.IntegerLiteral, _types.BooleanLiteral)):
        argument = _types.unliteral(argument)
    if isinstance(argument, _types.Integer) and (argument.signed or annotation in (Address, "Address")):
        return _types.int64
    return argument


def compile_once(entry: Any, *arguments: Any) -> None:
    """Compile, or load, `entry` for arguments of these types."""
    entry.compile(tuple(numba.typeof(argument) for argument in arguments))
