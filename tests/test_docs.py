"""README, CONTRIBUTING and docs/: links and paths exist, imports work, and commands have the options that are shown."""

import re
import shlex
from pathlib import Path

import click
import pytest

from switchml.cli.main import cli

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("switchml", "host_agent", "emulator", "tests", "scripts", "p4", "docs")
PAGES = sorted(
    path.relative_to(ROOT)
    for pattern in ("*.md", "docs/**/*.md", "p4/*.md", "tests/**/README.md")
    for path in ROOT.glob(pattern)
)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_and_paths_exist(page):
    text = (ROOT / page).read_text()
    targets = [
        target for target in re.findall(r"\]\(([\w./-]+\.\w+|[\w./-]+/)(?:#[^)]*)?\)", text) if "://" not in target
    ]
    missing = [target for target in targets if not (ROOT / page.parent / target).exists()]
    paths = re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w/.-]+)`", text)
    missing += [path for path in paths if "NAME" not in path and not (ROOT / path).exists()]
    assert missing == []


IMPORT = (
    r"^ *(from (?:switchml|host_agent|emulator)[\w.]* import [\w, ]+|import (?:switchml|host_agent|emulator)[\w.]*)$"
)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_imports_work(page):
    statements = re.findall(IMPORT, (ROOT / page).read_text(), re.MULTILINE)
    if any("pytorch" in statement or "profile" in statement for statement in statements):
        pytest.importorskip("torch")
    for statement in statements:
        exec(statement, {})


def test_example_of_a_graph_prints_what_its_comments_say(capsys):
    [example] = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "replay.md").read_text(), re.DOTALL)
    exec(example, {})
    makespan, shares, critical = capsys.readouterr().out.splitlines()
    assert float(makespan) == pytest.approx(0.055)
    for name, seconds in {"compute": 0.03375, "exposed communication": 0.01, "waiting for peers": 0.01125}.items():
        assert eval(shares)[name] == pytest.approx(seconds)
    assert eval(critical) == pytest.approx({"backward": 0.045, "all-reduce": 0.01})


def commands(text: str) -> list[list[str]]:
    """Arguments of every `switchml …` in code, up to an ellipsis, pipe or comment."""
    text = text.replace("\\\n", " ")
    blocks = re.findall(r"^(?:    |\$ )(?:\$ )?((?:\w+=\S+ )*switchml .*)$", text, re.MULTILINE)
    found = []
    for code in [*blocks, *re.findall(r"`(switchml [^`]*)`", text)]:
        code = re.split(r"\s(?:#|…|\||>|&)|…", code + " ")[0]
        try:
            words = shlex.split(code)
        except ValueError:
            continue  # half a sentence in quotes
        found.append(words[words.index("switchml") + 1 :])
    return found


def problem_of(words: list[str]) -> str | None:
    """What is wrong with a command's words; None if nothing is."""
    command: click.Command = cli
    context = click.Context(cli)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, *rest = words
        choices = [command.get_command(context, each) for each in name.split("|")]
        if None in choices:
            return f"no subcommand {name!r} of {command.name}"
        command, words = choices[0], rest
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for word in words:
        if word == "--" or word.endswith(".py"):
            break  # what follows belongs to another program
        option = word.partition("=")[0]
        if re.fullmatch(r"--[a-z][a-z0-9-]*|-[a-z]", option) and option not in known | {"--help", "-h", "--version"}:
            return f"no option {option!r} of {command.name}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_commands_exist(page):
    problems = {shlex.join(words): problem_of(words) for words in commands((ROOT / page).read_text())}
    assert {line: problem for line, problem in problems.items() if problem} == {}
