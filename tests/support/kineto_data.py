"""Published traces for tests, and a small writer of Kineto traces for cases that none of them covers."""

import dataclasses
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


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


def same(one, other):
    """Whether two traces are equal, apart from their source."""
    assert one.lanes == other.lanes
    assert one.groups == other.groups
    assert np.array_equal(one.causes, other.causes)
    assert np.array_equal(one.steps, other.steps)
    for field in dataclasses.fields(one.events):
        mine, its = getattr(one.events, field.name), getattr(other.events, field.name)
        assert mine.dtype == its.dtype, field.name
        if field.name == "name":
            mine, its = ([trace.names[i] for i in trace.events.name] for trace in (one, other))
        assert np.array_equal(mine, its), field.name
    for name in ("rank", "world_size", "host", "epoch_s", "backend", "gradient_names", "about", "format"):
        assert getattr(one, name) == getattr(other, name), name
