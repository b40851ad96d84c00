"""Files that a rank writes to the folder of a capture:

    rank-N.json.gz    torch's profile (Kineto), as torch writes it
    rank-N.et.json    torch's execution trace of one iteration
    rank-N.sizes.json sizes of collectives and gradients (sizes.py)
    rank-N.wire.npz   for each of its agents: calls_K (recording.CALL) and packets_K (packet_log.PACKET)
    rank-N.about.json description of the rank and its capture

Each file is written atomically (switchml/output_files.py). The last one is written last: if it exists, all do.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from switchml.errors import ConfigError
from switchml.output_files import whole_file

if TYPE_CHECKING:
    from host_agent.profile.capture import Capture

ABOUT = "rank-{}.about.json"
VERSION = 1
"""Version of the format; a reader refuses later ones."""
_DESCRIBED = ("job", "rank", "ranks", "transport", "wire")
"""Fields of an agent's log in the description."""
_LEVEL = 3
"""gzip level: on traces three times as fast as the default, with a sixth more bytes."""


def write(capture: Capture, folder: Path, execution_trace: Path | None, about: dict[str, Any]) -> None:
    """Write the results of `capture`. Raises ConfigError if a file can't be written."""
    rank = capture.rank
    plain = folder / f".rank-{rank}.{os.getpid()}.json"
    try:
        capture.profiler.export_chrome_trace(str(plain))
        if not plain.exists():  # torch has printed to stderr that it failed, but not why
            free = shutil.disk_usage(folder).free
            raise ConfigError(f"{folder}: torch could not write its trace there; {free:,} bytes are free on that disk")
        with (
            whole_file(folder / f"rank-{rank}.json.gz") as path,
            plain.open("rb") as source,
            gzip.open(path, "wb", compresslevel=_LEVEL) as packed,
        ):
            shutil.copyfileobj(source, packed, 1 << 20)
    finally:
        for path in (plain, plain.with_name(f"{plain.name}.tmp")):  # the latter is torch's temporary file
            path.unlink(missing_ok=True)
    if execution_trace is not None and execution_trace.exists():
        os.replace(execution_trace, folder / f"rank-{rank}.et.json")
    with whole_file(folder / f"rank-{rank}.sizes.json") as path:
        path.write_text(json.dumps(capture.sizes.as_json()))
    logs = capture.recording.logs
    if logs:
        arrays: dict[str, Any] = {f"calls_{k}": each.calls_array() for k, each in enumerate(logs)}
        arrays |= {f"packets_{k}": each.packets for k, each in enumerate(logs)}
        with whole_file(folder / f"rank-{rank}.wire.npz") as path, path.open("wb") as file:
            np.savez_compressed(file, **arrays)
    agents = [
        {name: getattr(each, name) for name in _DESCRIBED}
        | {"tag": each.job_tag, "calls": len(each.calls), "packets": len(each.packets), "packets_lost": each.lost}
        | {"before": each.before, "after": each.after}
        for each in logs
    ]
    with whole_file(folder / ABOUT.format(rank)) as path:
        path.write_text(json.dumps({"format": "switchml", "version": VERSION} | about | {"agents": agents}, indent=1))
