"""Folders of killed processes are removed by the next one, those of living ones are not."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from switchml.runtime.folders import TemporaryFolder

MAKE = """
import time
from switchml.runtime.folders import TemporaryFolder
folder = TemporaryFolder("test")
print(folder.name, flush=True)
time.sleep(100)
"""


def test_what_a_killed_process_left_goes(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = [sys.executable, "-c", MAKE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        left = Path(process.stdout.readline().strip())
        (left / "file").touch()
        os.utime(left, (0, 0))
        with TemporaryFolder("other"):
            assert left.exists()
        process.send_signal(signal.SIGKILL)
        process.wait()
    with TemporaryFolder("other") as fresh:
        assert not left.exists() and Path(fresh).exists()
    assert list(tmp_path.iterdir()) == []


def test_what_others_made_or_make_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    results, starting = tmp_path / "switchml-results", tmp_path / "switchml-tunnel-abcdefgh.tmp"
    for folder in (results, starting):
        folder.mkdir()
    os.utime(results, (0, 0))  # no temporary folder by its name; the other one is too young to be judged
    with TemporaryFolder("tunnel"):
        assert results.exists() and starting.exists()
    os.utime(starting, (0, 0))
    with TemporaryFolder("tunnel"):
        assert results.exists() and not starting.exists()
