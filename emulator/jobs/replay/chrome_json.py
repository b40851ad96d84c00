"""Writes files in Chrome's JSON trace format, which Perfetto reads: one event per line, streamed."""

import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from switchml.output_files import whole_file


def write_events(path: Path, head: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> None:
    """Write `path`, compressed where it ends in .gz: the entries of `head`, which is not empty, then the events."""
    with (
        whole_file(path) as part,
        gzip.open(part, "wt", compresslevel=4) if path.suffix == ".gz" else part.open("w") as file,
    ):
        file.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
        for number, event in enumerate(events):
            file.write((",\n" if number else "") + json.dumps(event, separators=(",", ":")))
        file.write("\n]}\n")
