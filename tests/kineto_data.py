"""Where the tests of traces find real ones, and a small writer of Kineto traces for cases that no real one shows."""

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def published(name: str) -> Path:
    """A trace of HolisticTraceAnalysis's (tests/data, MIT); skips where it is not beside the checkout."""
    places = [Path(os.environ["SWITCHML_DATA"])] if "SWITCHML_DATA" in os.environ else [ROOT.parent / "shared" / "data"]
    git = subprocess.run(
        ["git", "rev-parse", "--path-format=absolute", "--git-common-dir"], cwd=ROOT, capture_output=True, text=True
    )
    if git.returncode == 0:  # of a worktree: beside the main checkout
        places.append(Path(git.stdout.strip()).parent.parent / "shared" / "data")
    for place in places:
        if (path := place / "kineto" / name).exists():
            return path
    pytest.skip(f"needs HolisticTraceAnalysis's trace {name} in {places[0] / 'kineto'} (or $SWITCHML_DATA/kineto)")


def span(name, start_us, duration_us, *, tid=1, cat="cpu_op", pid=10, **args):
    """One event. Arguments with other names than Python's: as a dictionary `args`."""
    more = args.pop("args", {})
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": start_us, "dur": duration_us,
            "args": {**args, **more}}  # fmt: skip


def write(path, events, **head):
    """A Kineto trace of these events."""
    head.setdefault("distributedInfo", {"backend": "gloo", "rank": 0, "world_size": 2})
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events, **head}))
    return path
