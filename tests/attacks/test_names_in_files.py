"""Names that a stranger chose, in every file that a command shows: no markup, no command for a terminal, no tag."""

import dataclasses
import json

import numpy as np
import pytest
from click.testing import CliRunner

from emulator.traces.readers import native
from switchml.cli.main import cli
from switchml.terminal import Console
from switchml.text import plain
from tests.support.html_pages import read_page, without_our_code
from tests.support.p4_programs import PATHS
from tests.support.traced_jobs import Job, traced

HOSTILE = (
    "[/foo]", "[bold", "[link=http://127.0.0.1]here[/link]", "\x1b]0;title\x07\x1b[2J", "\x9b31m", "\u202etxt.exe",
    "\ud800", "<script>alert(1)</script>", "$\\frac$ {{ 7 * 7 }} %s {0}", ":skull:",
)  # fmt: skip
MODEL = "layers = 2\nhidden = 64\nheads = 2\nvocabulary = 99\nsequence = 8"
FORBIDDEN = ("\x1b", "\x07", "\x9b", "\u202e", "\ud800")


def hostile(trace, number):
    """`trace` with names of the attack, each with something of its own."""

    def name(text):
        return f"{HOSTILE[(number + len(text)) % len(HOSTILE)]} {text}"

    return dataclasses.replace(
        trace,
        names=[name(each) for each in trace.names],
        lanes=[dataclasses.replace(lane, name=name(lane.name)) for lane in trace.lanes],
        groups=[dataclasses.replace(group, name=name(group.name)) for group in trace.groups],
        host=name("host"),
        backend=name("backend"),
        about={"device": name("device"), name("key"): name("value")},
    )


def run(*arguments):
    done = CliRunner().invoke(cli, [str(each) for each in arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), (arguments, done.exc_info)
    assert "Traceback" not in done.output
    assert not [mark for mark in FORBIDDEN if mark in done.output], (arguments, done.output)
    return done


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two runs of a job, all of whose names are hostile."""
    pytest.importorskip("scipy", reason="needs scipy (pip install 'switchml[trace]')")
    folders = []
    for run_number, slow in enumerate((1.0, 1.5)):
        folder = tmp_path_factory.mktemp("run")
        job = Job(ranks=3, slowness=lambda rank, name, iteration, slow=slow: slow if rank == 2 else 1.0)
        for trace in traced(job, iterations=4).traces:
            native.write(hostile(trace, run_number), folder / f"rank-{trace.rank}.npz")
        folders.append(folder)
    return folders


def test_names_in_traces(folders, tmp_path, attempts):
    """info, diagnose, diff, replay and convert show them, in tables, pages and timelines."""
    one, other = folders
    commands = [
        ("trace", "info", one),
        ("trace", "info", one, "--json"),
        ("trace", "diagnose", one, "--report", tmp_path / "page.html", "--timeline", tmp_path / "timeline.json"),
        ("trace", "diff", one, other),
        ("trace", "replay", one),
        ("trace", "convert", one, "--out", tmp_path / "chrome", "--to", "chrome"),
        ("trace", "convert", one, "--out", tmp_path / "chakra", "--to", "chakra"),
        ("trace", "info", tmp_path / "chakra"),
    ]
    for command in commands:
        assert (done := run(*command)).exit_code == 0, done.output
    page = without_our_code(tmp_path / "page.html")
    assert "<script" not in page and not [mark for mark in FORBIDDEN if mark in page]
    assert any("[/foo]" in text for text in read_page(tmp_path / "page.html"))
    assert "{{ 7 * 7 }}" in page or "$\\frac$" in page
    json.loads((tmp_path / "timeline.json").read_text())
    shown = run("trace", "info", one).output + run("trace", "diff", one, other).output
    assert "[/foo]" in shown and "␛]0;title␇␛[2J" in shown
    attempts.record("hostile names in traces", len(HOSTILE) * len(commands))


@pytest.mark.parametrize("name", [name for name in HOSTILE if name != "\ud800"])  # TOML has no halves of pairs
def test_names_in_job_and_network_files(name, tmp_path, attempts):
    text = json.dumps(name, ensure_ascii=True)
    job = tmp_path / "job.toml"
    job.write_text(f'model = "gpt2-124m"\n[[jobs]]\nname = {text}\n[[jobs]]\nname = {text}\n')
    assert run("emulate", job).exit_code == 0
    model = tmp_path / "model.toml"
    model.write_text(
        f"title = {text}\nsource = {text}\nlayers = 2\nhidden = 64\nheads = 2\nvocabulary = 99\nsequence = 8"
    )
    page = tmp_path / "page.html"
    assert run("emulate", "--model", model, "--gpus", 2, "--report", page).exit_code == 0
    shown = without_our_code(page)
    assert "<script" not in shown and not [mark for mark in FORBIDDEN if mark in shown]
    read_page(page)
    network = tmp_path / "network.toml"
    network.write_text(f"[[jobs]]\nname = {text}\nworkers = 2\nsize_bytes = 4096\n")
    assert run("simulate", network).exit_code == 0
    network.write_text(f"{text} = 1\n[[jobs]]\n")
    assert run("simulate", network).exit_code == 1
    job.write_text(f"model = {text}\n")
    assert run("emulate", job).exit_code == 1
    attempts.record("hostile names in job, model and network files", 5)


def test_names_in_an_stf_file(tmp_path):
    """Statements that fail are quoted."""
    stf = tmp_path / "test.stf"
    stf.write_text("".join(f"\x1b]0;{name} x\n" for name in HOSTILE[:5]))
    assert "␛]0;" in run("stf", PATHS["exact"], stf).output


def test_plain_text_keeps_its_length():
    every = "".join(map(chr, range(0x3000))) + "\ud800"
    shown = plain(every)
    assert len(shown) == len(every) and "\x1b" not in shown
    assert plain("jøb [α] 3 %\n\tend") == "jøb [α] 3 %\n\tend"


def test_a_console_takes_no_markup_anywhere(capsys):
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    name = "[/foo]\x1b[2J"
    table = Table(name, title=name, caption=name)
    table.add_row(name)
    console = Console(width=60)
    for shown in (name, table, Panel(name, title=Text(name)), Text(name), Panel(Text(name), title=Text(name))):
        console.print(shown)
    said = capsys.readouterr().out
    assert said.count("[/foo]␛[2J") == 10 and "\x1b" not in said
    assert np.all([len(line) <= 60 for line in said.splitlines()])
