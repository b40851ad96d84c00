"""Output files of commands: whether they can be written is checked before the work starts, and each is written
atomically."""

import contextlib
import importlib.util
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from switchml.errors import ConfigError

_IN_PLACE = (Path("/dev"), Path("/dev/fd"), Path("/proc/self/fd"))
"""Folders of /dev/stdout and the like, whose targets must not be replaced."""

PICTURES = dict.fromkeys((".png", ".svg", ".pdf", ".html"), "vl_convert")
ROWS = {".csv": "", ".parquet": "pyarrow"}
TIMELINES = {".json": "", ".json.gz": ""}
"""Kinds of files: file name extension → module that writes it."""
_EXTRAS = {"vl_convert": "report", "pyarrow": "parquet"}


def check(path: str | Path, kinds: Mapping[str, str]) -> None:
    """Raises ConfigError if no file of `kinds` can be written to `path`: other extension, missing folder, no
    permission, or a module that is not installed."""
    path = Path(path)
    *others, last = kinds
    ending = next((ending for ending in kinds if path.name.endswith(ending) and path.name != ending), None)
    if ending is None:
        endings = f"{', '.join(others)} or {last}" if others else last
        raise ConfigError(f"{path}: expected a name that ends in {endings}")
    target = path.absolute() if path.parent in _IN_PLACE else path.resolve()
    if not target.parent.is_dir():
        raise ConfigError(f"{path}: no such folder: {target.parent}")
    if target.is_dir():
        raise ConfigError(f"{path} is a folder; expected a file")
    if not os.access(target.parent, os.W_OK) or (target.exists() and not os.access(target, os.W_OK)):
        raise ConfigError(f"{path}: no right to write there")
    module = kinds[ending]
    if module and importlib.util.find_spec(module) is None:
        extra = _EXTRAS[module]
        raise ConfigError(f"{path}: {ending} needs {module}; install it with: pip install 'switchml[{extra}]'")


@contextlib.contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """The path of a temporary file next to `path`, to be written in the block; it is renamed to `path` when the block
    ends, and deleted if that fails. It has the same extension. Pipes and devices are written in place.

    Raises ConfigError in place of OSError: missing folder, full disk.
    """
    path = Path(path)
    is_special = path.parent in _IN_PLACE or (path.exists() and not path.is_file())
    target = path if is_special else path.resolve()  # a symbolic link is kept
    part = target if is_special else target.with_name(f".{os.getpid()}.{target.name}")
    if not is_special:
        _remove_left(target)
    try:
        yield part
        if not is_special:
            if target.exists():
                shutil.copymode(target, part)
            os.replace(part, target)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    finally:
        if not is_special:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)


def _remove_left(target: Path) -> None:
    """Remove temporary files of `target` whose processes were killed."""
    with contextlib.suppress(OSError):
        for path in target.parent.iterdir():
            number, _, name = path.name.removeprefix(".").partition(".")
            is_part = path.name.startswith(".") and number.isdecimal() and name == target.name
            if is_part and not Path("/proc", number).exists():
                path.unlink()


def toml_text(table: Mapping[str, Any], name: str = "") -> str:
    """TOML of nested tables of texts, numbers, booleans and lists. `name`: of the table itself, "" for a document's."""
    inner = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    lines = [f"{key} = {_toml_value(value)}" for key, value in table.items() if key not in inner]
    parts = ["\n".join([f"[{name}]"] * bool(name and lines) + lines)] if lines else []
    parts += [toml_text(value, f"{name}.{key}" if name else key) for key, value in inner.items()]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    return repr(value) if isinstance(value, float) else json.dumps(value)
