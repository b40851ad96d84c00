"""`switchml trace convert`: a trace in another format."""

from __future__ import annotations

import json
from pathlib import Path

import click

from switchml.errors import ConfigError


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--to", "target", type=click.Choice(["switchml", "chakra", "chrome"]), required=True, help="Format.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Directory to write to.")
@click.option("--rank", type=click.IntRange(min=0), help="Rank of the trace, for a file without it.")
@click.option("--salvage", is_flag=True, help="Read truncated files as far as they go.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def convert(path: Path, target: str, out: Path, rank: int | None, salvage: bool, as_json: bool) -> None:
    """Write a trace as switchml's own files (one a rank, fast to load), Chakra execution traces (one a rank), or one
    timeline of all ranks for Perfetto (chrome)."""
    from emulator.traces.readers.read import read

    traces = read(path, rank=rank, salvage=salvage)
    try:
        out.mkdir(parents=True, exist_ok=True)
        files = _write(traces, target, out)
    except OSError as error:
        raise ConfigError(f"can't write to {out}: {error.strerror}") from None
    if as_json:
        sizes = {str(file): file.stat().st_size for file in files}
        click.echo(json.dumps({"format": target, "files": [{"path": p, "bytes": b} for p, b in sizes.items()]}))
        return
    for file in files:
        click.echo(f"{file}  {file.stat().st_size:,} bytes")


def _write(traces: list, target: str, out: Path) -> list[Path]:
    if target == "chrome":
        from emulator.traces.writers import chrome as chrome_write

        chrome_write.write(traces, out / "timeline.json.gz")
        return [out / "timeline.json.gz"]
    if target == "chakra":
        from emulator.traces.writers import chakra as chakra_write

        return chakra_write.write(traces, out)
    from emulator.traces.readers import native

    files = [out / f"rank-{trace.rank}{native.SUFFIX}" for trace in traces]
    for trace, file in zip(traces, files, strict=True):
        native.write(trace, file)
    return files
