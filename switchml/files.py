"""Files that a stranger may have written, read within limits: on their size, on what they unpack to, on how deep they
nest. Whatever else is wrong with one becomes the caller's own error, with the file's name in it.

Compressed files: deflate makes at most 1,030 bytes of one, and real traces make 10 to 30. So what unpacks to more than
`UNPACKED_RATIO` times its size is refused, unless it is small.
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
"""Of a file that is read as a whole; as JSON it may need 25 times as much memory."""
LARGEST_TOML_BYTES = 1 << 20
UNPACKED_BYTES = 8 << 20
"""What any compressed file may unpack to."""
UNPACKED_RATIO = 200
_LARGEST_MEMBERS = 1000
_MOST_DOTS = 100
"""In a key of TOML: tomllib's time grows with their square."""
_DAMAGE = (
    ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, RecursionError, TypeError, ValueError,
    struct.error, zlib.error,
)  # fmt: skip
"""What code that reads a file raises where something in it is not as it should be. Not OSError: the caller knows
whether that is about this file."""


_NO_ZIP = (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError)


@contextlib.contextmanager
def reading(path: Path | str, error: type[SwitchMLError]) -> Iterator[None]:
    """Whatever goes wrong inside over the content of `path` becomes an `error` that names it."""
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
    """What so many compressed bytes may unpack to."""
    return max(least, UNPACKED_RATIO * packed_bytes)


def too_large(path: Path | str, limit: int, what: str = "has") -> str:
    """A sentence for a file that exceeds `limit`."""
    return f"{path} {what} more than {limit:,} bytes, the limit"


def check_has_end(path: Path | str, error: type[SwitchMLError] = ConfigError, *, pipes: bool = True) -> None:
    """Raise `error` where `path` is a device, such as /dev/zero, or a socket. `pipes`: one may be read."""
    try:
        mode = os.stat(path).st_mode
    except OSError as cause:
        raise error(f"can't read {path}: {cause.strerror}") from None
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or (pipes and stat.S_ISFIFO(mode))):
        raise error(f"can't read {path}: expected a regular file, which has an end")


def read_bytes(path: Path | str, error: type[SwitchMLError] = ConfigError, *, limit: int = LARGEST_BYTES) -> bytes:
    """All of a file of at most `limit` bytes. Raises `error` where it is longer or can't be read."""
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
    """As `read_bytes`, without a byte-order mark; also raises `error` where it is not UTF-8. Line ends become line
    feeds."""
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
    """A TOML file; ConfigError names the file and what is wrong with it."""
    text = read_text(path, limit=LARGEST_TOML_BYTES)
    if any(part.count(".") > _MOST_DOTS for part in re.split(r"[=,{}\[\]\n]", text)):
        raise ConfigError(f"{path}: a key or text has more than {_MOST_DOTS} dots, the limit")
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
            raise ConfigError(f"{path} is not TOML: its whole numbers have 64 bits, and {str(value)[:40]} has more")
        values += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return table


def read_arrays(path: Path | str, error: type[SwitchMLError]) -> dict[str, np.ndarray]:
    """Name → array of an .npz file. Raises `error` where it is none, unpacks to too much, or an array is not as long as
    its header says; before any array is unpacked."""
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
    # With lzma, the file would say how much memory it takes.
    if any(member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for member in members):
        raise error(f"{path} is compressed otherwise than by NumPy")


def array_names(path: Path | str) -> list[str]:
    """Of the arrays of an .npz file; none where it is no such file, or can't be read."""
    try:
        with zipfile.ZipFile(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    except (OSError, *_DAMAGE, *_NO_ZIP):
        return []


def array_header(file: IO[bytes], size_bytes: int) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, Fortran order and dtype of an array in NumPy's format (.npy, version 1.0 or 2.0) that has `size_bytes` in
    all; `file` is then at its data. Raises ValueError where it is none, or not as long as its header says."""
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
