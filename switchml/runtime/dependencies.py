"""Digest of the code that a module's kernels depend on: the module and all modules of this project that it imports.

Compiled code contains functions and constants from other modules, but numba detects changes only in a function's own
file. The digest is computed from Python's compiled code, without docstrings and line numbers, so that a changed comment
causes no recompilation. Computing it takes longer than reading the text, so it is cached on disk, by the digest of the
text.
"""

import contextlib
import functools
import hashlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

_PACKAGES = ("switchml", "host_agent", "emulator")
_WITHOUT_KERNELS = "switchml.errors"
"""A module without influence on compiled code that many modules import."""
_IMPORT = re.compile(
    r"^(?:from[ \t]+(?P<base>[.\w]+)[ \t]+import[ \t]+(?P<names>\([^)]*\)|[^\n#]+)|import[ \t]+(?P<plain>[^\n#]+))",
    re.MULTILINE,
)


def digest(module: str, kept: Path) -> str:
    """Return the digest of `module` and its imports. `kept`: directory for cached digests of single modules, created if
    possible."""
    found = hashlib.sha256()
    for name in sorted(_dependencies(module)):
        found.update(f"{name} {_of_module(name, kept)}\n".encode())
    return found.hexdigest()


def of_function(function: Any) -> str:
    """Return a digest that distinguishes functions of the same name in a module, whose module digests are equal."""
    parts = [part for part in _parts(function.__code__) if part != repr(function.__doc__)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


@functools.cache
def _of_module(name: str, kept: Path) -> str:
    text = _source(name)
    place = kept / hashlib.sha256(f"{sys.version}\n{text}".encode()).hexdigest()
    with contextlib.suppress(OSError):
        if len(known := place.read_text()) == 64:  # otherwise another process is writing it
            return known
    code = compile(text, "", "exec", dont_inherit=True, optimize=2)  # optimize=2: without docstrings
    made = hashlib.sha256("\n".join(_parts(code)).encode()).hexdigest()
    with contextlib.suppress(OSError):
        kept.mkdir(parents=True, exist_ok=True)
        place.write_text(made)
    return made


def _parts(code: CodeType) -> Iterator[str]:
    """Yield everything that determines the behavior of `code`, so without line numbers."""
    yield f"{code.co_name} {code.co_flags} {code.co_argcount} {code.co_posonlyargcount} {code.co_kwonlyargcount}"
    yield f"{code.co_names} {code.co_varnames} {code.co_freevars} {code.co_cellvars} {code.co_code.hex()}"
    yield getattr(code, "co_exceptiontable", b"").hex()  # since Python 3.11
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _parts(constant)
        else:
            yield repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)


def _dependencies(module: str) -> set[str]:
    """Return `module` and the modules of this project that are imported with it, directly or indirectly."""
    dependencies: set[str] = set()
    pending = [module]
    while pending:
        name = pending.pop()
        if name not in dependencies and name != _WITHOUT_KERNELS:
            dependencies.add(name)
            pending += _imports(name)
    return dependencies


@functools.cache
def _imports(module: str) -> tuple[str, ...]:
    """Return the modules of this project that the text of `module` imports; all imports are absolute."""
    imported: list[str] = []
    for match in _IMPORT.finditer(_source(module)):
        base = match["base"]
        if base is None:
            imported += [name.split()[0] for name in match["plain"].split(",")]
            continue
        names = [name.split()[0] for name in match["names"].strip("() \n").split(",") if name.strip()]
        submodules = [f"{base}.{name}" for name in names if _file(f"{base}.{name}")]
        imported += submodules if len(submodules) == len(names) else [base, *submodules]
    return tuple(name for name in imported if _file(name))


@functools.cache
def _file(module: str) -> Path | None:
    """Return the source file of a module of this project, None for other modules."""
    if module.partition(".")[0] not in _PACKAGES:
        return None
    path = Path(__file__).parents[2].joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


@functools.cache
def _source(module: str) -> str:
    return (_file(module) or Path(inspect.getfile(sys.modules[module]))).read_text(encoding="utf-8")
