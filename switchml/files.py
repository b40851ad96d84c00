"""Reading untrusted files within limits: on their size, on the size of unpacked data, and on their nesting. Any other
problem with a file becomes the caller's own error, with the file's name in it.

Compressed files: deflate reaches a ratio of at most 1,030, and real traces 10 to 30. So a file that unpacks to more
than `UNPACKED_RATIO` times its size is refused, unless it is small.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import stat
import struct
import sys
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from switchml.errors import ConfigError, SwitchMLError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LARGEST_BYTES = 16 << 20
"""Maximum size of a file that is read as a whole; as JSON it may need 25 times as much memory."""
LARGEST_TOML_BYTES = 1 << 20
UNPACKED_BYTES = 8 << 20
"""Size to which any compressed file may unpack."""
UNPACKED_RATIO = 200
_LARGEST_MEMBERS = 1000
_MAX_DOTS = 100
"""Maximum number of dots in a key of TOML: tomllib's time grows with their square."""
_DAMAGE = (
    ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, RecursionError, TypeError, ValueError,
    struct.error, zlib.error,
)  # fmt: skip
"""Exceptions of code that reads a file whose contents are not as expected. Excludes OSError: only the caller knows
whether that concerns this file."""


_NO_ZIP = (zipfile.BadZipFile, zipfile.LargeZipFile, RuntimeError)
"""zipfile raises RuntimeError for encrypted members, and its subclass NotImplementedError for unknown compression."""


@contextlib.contextmanager
def reading(path: Path | str, error: type[SwitchMLError]) -> Iterator[None]:
    """Convert any error in the block caused by the contents of `path` to an `error` that names the file."""
    try:
        yield
    except SwitchMLError:
        raise
    except RecursionError as cause:
        raise error(f"{path} is nested too deeply") from cause
    except MemoryError as cause:
        raise error(f"{path} needs more memory than there is") from cause
    except OSError as cause:
        raise error(f"can't read {path}: {cause.strerror or cause}") from cause
    except _DAMAGE as cause:
        raise error(f"{path} is damaged, or not as expected: {type(cause).__name__}: {str(cause)[:500]}") from cause


def unpacked_limit(packed_bytes: int, least: int = UNPACKED_BYTES) -> int:
    """Maximum unpacked size of this many compressed bytes."""
    return max(least, UNPACKED_RATIO * packed_bytes)


def too_large(path: Path | str, limit: int, what: str = "has") -> str:
    """Sentence for a file that exceeds `limit`."""
    return f"{path} {what} more than {limit:,} bytes, the limit"


def check_has_end(path: Path | str, error: type[SwitchMLError] = ConfigError, *, pipes: bool = True) -> None:
    """Raise `error` if `path` is a device, such as /dev/zero, or a socket. `pipes`: whether a pipe may be read."""
    try:
        mode = os.stat(path).st_mode
    except OSError as cause:
        raise error(f"can't read {path}: {cause.strerror}") from None
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or (pipes and stat.S_ISFIFO(mode))):
        raise error(f"can't read {path}: expected a regular file, which has an end")


def read_bytes(path: Path | str, error: type[SwitchMLError] = ConfigError, *, limit: int = LARGEST_BYTES) -> bytes:
    """All of a file of at most `limit` bytes. Raises `error` if it is longer or can't be read."""
    check_has_end(path, error)
    try:
        with open(path, "rb") as file:
            data = file.read(limit + 1)
    except OSError as cause:
        raise error(f"can't read {path}: {cause.strerror}") from None
    if len(data) > limit:
        raise error(too_large(path, limit))
    return data


def read_text(path: Path | str, error: type[SwitchMLError] = ConfigError, *, limit: int = LARGEST_BYTES) -> str:
    """Like `read_bytes`, decoded, without a byte-order mark; also raises `error` if it is not UTF-8. Line endings
    become line feeds."""
    data = read_bytes(path, error, limit=limit)
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as cause:
        raise error(f"can't read {path}: it is not UTF-8 ({cause})") from None


def read_json(path: Path | str, error: type[SwitchMLError] = ConfigError, *, limit: int = LARGEST_BYTES) -> Any:
    """The value in a JSON file. Raises `error`."""
    text = read_text(path, error, limit=limit)
    try:
        return json.loads(text)
    except RecursionError:
        raise error(f"{path} is nested too deeply") from None
    except ValueError as cause:
        raise error(f"{path} is not JSON: {cause}") from None


def read_toml(path: Path | str) -> dict[str, Any]:
    """The contents of a TOML file. Raises ConfigError with the file and the cause."""
    text = read_text(path, limit=LARGEST_TOML_BYTES)
    if any(part.count(".") > _MAX_DOTS for part in re.split(r"[=,{}\[\]\n]", text)):
        raise ConfigError(f"{path}: a key or text has more than {_MAX_DOTS} dots, the limit")
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply") from None
    except ValueError as cause:
        raise ConfigError(f"{path} is not TOML: {cause}") from None
    values: list[Any] = [table]
    while values:
        value = values.pop()
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise ConfigError(f"{path} is not TOML: the integer {str(value)[:40]} exceeds 64 bits")
        values += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return table


def read_arrays(path: Path | str, error: type[SwitchMLError]) -> dict[str, np.ndarray]:
    """Name → array of an .npz file. Raises `error`, before any array is unpacked, if it is of another format, unpacks
    to too much, or an array's length does not match its header."""
    check_has_end(path, error, pipes=False)
    with reading(path, error):
        try:
            with zipfile.ZipFile(path) as archive:
                members = archive.infolist()
                _check_members(path, members, error)
                return {member.filename.removesuffix(".npy"): _array(archive, member) for member in members}
        except _NO_ZIP as cause:
            raise error(f"{path} is a broken .npz file: {cause}") from None


def _check_members(path: Path | str, members: list[zipfile.ZipInfo], error: type[SwitchMLError]) -> None:
    limit = unpacked_limit(Path(path).stat().st_size)
    if sum(member.file_size for member in members) > limit:
        raise error(too_large(path, limit, "unpacks to"))
    if len(members) > _LARGEST_MEMBERS:
        raise error(f"{path} has {len(members):,} arrays; the limit is {_LARGEST_MEMBERS:,}")
    # lzma files can request any amount of memory.
    if any(member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for member in members):
        raise error(f"{path} is compressed otherwise than by NumPy")


def array_names(path: Path | str) -> list[str]:
    """Names of the arrays of an .npz file; empty if it is of another format, or can't be read."""
    try:
        with zipfile.ZipFile(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    except (OSError, *_DAMAGE, *_NO_ZIP):
        return []


def array_header(file: IO[bytes], size_bytes: int) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, Fortran order and dtype of an array in NumPy's format (.npy, version 1.0 or 2.0) with a total of
    `size_bytes`; `file` is then positioned at its data. Raises ValueError if it is of another format, or its length
    does not match its header."""
    try:
        shape, is_fortran, dtype = _HEADERS[np.lib.format.read_magic(file)](file)
    except (*_DAMAGE, SyntaxError, tokenize.TokenError) as error:
        raise ValueError(f"not in NumPy's format, version 1.0 or 2.0 ({error})") from None
    expected = file.tell() + math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or size_bytes != expected:
        raise ValueError(f"not as long as its header says: {size_bytes} bytes, expected {expected}")
    return shape, is_fortran, dtype


_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as file:
        try:
            array_header(file, member.file_size)
        except ValueError as error:
            raise ValueError(f"the array {member.filename} is {error}") from None
    with archive.open(member) as file:
        return np.asarray(np.lib.format.read_array(file, allow_pickle=False))
