"""Data files that users copy and change: TOML parsed into frozen dataclasses, built-in files by name and users' files
by path. Unused keys are errors.

Alternatives that were tried: msgspec silently accepts unknown keys of dataclasses, and neither msgspec nor cattrs names
the wrong value and the expected one. "job.toml, job, gpus: expected a whole number, not 'eight'" is "Expected `int`,
got `str` - at `$.job.gpus`" there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import math
import os
import re
import reprlib
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from switchml import units
from switchml.errors import ConfigError
from switchml.files import read_toml

T = TypeVar("T")


_tried: dict[Path, dict[str, Any]] = {}


def load(path: Path) -> dict[str, Any]:
    """Read a TOML file. Raises ConfigError, which names the file and the problem."""
    table = read_toml(path)
    return merge(table, _tried[path]) if path in _tried else table


@contextlib.contextmanager
def trying(changes: Mapping[Path, dict[str, Any]]) -> Iterator[None]:
    """Within the context, `changes` override the tables of their files, for fits. Applies to the whole process; the
    caller must rebuild objects that were built from the files before."""
    before = dict(_tried)
    _tried.update(changes)
    try:
        yield
    finally:
        _tried.clear()
        _tried.update(before)


def find(what: str, name: str, folder: Path) -> Path:
    """Return the file of the built-in `name` in `folder`, or the user's file if `name` is a path."""
    if name.endswith(".toml") or "/" in name:
        path = Path(name)
        if not path.is_file():
            raise ConfigError(f"no {what} file {name}")
        return path
    path = folder / f"{name}.toml"
    if not path.is_file():
        raise ConfigError(unknown(what, name, names(folder)) + "; or pass a .toml path")
    return path


class Cached(Generic[T]):
    """Caches the result of `load`: once for each built-in; a user's file is loaded again if it has changed or been
    replaced."""

    def __init__(self, load: Callable[[str], T]) -> None:
        functools.update_wrapper(self, load)
        self._loaded = cache(lambda name, stamp: load(name))
        self.cache_clear = self._loaded.cache_clear

    def __call__(self, name: str) -> T:
        stamp = None
        if "." in name or "/" in name:
            with contextlib.suppress(OSError):  # `load` reports the error
                file = os.stat(name)
                stamp = file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns
        return self._loaded(name, stamp)


def names(folder: Path) -> list[str]:
    """Names of the built-ins in `folder`, sorted."""
    return sorted(path.stem for path in folder.glob("*.toml"))


def unknown(what: str, name: str, known: typing.Iterable[str]) -> str:
    """Error text for a name that is not among `known`, with the closest matches."""
    known = list(known)
    near = difflib.get_close_matches(name, known, 3, 0.5)
    return f"unknown {what} {name!r}; " + (
        f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
    )


def check_name(what: str, name: str, known: typing.Collection[str]) -> None:
    """Raises ConfigError unless `name` is among `known`."""
    if name not in known:
        raise ConfigError(unknown(what, name, known))


@cache
def _fields(cls: type) -> dict[str, tuple[Any, bool]]:
    hints = typing.get_type_hints(cls)
    required = {
        field.name: field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        for field in dataclasses.fields(cls)
        if field.init
    }
    return {name: (hints[name], needed) for name, needed in required.items()}


def build(cls: type[T], table: Mapping[str, Any], where: str = "") -> T:
    """Build a dataclass from a table of a file. Nested dataclasses take nested tables; whole numbers are accepted as
    floats. Raises ConfigError for unknown or missing keys and for values of the wrong type, naming `where` and the key.
    """
    if not isinstance(table, Mapping):
        raise ConfigError(f"{_at(where)}expected a table, not {_shown(table)}")
    fields = _fields(cls)  # type: ignore[arg-type]  # classes have hashes
    values = {}
    for key, value in table.items():
        if key not in fields:
            raise ConfigError(_at(where) + unknown("key", key, fields))
        values[key] = _value(fields[key][0], value, f"{where}, {key}" if where else key)
    missing = [name for name, (_, needed) in fields.items() if needed and name not in values]
    if missing:
        raise ConfigError(f"{where or 'the file'} lacks {', '.join(missing)}")
    try:
        return cls(**values)
    except ConfigError as error:
        raise ConfigError(f"{_at(where)}{error}") from None


def build_all(cls: type[T], path: Path) -> dict[str, T]:
    """Build a dataclass from each table of a TOML file, by the table's name."""
    return {name: build(cls, table, f"{path.name} [{name}]") for name, table in load(path).items()}


def _at(where: str) -> str:
    return f"{where}: " if where else ""


def _value(hint: Any, value: Any, where: str) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next(argument for argument in typing.get_args(hint) if argument is not type(None))
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return build(hint, value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise ConfigError(f"{where}: expected a list, not {_shown(value)}")
        return tuple(_value(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where}: expected a table, not {_shown(value)}")
        if arguments[0] is int and not all(str(key).isdecimal() for key in value):  # TOML's keys are strings
            raise ConfigError(f"{where}: expected a table whose keys are numbers, as in 3 = 0.001")
        return {arguments[0](key): _value(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if hint in (int, float) and isinstance(value, str):
        value = _number(hint, value, where)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is float and isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where}: expected a finite number, not {value}")
    if hint is Any:
        return value
    if isinstance(hint, type) and (not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool)):
        raise ConfigError(f"{where}: expected {_TYPES.get(hint, hint.__name__)}, not {_shown(value)}")
    return value


def _number(hint: type, text: str, where: str) -> int | float:
    """Parse a number written with its unit, in the unit that its key's name implies: rate_bps = "10gbit"."""
    key = re.split(r"[ ,.]", re.sub(r"(\[\d+\])+$|(\.\d+)+$", "", where))[-1]
    try:
        number = units.parse_named(key, text)
    except ConfigError as error:
        kind = units.of_name(key)[0]
        or_text = f", or a {kind.name} such as {kind.example}" if kind.base else ""
        raise ConfigError(f"{where}: expected {_TYPES[hint]}, not {_shown(text)}{or_text}") from error
    if hint is int and not number.is_integer():
        raise ConfigError(f"{where}: expected a whole number, not {_shown(text)}")
    return hint(number)


def _shown(value: Any) -> str:
    """`value` as text for a message, truncated if it is long or deep."""
    return _SHORT.repr(value)


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 100
_TYPES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with values overridden by those of `over`, table by table."""
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else value
    return merged
