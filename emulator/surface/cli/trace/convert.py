"""`switchml trace convert`: conversion of a trace to another format."""

from pathlib import Path

import click

from emulator.surface.cli.options import ANY_PATH, OUTPUT_FOLDER, json_option, output, trace_options
from switchml import tables
from switchml.errors import ConfigError
from switchml.terminal import progress


@click.command()
@click.argument("path", type=ANY_PATH)
@click.option("--to", "target", type=click.Choice(["switchml", "chakra", "chrome"]), required=True, help="Format.")
@click.option("--out", type=OUTPUT_FOLDER, required=True, help="Directory to write to.")
@trace_options
@json_option
def convert(path: Path, target: str, out: Path, rank: int | None, salvage: bool, as_json: bool) -> None:
    """Write a trace as switchml's own files (one per rank, fast to load), Chakra execution traces (one per rank), or
    one timeline of all ranks for Perfetto (chrome)."""
    from emulator.traces.readers.read import read

    traces = read(path, rank=rank, salvage=salvage)
    try:
        out.mkdir(parents=True, exist_ok=True)
        with progress("writing"):
            sizes = {str(file): file.stat().st_size for file in _write(traces, target, out)}
    except OSError as error:
        raise ConfigError(f"can't write to {out}: {error.strerror}") from None
    output(
        as_json,
        lambda: {"format": target, "files": [{"path": file, "bytes": size} for file, size in sizes.items()]},
        lambda: show(sizes),
    )


def show(sizes: dict[str, int]) -> None:
    """Print files and their sizes."""
    table = tables.Table([tables.text("file"), tables.number("size", "bytes")])
    for file, size in sizes.items():
        table.add(file, f"{size:,}")
    tables.show(table)


def _write(traces: list, target: str, out: Path) -> list[Path]:
    from emulator.traces.readers import native
    from emulator.traces.writers import chakra, chrome

    if target == "chakra":
        return chakra.write(traces, out)
    if target == "chrome":
        chrome.write(traces, out / "timeline.json.gz")
        return [out / "timeline.json.gz"]
    files = [out / f"rank-{trace.rank}{native.SUFFIX}" for trace in traces]
    for trace, file in zip(traces, files, strict=True):
        native.write(trace, file)
    return files
