"""Measured collectives: nccl-tests tables, and curves fitted to them.

A library changes protocol with size (NCCL: LL, LL128, Simple with smaller and then full chunks), and each protocol has
a latency and a bandwidth. A curve is therefore a few segments, each `latency + bytes / bandwidth`, plus the sizes at
which the protocol changes: eight numbers for three segments, however long the table.
"""

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from emulator.cluster.topology import GroupLayout
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
    """A measured table of all-reduces; all arrays (rows,), by increasing size."""

    name: str
    ranks: int
    nodes: int
    """Number of hosts in the list of ranks; 1 where the table has none."""
    size_bytes: np.ndarray
    seconds: np.ndarray
    """Out-of-place times, the first time column of nccl-tests."""

    def layout(self, per_node: int) -> GroupLayout:
        """Return the placement of the table's ranks; those of a table without hosts fill nodes of `per_node`."""
        nodes = self.nodes if self.nodes > 1 else -(-self.ranks // per_node)
        return GroupLayout(self.ranks, nodes, -(-self.ranks // nodes), nodes)


_RANK = re.compile(r"#\s+Rank\s+(\d+)\b(?:.*?\bon\s+(\S+))?")
_PREFIX = re.compile(r"^\s*(\[\d+,\d+\]\s*<std\w+>:|\d+:(?=\s))")
"""What mpirun --tag-output and srun --label put before each line."""
_TIMES = ((5, 1e-6), (4, 1e-6), (4, 1e-3))
"""Column and unit of the out-of-place time: nccl-tests (size count type redop root time algbw busbw), before 2.11
(without root), before 2.8 (milliseconds)."""


def read(path: Path) -> Table:
    """Read a table: either CSV with size in bytes first and the time in ns fourth, or nccl-tests' own output, whose
    time is recognized by the bandwidth beside it. The number of ranks is taken from nccl-tests' list of ranks or from
    the name (`…_8gpu.txt`, `…_2x8gpu.txt`). Raises ConfigError for other collectives than all-reduces."""
    rows: list[tuple[str, list[str]]] = []
    hosts: dict[int, str | None] = {}
    lines = [_PREFIX.sub("", line) for line in read_text(path).splitlines()]
    for line in lines:
        if listed := _RANK.match(line.lstrip()):
            hosts.setdefault(int(listed[1]), listed[2])
        fields = line.replace(",", " ").split()
        if fields and fields[0].isdigit() and fields[0] != "0":
            rows.append((line, fields))
    ranks, nodes = len(hosts), len(set(hosts.values())) or 1
    if not ranks and (named := re.search(r"(?:(\d+)x)?(\d+)_?gpu|gpu_?(\d+)|GPU(\d+)", path.name)):
        nodes = int(named[1] or 1)
        ranks = nodes * int(named[2] or named[3] or named[4])
    if len(rows) < 4 or ranks < 2:
        raise ConfigError(
            f"{path}: expected at least 4 rows of an nccl-tests table and the number of ranks (in the name: "
            f"…_8gpu.txt, …_2x8gpu.txt); found {len(rows)} rows, {ranks} ranks"
        )
    if "," in rows[0][0]:
        size, nanoseconds = _columns(path, rows, (0, 3))
        seconds = nanoseconds * 1e-9
    else:
        size, seconds = _timed(path, rows, ranks)
    if not np.all((size > 0) & np.isfinite(size) & (seconds > 0) & np.isfinite(seconds)):
        raise ConfigError(f"{path}: expected sizes and times above 0 and finite")
    order = np.argsort(size, kind="stable")
    return Table(path.stem, ranks, nodes, size[order], seconds[order])


def _columns(path: Path, rows: list[tuple[str, list[str]]], which: Sequence[int]) -> np.ndarray:
    """Return these columns of the rows, (columns, rows) float64."""
    numbers = []
    for line, fields in rows:
        try:
            numbers.append([float(fields[i]) for i in which])
        except (IndexError, ValueError):
            raise ConfigError(f"{path}: no nccl-tests row: {line!r}") from None
    return np.array(numbers, np.float64).reshape(-1, len(which)).T


def _timed(path: Path, rows: list[tuple[str, list[str]]], ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """Return sizes in bytes and times in seconds of nccl-tests' own rows."""
    unread: ConfigError | None = None
    for column, unit in _TIMES:
        try:
            size, time, algbw, busbw = _columns(path, rows, (0, column, column + 1, column + 2))
        except ConfigError as error:
            unread = unread or error
            continue
        seconds = time * unit
        with np.errstate(divide="ignore", invalid="ignore"):
            if np.all(np.abs(size / seconds / 1e9 - algbw) <= 0.011 + 0.02 * algbw):
                break
    else:
        raise unread or ConfigError(f"{path}: expected nccl-tests' columns; times disagree with the bandwidths")
    large = algbw >= 0.5
    shares = busbw[large] / algbw[large]
    if len(shares) and abs(np.median(shares) - 2 * (ranks - 1) / ranks) > 0.05:
        raise ConfigError(
            f"{path}: expected all-reduces among {ranks} ranks, with a bus bandwidth of {2 * (ranks - 1) / ranks:.3f} "
            f"times the algorithm bandwidth; found {np.median(shares):.3f} times: another collective, or another "
            "number of ranks"
        )
    return size, seconds


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
    size, duration_s = np.asarray(size_bytes, np.float64)[order], np.asarray(seconds, np.float64)[order]
    weight = np.sqrt(size[0] / size)
    later = np.round(np.geomspace(min(24, count), max(count - 3, 2), 30)).astype(int)
    cuts = np.array(sorted({0, count, *range(min(count - 1, 24)), *(int(i) for i in later if i < count - 1)}))
    lines: dict[tuple[int, int], tuple[float, np.ndarray]] = {}
    for i, first in enumerate(cuts):
        for j in range(i + 1, len(cuts)):
            if cuts[j] - first >= 2:
                part = slice(first, cuts[j])
                lines[i, j] = _line(size[part], duration_s[part], weight[part])
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


def _line(size: np.ndarray, duration_s: np.ndarray, weight: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the weighted sum of relative errors and (latency, seconds per byte), both non-negative."""
    scaled = np.stack([weight / duration_s, weight * size / duration_s], axis=1)
    line, *_ = np.linalg.lstsq(scaled, weight, rcond=None)
    if line[1] < 0:
        line = np.array([(weight**2 / duration_s).sum() / (weight**2 / duration_s**2).sum(), 0.0])
    elif line[0] < 0:
        line = np.array([0.0, (weight**2 * size / duration_s).sum() / (weight**2 * size**2 / duration_s**2).sum()])
    return float(np.abs(scaled @ line - weight).sum()), line
