"""Where compiled kernels are kept."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("package", ["emulator", "switchml"])
def test_every_process_has_the_same_cache(package, tmp_path):
    """Whatever the seed of Python's hashes: else a second start would compile again."""
    code = f"from switchml.jit import _directory; print(_directory({package!r}))"
    found = {
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=Path(__file__).parents[1],
            env={**os.environ, "PYTHONHASHSEED": seed, "SWITCHML_CACHE_DIR": str(tmp_path)},
        ).stdout
        for seed in "012345"
    }  # fmt: skip
    assert len(found) == 1
