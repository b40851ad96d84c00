"""How this project compiles: one decorator for every hot function, and compiling once per machine in place of once per
process.

`@kernel` is numba's njit without the GIL and with its cache on disk. numba notices when the file of a cached function
changes, but not when a file does from which it takes functions or constants, and its cache is one of file paths.
So the kernels of each module have a directory of their own under the user's cache directory (SWITCHML_CACHE_DIR
overrides), named by the code of the module and of all our modules that it imports (dependencies.py): a change
recompiles what depends on it, and equal checkouts share what is compiled. Of processes that need a kernel at the same
time, one compiles it.
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
"""What kernels take for an address in memory."""
if TYPE_CHECKING:
    int64 = int
else:
    int64 = np.int64
"""np.int64, which is an int to type checkers: numba has one kind of integer for both."""

_MAX_UNUSED_S = 14 * 86400
"""How long kernels stay on disk that nobody uses. No younger ones are removed: another checkout may use them."""
_types: Any = numba.types  # not all of them have types of their own
_Function = TypeVar("_Function", bound=Callable[..., Any])


@functools.cache
def _directory(module: str) -> Path:
    """Where the kernels of a module are kept."""
    code = dependencies.digest(module, cache_root() / "digests")
    digest = hashlib.sha256(f"{numba.__version__} {sys.version} {code}".encode())
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
            if path.stat().st_mtime < time.time() - _MAX_UNUSED_S:
                shutil.rmtree(path, ignore_errors=True)
    return parent


class _Locator(caching._CacheLocator):
    """Tells numba where a function's cache is."""

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
    """A kernel's cache. Who finds that it lacks something locks it, until that is compiled and saved: other processes
    wait, and load it. Where nothing can be written or locked, each process compiles for itself.

    A kernel stays locked while those that it calls are compiled. The lock is POSIX's: it ends with its process, no fork
    inherits it, and of processes that would wait for each other the system lets one go on without (EDEADLK).
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
        """Let the next process have the kernel, whether it was compiled or not."""
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

    To type checkers the function stays what it is.
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
        with global_compiler_lock:  # numba's, of threads: `cache` has one lock for all of them
            try:
                return compile_alone(signature)
            finally:
                cache.release()

    dispatcher._cache = cache
    dispatcher.compile = compile_or_load


def _have_kernels_call(callee: Any, compiled: Any) -> None:
    """Let other kernels call `callee` where they name `compiled`, which Python calls.

    They are the same function, but `callee` can't take Python objects: unwrapping the arrays of a loop's state takes
    several times as long to compile as a kernel itself.

    numba compiles a function for every literal and every width of integer with which another one calls it: `le16(data,
    4)` and `le16(data, 6)` are two functions. Here, literals are values, signed integers have 64 bits, and so have
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
    """Have `entry` ready for arguments of these types."""
    entry.compile(tuple(numba.typeof(argument) for argument in arguments))
