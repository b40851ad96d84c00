"""Every command's screen reads at 80 columns, and nothing on it is cut."""

from __future__ import annotations

import io
import re

import pytest
from rich.cells import cell_len

from switchml.cli import status
from switchml.cli.main import commands
from switchml.terminal import Console
from tests.support.screens import SCREENS, status_reply

LEAVES = sorted(name for name in commands() if not any(other.startswith(f"{name} ") for other in commands()))


def shown(name, folder, capfd, monkeypatch) -> list[str]:
    """The lines of a command's screen, on both streams."""
    monkeypatch.chdir(folder)
    capfd.readouterr()
    SCREENS[name](folder)
    out, err = capfd.readouterr()
    return (out + err).splitlines()


def test_every_command_has_a_screen():
    assert sorted(SCREENS) == LEAVES


@pytest.mark.parametrize("name", LEAVES)
def test_screens_at_80_columns(name, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = shown(name, tmp_path, capfd, monkeypatch)
    assert lines and max(map(cell_len, lines)) <= 80, "\n".join(lines)
    assert not any("…" in line or "\x1b" in line or line != line.rstrip() for line in lines), "\n".join(lines)


@pytest.mark.parametrize("name", ["simulate", "status", "bench allreduce"])
@pytest.mark.parametrize("columns", [None, "60", "24"])
def test_screens_in_a_pipe_and_on_narrow_terminals(name, columns, tmp_path, capfd, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    lines = shown(name, tmp_path, capfd, monkeypatch)
    assert lines and max(map(cell_len, lines)) <= int(columns or 80), "\n".join(lines)


def test_a_live_table_follows_the_events():
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80, color_system=None)
    first, later = status_reply(), status_reply()
    later.jobs[1].state = "running"
    event = {"event": "job_started", "time": 0, "job": "resnet", "job_id": 2, "slots": 512}
    status.live(lambda: later, first, [{}, event, {"event": "rates"}], console)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", file.getvalue())
    assert "resnet" in text and "forming" in text.split("Ctrl-C ends")[0]
    assert "forming" not in text.split("Ctrl-C ends")[-2]
    assert "job 'resnet': started as job 2 with 512 slots" in text
    assert max(map(cell_len, text.splitlines())) <= 80
