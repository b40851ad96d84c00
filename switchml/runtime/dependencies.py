"""What a module's kernels depend on: the code of the module and of all our modules that it imports, as one digest.

Compiled code takes functions and constants from other modules, and numba notices only changes to a function's own file.
The digest is of what Python makes of a text, without docstrings and line numbers, so a changed comment compiles nothing
again. To make it takes longer than to read a text: it is kept on disk, by the text's own digest.
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
"""Nothing of it ends in compiled code, and many modules import it."""
_IMPORT = re.compile(
    r"^(?:from[ \t]+(?P<base>[.\w]+)[ \t]+import[ \t]+(?P<names>\([^)]*\)|[^\n#]+)|import[ \t]+(?P<plain>[^\n#]+))",
    re.MULTILINE,
)


def digest(module: str, kept: Path) -> str:
    """Of `module` and what it imports. `kept`: a directory for digests of single modules, made where it can be."""
    found = hashlib.sha256()
    for name in sorted(_dependencies(module)):
        found.update(f"{name} {_of_module(name, kept)}\n".encode())
    return found.hexdigest()


def of_function(function: Any) -> str:
    """Tells functions of one name in a module apart, whose digests are the same."""
    parts = [part for part in _parts(function.__code__) if part != repr(function.__doc__)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


@functools.cache
def _of_module(name: str, kept: Path) -> str:
    text = _source(name)
    place = kept / hashlib.sha256(f"{sys.version}\n{text}".encode()).hexdigest()
    with contextlib.suppress(OSError):
        if len(known := place.read_text()) == 64:  # or another process is writing it
            return known
    code = compile(text, "", "exec", dont_inherit=True, optimize=2)  # optimize=2: without docstrings
    made = hashlib.sha256("\n".join(_parts(code)).encode()).hexdigest()
    with contextlib.suppress(OSError):
        kept.mkdir(parents=True, exist_ok=True)
        place.write_text(made)
    return made


def _parts(code: CodeType) -> Iterator[str]:
    """All that decides what `code` does, which line numbers don't."""
    yield f"{code.co_name} {code.co_flags} {code.co_argcount} {code.co_posonlyargcount} {code.co_kwonlyargcount}"
    yield f"{code.co_names} {code.co_varnames} {code.co_freevars} {code.co_cellvars} {code.co_code.hex()}"
    yield getattr(code, "co_exceptiontable", b"").hex()  # from Python 3.11 on
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _parts(constant)
        else:
            yield repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)


def _dependencies(module: str) -> set[str]:
    """`module` and the modules of ours that it imports, directly or not, when it is imported itself."""
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
    """The modules of ours that the text of `module` imports; all imports are absolute."""
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
    """The source of one of our modules, None for another's."""
    if module.partition(".")[0] not in _PACKAGES:
        return None
    path = Path(__file__).parents[2].joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


@functools.cache
def _source(module: str) -> str:
    return (_file(module) or Path(inspect.getfile(sys.modules[module]))).read_text(encoding="utf-8")
