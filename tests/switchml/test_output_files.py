"""Files of commands are whole or not there: interrupted, on a full disk, through links and pipes."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from switchml import output_files
from switchml.errors import ConfigError
from switchml.output_files import whole_file


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_name_appears_in_the_end(tmp_path):
    path = tmp_path / "report.json"
    path.write_text("old")
    path.chmod(0o600)
    with whole_file(path) as part:
        assert part.parent == path.parent and part.suffix == ".json"
        part.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new" and names(tmp_path) == ["report.json"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_what_fails_leaves_what_was_there(tmp_path, error):
    path = tmp_path / "report.json"
    path.write_text("old")
    with pytest.raises(error), whole_file(path) as part:
        part.write_text("ne")
        raise error
    assert path.read_text() == "old" and names(tmp_path) == ["report.json"]


def test_a_link_stays_one(tmp_path):
    link = tmp_path / "link.html"
    link.symlink_to(tmp_path / "page.html")
    with whole_file(link) as part:
        part.write_text("page")
    assert link.is_symlink() and (tmp_path / "page.html").read_text() == "page"


def test_pipes_and_devices_are_written_in_place(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True) as reader:
        with whole_file(pipe) as part:
            part.write_text("through")
        assert reader.stdout.read() == "through"
    assert names(tmp_path) == ["pipe"]
    script = (
        "from switchml.output_files import whole_file\nwith whole_file('/dev/stdout') as part: part.write_text('out')"
    )
    with (tmp_path / "log").open("w") as log:
        for stdout in (subprocess.PIPE, log):
            done = subprocess.run([sys.executable, "-c", script], stdout=stdout, text=True)
            assert done.returncode == 0 and (done.stdout or (tmp_path / "log").read_text()) == "out"
    assert names(tmp_path) == ["log", "pipe"]


def test_what_a_killed_process_was_writing_goes_with_the_next_file(tmp_path):
    script = f"""
import os
from switchml.output_files import whole_file
with whole_file({str(tmp_path / "report.json")!r}) as part:
    part.write_text("half")
    os.kill(os.getpid(), 9)
"""
    killed = subprocess.run([sys.executable, "-c", script])
    assert killed.returncode == -9 and len(names(tmp_path)) == 1
    living, other = ".1.report.json", ".1234567890.other.json"
    for name in (living, other):
        (tmp_path / name).touch()
    with whole_file(tmp_path / "report.json") as part:
        part.write_text("whole")
    assert names(tmp_path) == [living, other, "report.json"]


def test_no_such_folder_is_one_sentence(tmp_path):
    path = tmp_path / "missing" / "report.json"
    with pytest.raises(ConfigError, match=f"^{path}: No such file or directory$"), whole_file(path) as part:
        part.write_text("x")


@pytest.mark.slow
@pytest.mark.root
def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path):
    """Of every kind of file that commands write."""
    script = f"""
import sys
from pathlib import Path
import numpy as np
from emulator.lab.bench.trace import write
from emulator.traces.optimizer.file import write_toml
from emulator.jobs.sweep import write_rows
from emulator.traces.readers.chakra.file import write_messages
from emulator.traces.readers.chakra import chakra_pb2 as pb
from switchml import plotting
from switchml.pages.charts import Line
from switchml.pages.panels import Curves
from switchml import output_files
from switchml.errors import ConfigError
from switchml.output_files import whole_file

folder, big = Path({str(tmp_path)!r}), "x" * 50_000
rows = [{{"a": i, "b": big}} for i in range(3)]

def plot(path):
    y = np.random.default_rng(0).random(4000).tolist()
    plotting.draw(path, "title", [Curves("title", "x", "y", [Line("line", range(4000), y)])])

def arrays(path):
    with whole_file(path) as part:
        np.savez_compressed(part, x=np.random.default_rng(0).random(9000))

writers = {{
    "a.csv": lambda path: write_rows(rows, path),
    "a.toml": lambda path: write_toml(path, {{"a": big}}, "x"),
    "a.json": lambda path: write(path, 200_000),
    "a.json.gz": lambda path: write(path, 2_000_000),
    "a.et": lambda path: write_messages(path, [pb.GlobalMetadata(version=big)]),
    "a.npz": arrays,
    "a.png": plot,
    "a.html": plot,
}}
for name, writer in writers.items():
    try:
        writer(folder / name)
    except ConfigError as error:
        assert str(error) == f"{{folder / name}}: No space left on device", error
    else:
        raise AssertionError(name)
    assert list(folder.iterdir()) == [], list(folder.iterdir())
"""
    mounted = f'mount -t tmpfs -o size=8k none {tmp_path} && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", mounted, "sh", sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("name", "message"), [
    ("page.gif", r"ends in .png, .svg, .pdf or .html"), (".html", r"ends in"),
    ("none/page.html", "no such folder: .*none"), ("folder.html", "is a folder"),
    ("sealed/page.html", "no right to write there"), ("sealed.html", "no right to write there"),
])  # fmt: skip
def test_what_cannot_be_written_is_known_beforehand(tmp_path, monkeypatch, name, message):
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "sealed").mkdir()
    (tmp_path / "sealed.html").touch()
    monkeypatch.setattr(os, "access", lambda path, mode: not Path(path).name.startswith("sealed"))  # root may do all
    with pytest.raises(ConfigError, match=message):
        output_files.check(tmp_path / name, output_files.PICTURES)


def test_longer_endings_are_known(tmp_path):
    output_files.check(tmp_path / "timeline.json.gz", output_files.TIMELINES)
    output_files.check("/dev/stdout", {"": ""})
    with pytest.raises(ConfigError, match="ends in .json or .json.gz"):
        output_files.check(tmp_path / "timeline.gz", output_files.TIMELINES)
