"""Measured collectives: nccl-tests tables, and curves fitted to them.

A library changes protocol with size (NCCL: LL, LL128, Simple with smaller and then full chunks), and each protocol has
a latency and a bandwidth. A curve is therefore a few segments, each `latency + bytes / bandwidth`, plus the sizes at
which the protocol changes: eight numbers for three segments, however long the table.
"""

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from switchml.errors import ConfigError
from switchml.files import read_text

SEGMENTS = 3
SMALL_BYTES = 16 * 2**20
"""Sizes below this are dominated by latency and protocol rather than bandwidth."""
_ROW = re.compile(rb"^\s*\d+[\s,]+\d+[\s,]+[a-z]\w*[\s,]", re.MULTILINE)
"""Start of a data row in either format: size, count, type."""
_LOOK_BYTES = 1 << 16


@dataclass(frozen=True)
class Table:
    """A measured table; all arrays (rows,), by increasing size."""

    name: str
    ranks: int
    size_bytes: np.ndarray
    seconds: np.ndarray
    """Out-of-place times, the first time column of nccl-tests."""


def read(path: Path) -> Table:
    """Read a table: either CSV with size in bytes first and the time in ns fourth, or nccl-tests' own output with times
    in µs. The number of ranks is taken from the name (`…_8gpu.txt`) or nccl-tests' list of ranks."""
    lines = read_text(path).splitlines()
    rows, ranks = [], 0
    for line in lines:
        fields = line.replace(",", " ").split()
        if re.match(r"#\s+Rank\s+\d+", line):
            ranks += 1
        if not fields or not fields[0].isdigit():
            continue
        try:
            # nccl-tests: size count type redop root time algbw busbw …; the CSV: size count type time busbw time busbw
            rows.append((float(fields[0]), float(fields[3]) * 1e-9 if "," in line else float(fields[5]) * 1e-6))
        except (IndexError, ValueError):
            raise ConfigError(f"{path}: no nccl-tests row: {line!r}") from None
    if ranks == 0 and (named := re.search(r"(\d+)_?gpu|gpu_?(\d+)|GPU(\d+)", path.name)):
        ranks = int(next(filter(None, named.groups())))
    if len(rows) < 4 or ranks < 2:
        raise ConfigError(
            f"{path}: expected at least 4 rows of an nccl-tests table and the number of ranks (in the name: "
            f"…_8gpu.txt); found {len(rows)} rows, {ranks} ranks"
        )
    table = np.array(sorted(rows))
    if not np.all((table > 0) & np.isfinite(table)):
        raise ConfigError(f"{path}: expected sizes and times above 0 and finite")
    return Table(path.stem, ranks, table[:, 0], table[:, 1])


def read_all(folder: Path) -> list[Table]:
    """Read all tables in a folder, whatever their file extensions, or the single file `folder`."""
    if folder.is_file():
        return [read(folder)]
    paths = sorted(path for path in folder.glob("*") if path.is_file() and _has_rows(path))
    if not paths:
        raise ConfigError(
            f"{folder}: expected a folder with nccl-tests tables; found 0 rows of one in its files: a size in bytes, a "
            "count, a type, then times"
        )
    return [read(path) for path in paths]


def _has_rows(path: Path) -> bool:
    """Return whether the first _LOOK_BYTES of the file contain a table row."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        return _ROW.search(file.read(_LOOK_BYTES)) is not None
    return False


@dataclass(frozen=True)
class Curve:
    """Piecewise linear cost, segments by increasing size, arrays (segments,): segment i applies from `start_bytes[i]`
    on."""

    start_bytes: np.ndarray
    latency_s: np.ndarray
    bytes_per_s: np.ndarray

    def seconds(self, size_bytes: np.ndarray | float) -> np.ndarray:
        """Return the duration for each size, float64; sizes below the first segment use it."""
        latency_s, bytes_per_s = self.at(size_bytes)
        return latency_s + np.asarray(size_bytes, np.float64) / bytes_per_s

    def at(self, size_bytes: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
        """Return latency in seconds and bytes per second for messages of these sizes."""
        which = np.maximum(np.searchsorted(self.start_bytes, size_bytes, side="right") - 1, 0)
        return self.latency_s[which], self.bytes_per_s[which]


def fit(size_bytes: np.ndarray, seconds: np.ndarray, segments: int = SEGMENTS) -> Curve:
    """Return the curve with the least sum of relative errors, weighted evenly over small and large sizes (weights fall
    with the square root of size, since tables are denser on a logarithmic scale towards the end). Optimal over the
    tried break points: all below 24 rows, increasingly few beyond."""
    count = len(size_bytes)
    order = np.argsort(size_bytes)
    size, took = np.asarray(size_bytes, np.float64)[order], np.asarray(seconds, np.float64)[order]
    weight = np.sqrt(size[0] / size)
    later = np.round(np.geomspace(min(24, count), max(count - 3, 2), 30)).astype(int)
    cuts = np.array(sorted({0, count, *range(min(count - 1, 24)), *(int(i) for i in later if i < count - 1)}))
    lines: dict[tuple[int, int], tuple[float, np.ndarray]] = {}
    for i, first in enumerate(cuts):
        for j in range(i + 1, len(cuts)):
            if cuts[j] - first >= 2:
                part = slice(first, cuts[j])
                lines[i, j] = _line(size[part], took[part], weight[part])
    segments = max(1, min(segments, count // 3))
    best = np.full((segments + 1, len(cuts)), np.inf)
    came = np.zeros((segments + 1, len(cuts)), int)
    best[0, 0] = 0.0
    for used in range(1, segments + 1):
        for (i, j), (error, _) in lines.items():
            if best[used - 1, i] + error < best[used, j]:
                best[used, j], came[used, j] = best[used - 1, i] + error, i
    starts, parameters, j = [], [], len(cuts) - 1
    for used in range(segments, 0, -1):
        i = came[used, j]
        starts.append(0.0 if i == 0 else float(np.sqrt(size[cuts[i]] * size[cuts[i] - 1])))
        parameters.append(lines[i, j][1])
        j = i
    latency, per_byte = np.array(parameters[::-1]).T
    return Curve(np.array(starts[::-1]), latency, 1.0 / np.maximum(per_byte, 1e-18))


def _line(size: np.ndarray, took: np.ndarray, weight: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the weighted sum of relative errors and (latency, seconds per byte), both non-negative."""
    scaled = np.stack([weight / took, weight * size / took], axis=1)
    line, *_ = np.linalg.lstsq(scaled, weight, rcond=None)
    if line[1] < 0:
        line = np.array([(weight**2 / took).sum() / (weight**2 / took**2).sum(), 0.0])
    elif line[0] < 0:
        line = np.array([0.0, (weight**2 * size / took).sum() / (weight**2 * size**2 / took**2).sum()])
    return float(np.abs(scaled @ line - weight).sum()), line
