"""Runs world_cases.py in a fresh process: `world.call` forks, and gRPC, Arrow and others whose threads start again
after a fork can't have them while children are bound for other namespaces. pytest's process may have imported any of
them.
"""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.root
CASES = Path(__file__).with_name("world_cases.py")


def test_worlds():
    root = CASES.parents[3]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(CASES)],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout and "skipped" not in done.stdout
