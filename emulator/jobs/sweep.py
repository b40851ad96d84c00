"""Parameter sweeps: `--sweep gpus=64:8192:2x --sweep allreduce=ring,switchml` emulates every combination. They run on
all cores, or on a Dask cluster; each result is written at once to a journal next to the output, so that an interrupted
sweep resumes when it is started again.

The caller provides a function from options to result values, both flat dictionaries. It must be importable by name in
other processes, and on the cluster's machines.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from switchml import output_files
from switchml.errors import ConfigError, SwitchMLError
from switchml.output_files import whole_file
from switchml.runtime.pool import spread
from switchml.terminal import progress

Value = int | float | str
Point = dict[str, Value]
Row = dict[str, Any]

MAX_POINTS = 100_000


@dataclass(frozen=True)
class Axis:
    """An option and its values."""

    name: str
    values: list[Value]


def parse_axis(text: str) -> Axis:
    """Parse `gpus=64:8192:2x` (from, to, factor), `micro-batch=1:8:1` (from, to, increment) or
    `allreduce=ring,switchml`."""
    name, equals, values_text = text.partition("=")
    name = name.strip()
    if not equals or not name or not values_text.strip():
        raise ConfigError(f"sweep {text!r}: expected NAME=A,B,… or NAME=FROM:TO:STEP, such as gpus=64:8192:2x")
    if ":" in values_text and "," not in values_text:
        return Axis(name, _range(text, values_text))
    values = [_value(part) for part in values_text.split(",")]
    if "" in values:
        raise ConfigError(f"sweep {text!r} has an empty value")
    if len(set(values)) < len(values):
        raise ConfigError(f"sweep {text!r} names a value twice")
    return Axis(name, values)


def _range(text: str, values_text: str) -> list[Value]:
    match = re.fullmatch(r"([^:]+):([^:]+):([^:]+?)(x?)", values_text.strip())
    expected = f"sweep {text!r}: expected FROM:TO:STEP, such as 64:8192:2x or 1:8:1"
    if match is None:
        raise ConfigError(expected)
    try:
        first, last, step = (_number(part) for part in match.groups()[:3])
    except ValueError:
        raise ConfigError(expected) from None
    is_factor = bool(match[4])
    if first > last or (is_factor and (step <= 1 or first <= 0)) or (not is_factor and step <= 0):
        raise ConfigError(f"sweep {text!r} would never end or is empty; expected FROM ≤ TO and a step that grows")
    values: list[Value] = []
    while first <= last * (1 + 1e-12):
        values.append(first)
        if len(values) > MAX_POINTS:
            raise ConfigError(f"sweep {text!r} has more than {MAX_POINTS} values")
        first = first * step if is_factor else first + step
    return values


def _number(text: str) -> int | float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return int(number) if number.is_integer() and "." not in text else number


def _value(text: str) -> Value:
    try:
        return _number(text)
    except ValueError:
        return text.strip()


def points(axes: Sequence[Axis]) -> list[Point]:
    """Return every combination of values, the last axis changing fastest."""
    names = [axis.name for axis in axes]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two sweeps of {name!r}")
    count = math.prod(len(axis.values) for axis in axes)
    if count > MAX_POINTS:
        raise ConfigError(f"this sweep has {count:,} points; at most {MAX_POINTS:,} are allowed")
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*(axis.values for axis in axes))]


def sweep(
    run: Callable[[Point], Row],
    axes: Sequence[Axis],
    *,
    base: Point | None = None,
    out: Path | None = None,
    engine: str | None = None,
    processes: int | None = None,
    show_progress: bool = True,
    on_row: Callable[[Row], None] = lambda row: None,
) -> list[Row]:
    """Call `run` with `base` and each point of `axes`. Return a row for each, in order: the point, then the result of
    `run`, or `error` where it raised a SwitchMLError (a job that does not fit is a result, too).

    `out`: a .csv or .parquet file to write. `engine`: a Dask scheduler, `tcp://HOST:PORT`; default: `processes` of this
    machine, by default one per core. `on_row` is called with each row in order, as soon as it and all before it are
    available.
    """
    if out is not None:
        output_files.check(out, output_files.ROWS)
    combinations = points(axes)
    options = [{**(base or {}), **point} for point in combinations]
    journal = _Journal(out, options)
    todo = [number for number in range(len(options)) if number not in journal.rows]
    processes = min(processes or os.cpu_count() or 1, len(todo))
    reported = 0

    def report() -> None:
        nonlocal reported
        while reported in journal.rows:
            on_row({**combinations[reported], **journal.rows[reported]})
            reported += 1

    bar = progress("sweep", len(options), len(journal.rows)) if show_progress else contextlib.nullcontext()
    with journal, bar as task:
        report()
        if engine is not None:
            finished = _on_dask(run, options, todo, engine)
        elif processes <= 1:
            finished = ((number, _guarded(run, options[number])) for number in todo)
        else:
            finished = _on_cores(run, options, todo, processes)
        try:
            for number, row in finished:
                journal.add(number, row)
                report()
                if task is not None:
                    task.advance()
        except KeyboardInterrupt:
            if journal.path:
                finished_rows = f"{len(journal.rows)} of {len(options)} points are in {journal.path}"
                print(f"sweep: interrupted; {finished_rows}, the same command goes on from there", file=sys.stderr)
            raise
    rows = [{**point, **journal.rows[number]} for number, point in enumerate(combinations)]
    if out is not None:
        write_rows(rows, out)
        journal.remove()
    return rows


def _guarded(run: Callable[[Point], Row], options: Point) -> Row:
    """Return the result of `run`, or a SwitchMLError as a row."""
    try:
        return run(options)
    except SwitchMLError as error:
        return {"error": " ".join(str(error).split())}


def _on_cores(run, options, todo, processes: int) -> Iterator[tuple[int, Row]]:
    work = partial(_guarded, run)
    try:
        for number, row in spread(work, [options[number] for number in todo], processes):
            yield todo[number], row
    except ChildProcessError:
        raise SwitchMLError(
            "a process of the sweep was killed, probably for want of memory; start it again to go on, with fewer "
            "processes at once"
        ) from None


def _on_dask(run, options, todo, address: str) -> Iterator[tuple[int, Row]]:
    if not re.match(r"(tcp|tls|ucx)://.+:\d+$", address):
        raise ConfigError(f"engine {address!r} is not a Dask scheduler; expected tcp://HOST:PORT")
    from distributed import Client, as_completed

    try:
        client = Client(address, timeout=10)
    except (OSError, TimeoutError) as error:
        raise ConfigError(f"no Dask scheduler answers at {address}: {error}") from error
    with client:
        futures = [client.submit(_guarded, run, options[number], pure=False) for number in todo]
        numbers = {future.key: number for future, number in zip(futures, todo, strict=True)}
        for future, row in as_completed(futures, with_results=True):
            yield numbers[future.key], row


class _Journal:
    """Completed rows by point number, stored in a file next to `out` until the sweep is finished."""

    def __init__(self, out: Path | None, options: list[Point]) -> None:
        self.rows: dict[int, Row] = {}
        self.path = out.with_name(out.name + ".journal") if out else None
        self.options = options
        self.file: TextIO | None = None
        if self.path and self.path.exists():
            self._read(self.path)

    def _read(self, path: Path) -> None:
        numbers = {json.dumps(point, sort_keys=True): number for number, point in enumerate(self.options)}
        for line in path.read_text().splitlines():
            try:
                entry = json.loads(line)
                number = numbers.get(json.dumps(entry["options"], sort_keys=True))
                if number is not None:
                    self.rows[number] = entry["row"]
            except (ValueError, KeyError, TypeError):
                continue  # the line that was being written when the sweep was interrupted

    def __enter__(self) -> _Journal:
        if self.path:
            self.file = self.path.open("a")
            self.file.write("\n")  # terminates a truncated line
        return self

    def __exit__(self, *_) -> None:
        if self.file:
            self.file.close()

    def add(self, number: int, row: Row) -> None:
        self.rows[number] = row
        if self.file:
            self.file.write(json.dumps({"options": self.options[number], "row": row}) + "\n")
            self.file.flush()

    def remove(self) -> None:
        """Delete the file, once the output is written."""
        if self.path:
            self.path.unlink(missing_ok=True)


def write_rows(rows: list[Row], out: Path) -> None:
    """Write one line per row, with a column for every key of any row; nested dictionaries as `parts.compute`."""
    flat = [flattened(row) for row in rows]
    columns = list(dict.fromkeys(name for row in flat for name in row))
    with whole_file(out) as part:
        if out.suffix == ".parquet":
            import pyarrow
            import pyarrow.parquet

            table = {name: _column([row.get(name) for row in flat]) for name in columns}
            pyarrow.parquet.write_table(pyarrow.table(table), part)
        else:
            import csv

            with part.open("w", newline="") as file:
                writer = csv.DictWriter(file, columns, restval="")
                writer.writeheader()
                writer.writerows(flat)


def flattened(row: Row, prefix: str = "") -> Row:
    """Flatten nested dictionaries to columns such as `parts.compute`."""
    flat: Row = {}
    for name, value in row.items():
        flat |= flattened(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


def _column(values: list[Any]) -> list[Any]:
    """Convert values to one type, as Parquet requires: if numbers and strings are mixed, all become strings."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float, bool} or len(kinds) <= 1:
        return [float(value) if kinds == {int, float} and value is not None else value for value in values]
    return [None if value is None else str(value) for value in values]
