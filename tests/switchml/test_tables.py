"""Tables and lines of text on terminals of any width: nothing is cut, and what is left out is said."""

import re

import click
import pytest
from click.testing import CliRunner
from rich.cells import cell_len

from switchml import tables, terminal
from switchml.tables import Stream, Table, number, show, text
from switchml.terminal import say

COLUMNS = [
    text("job"), number("time", "ms"), number("packets", drop=2), text("remarks", drop=1), number("none", drop=3),
]  # fmt: skip


def table() -> Table:
    shown = Table(COLUMNS, title="Jobs [all]", notes=["times are of the slowest rank"])
    shown.add("resnet", "1,234.5", "123,456,789", "waits for rank 3", "")
    shown.add("others")
    shown.add("a job whose name is long", "1.2", "7", "", "")
    return shown


def printed(capsys, width: int, monkeypatch) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    show(table())
    lines = capsys.readouterr().out.splitlines()
    assert max(map(cell_len, lines)) <= width and all(line == line.rstrip() for line in lines)
    return lines


def test_there_is_room_for_all(capsys, monkeypatch):
    lines = printed(capsys, 80, monkeypatch)
    assert lines[0] == "Jobs [all]" and lines[1].split() == ["job", "time", "packets", "remarks"]
    assert lines[2].split() == ["ms"] and set(lines[3]) == {"─"} and lines[5] == "others"
    assert lines[4].split() == ["resnet", "1,234.5", "123,456,789", "waits", "for", "rank", "3"]
    assert lines[4].index("1,234.5") + 7 == lines[6].index("1.2") + 3 == lines[1].index("time") + 4
    assert lines[-1] == "times are of the slowest rank" and not any("Left out" in line for line in lines)


def test_names_fold_then_secondary_columns_go(capsys, monkeypatch):
    lines = printed(capsys, 60, monkeypatch)
    assert any(line.startswith("is long") or line.startswith("long") for line in lines)
    lines = printed(capsys, 48, monkeypatch)
    assert "packets" not in lines[1] and "waits" in " ".join(lines)
    assert "Hidden columns: packets; --wide or --json shows them." in " ".join(lines)


def test_rows_become_records(capsys, monkeypatch):
    lines = printed(capsys, 16, monkeypatch)
    assert ["time", "1,234.5"] in [line.split() for line in lines]
    assert "123,456,789" in re.sub(r"\s", "", "".join(lines)) and "others" in lines


def test_wide_shows_all_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")

    @click.command()
    @tables.wide_option
    def command() -> None:
        show(table())

    narrow, wide = (CliRunner().invoke(command, arguments).stdout for arguments in ([], ["--wide"]))
    assert "Hidden columns" in narrow and "123,456,789" not in narrow
    assert "Left out" not in wide and "123,456,789  waits for rank 3" in wide


def test_rows_as_they_come(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    stream = Stream([text("size", least=8), number("time", "µs", least=9)], title="all-reduces")
    head = capsys.readouterr().out
    assert head.splitlines()[0] == "all-reduces" and "time" in head
    stream.add("1K", "1.5")
    row = capsys.readouterr().out
    assert row == "1K" + " " * (len(head.splitlines()[2]) - 5) + "1.5\n"
    stream.add("64K", "12.5")
    stream.close("median of 3")
    assert capsys.readouterr().out.splitlines()[1:] == ["", "median of 3"]


@pytest.mark.parametrize("width", [20, 80])
def test_lines_wrap_and_paths_stay_whole(capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    path = "/a/folder/with/a/path/that/is/longer/than/any/line/may/be/" + "x" * 40
    say(f"- item: words that go on in {path}\n  indented, with [brackets] and \x1b[31m escapes")
    lines = capsys.readouterr().out.splitlines()
    assert any(path in line for line in lines) and lines[0].startswith("- item: words")
    assert all(line.startswith("  ") for line in lines[1:])
    assert all(cell_len(line) <= width for line in lines if path not in line)
    assert "[brackets]" in " ".join(lines) and "␛[31m" in " ".join(lines)


def test_progress_is_for_terminals(capsys, monkeypatch):
    monkeypatch.delenv("TTY_COMPATIBLE", raising=False)
    with terminal.progress("sweep", 3) as task:
        task.advance()
        task.step("starting")
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "xterm")
    with terminal.progress("sweep", 3) as task:
        task.advance()
        say("a row")  # makes the progress give way, and stays
    shown = capsys.readouterr()
    assert shown.out == "a row\n" and "1 of 3" in shown.err and not terminal._LIVE
