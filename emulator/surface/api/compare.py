"""Comparison of results: `--json` outputs of any command, on one page."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from emulator.surface.api.page import curves
from emulator.surface.report.page import breakdown, memory_chart, render
from switchml.errors import ConfigError
from switchml.files import read_json
from switchml.pages import page, panels
from switchml.units import bytes_text, memory_text, time_text

MAX_FIGURES = 400
"""Maximum number of rows in the table of figures."""
_SKIPPED = ("assumptions", "wall_s", "events")


def write_page(files: Sequence[Path], out: Path) -> None:
    """Write the page `out` that compares JSON files of results. Raises ConfigError for an invalid file, or if the
    results have nothing in common."""
    names = _short(files)
    results = [_result(file) for file in files]
    content = {
        "title": " beside ".join(names),
        "names": names,
        **_parts(dict(zip(names, results, strict=True))),
        "plots": _curves(dict(zip(names, results, strict=True))),
        "figures": _figures(results),
        "notes": _notes(dict(zip(names, results, strict=True))),
    }
    if not content["figures"] and not content["plots"]:
        raise ConfigError(f"{files[0]} and {files[-1]} have no figure in common: are they results of the same command?")
    page.write(out, render("compare.html", content))


def _short(files: Sequence[Path]) -> list[str]:
    """Short names of the files, longer where they would be ambiguous."""
    names = [file.stem for file in files]
    if len(set(names)) < len(names):
        names = [str(file) for file in files]
    return [f"{name} ({place})" if names.count(name) > 1 else name for place, name in enumerate(names, 1)]


def _result(file: Path) -> dict[str, Any]:
    value = read_json(file)
    if not isinstance(value, dict):
        raise ConfigError(f"{file}: expected one JSON object, as commands print it with --json")
    return value


def _parts(results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Breakdown of time and memory of each result, if every result has it."""
    times = {name: _numbers(result.get("parts", result.get("parts_s"))) for name, result in results.items()}
    sizes = {name: _numbers(result.get("memory")) for name, result in results.items()}
    return {
        "breakdown": breakdown(times) if all(times.values()) else None,
        "memory": memory_chart(sizes) if all(sizes.values()) else None,
    }


def _numbers(table: Any) -> dict[str, float]:
    if not isinstance(table, Mapping):
        return {}
    return {name.replace("_", " "): float(value) for name, value in table.items() if _is_number(value) and value >= 0}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _curves(results: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Curves of sweeps: one for each result and combination."""
    rows: list[dict[str, Any]] = []
    axes: list[str] = []
    for name, result in results.items():
        own = result.get("rows")
        if not isinstance(own, list) or not all(isinstance(row, dict) for row in own):
            return []
        for row in own:
            before = list(row)[: list(row).index("model")] if "model" in row else []
            axes = axes or before
            rows.append({**row, "result": name})
    usable = [row for row in rows if "iteration_s" in row and all(axis in row for axis in axes)]
    return [panels.chart(each) for each in curves(usable, [*axes, "result"])] if axes and usable else []


def _figures(results: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Rows of figures common to all results, with the ratio to the first result."""
    flat = [dict(_flat(result)) for result in results]
    common = [name for name in flat[0] if all(name in one for one in flat)]
    rows = []
    for name in common[:MAX_FIGURES]:
        values = [one[name] for one in flat]
        cells = [_text(name, value) for value in values]
        first = values[0]
        for value in values[1:]:
            is_ratio = _is_number(first) and _is_number(value) and first
            cells.append(f"{value / first:.3g}" if is_ratio else ("" if value == first else "≠"))
        rows.append([name, *cells])
    return rows


def _text(name: str, value: Any) -> str:
    """Format a cell of the table: times and bytes are recognized by their names, and as parts of an iteration and of a
    job's memory."""
    if not _is_number(value):
        return str(value)
    if name == "memory_bytes" or name.startswith("memory."):
        return memory_text(value)
    if name.endswith("_bytes"):
        return bytes_text(value)
    if (name.endswith("_s") and not name.endswith("_per_s")) or name.startswith(("parts.", "parts_s.")):
        return time_text(value)
    return panels.text(value)


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield names and values of numbers and short texts."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key not in _SKIPPED:
                yield from _flat(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and len(value) <= 16 and all(not isinstance(item, str) for item in value):
        for place, item in enumerate(value):
            yield from _flat(item, f"{name}[{place}]")
    elif _is_number(value) or (isinstance(value, str) and len(value) < 60):
        yield name, value


def _notes(results: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Assumptions of each result that are not common to all."""
    lists = {
        name: [line if isinstance(line, str) else json.dumps(line) for line in result.get("assumptions") or []]
        for name, result in results.items()
    }
    shared = set.intersection(*(set(lines) for lines in lists.values()))
    return {name: own for name, lines in lists.items() if (own := [line for line in lines if line not in shared])}
