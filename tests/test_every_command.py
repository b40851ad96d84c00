"""What every subcommand has: `--verbose`, `--quiet`, two examples that parse; and names that the shell completes."""

import shlex
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from switchml.cli import common
from switchml.cli.main import cli, commands

FILES = ("program.json", "test.stf", "network.toml", "network.json", "job.toml", "profile.json.gz", "measured.csv",
         "workload.txt", "train.py", "a.pem", "a.key")  # fmt: skip
FOLDERS = ("traces", "before", "after", "chakra", "tables", "measurements")


def leaf(name: str) -> click.Command:
    command: click.Command = cli
    for word in name.split():
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), word)
    return command


LEAVES = [name for name in commands() if not isinstance(leaf(name), click.Group)]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder that has what the examples name."""
    monkeypatch.chdir(tmp_path)
    for name in FILES:
        Path(name).write_text("{}" if name.endswith("json") else "")
    for name in FOLDERS:
        Path(name).mkdir()


@pytest.mark.parametrize("name", LEAVES)
def test_help_ends_with_two_examples_that_parse(name, here):
    command = leaf(name)
    text = command.get_help(click.Context(command, info_name=f"switchml {name}", terminal_width=80))
    heading, *lines = text.splitlines()[-3:]
    assert heading.strip() == "Examples:"
    for line in lines:
        words = shlex.split(line.strip().removeprefix("sudo"))
        start = ["switchml", *name.split()]
        assert words[: len(start)] == start and len(line) <= 80
        command.make_context(name, words[len(start) :])


FORMER = {
    *("--workers", "--world-size", "--loss-rate", "--batch-size", "--payload-bytes", "--network", "--placements"),
    *("--rounds", "--address", "--time-budget-s", "--megabytes", "--bucket-bytes"),
}
"""Names that options had where others were in use for the same."""
COUNTS = {"--ranks", "--hosts", "--gpus", "--repeats", "--warmup", "--seeds", "--trials", "--slots", "--packets"}


def test_one_name_for_each_idea_and_counts_with_suffixes():
    options = [(name, each) for name in LEAVES for each in leaf(name).params if isinstance(each, click.Option)]
    assert [(name, each.opts) for name, each in options if FORMER & {*each.opts, *each.secondary_opts}] == []
    plain = (click.IntRange, type(click.INT))
    assert [(name, each.opts) for name, each in options if COUNTS & {*each.opts} and type(each.type) in plain] == []


def test_every_command_can_be_verbose_and_quiet():
    for name in LEAVES:
        options = {text for parameter in leaf(name).params for text in parameter.opts}
        assert {"--verbose", "-q", "--quiet"} <= options or name == "stf", name
        assert "-v" in options, name


NOISY = """
import sys
import click
from switchml.errors import ConfigError

@click.command()
@click.option("--fails", is_flag=True)
def noisy(fails):
    click.echo("progress", err=True)
    if fails:
        raise ConfigError("it failed")
    click.echo("result")
"""


@pytest.mark.parametrize("arguments, out, err", [
    ([], "result\n", "progress\n"),
    (["-q"], "result\n", ""),
    (["-q", "--fails"], "", "switchml: error: it failed\n"),
    (["-q", "--wrong"], "", "No such option"),
])  # fmt: skip
def test_quiet_leaves_results_and_errors(tmp_path, monkeypatch, arguments, out, err):
    (tmp_path / "a_noisy_module.py").write_text(NOISY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(commands(), "noisy", ("a_noisy_module:noisy", "For a test."))
    result = CliRunner().invoke(cli, ["noisy", *arguments])
    assert result.stdout == out
    assert err in result.stderr if err else result.stderr == ""
    sys.modules.pop("a_noisy_module", None)


@pytest.mark.parametrize("words, incomplete, expected", [
    (["emulate", "--model"], "gpt3", "gpt3-175b"),
    (["emulate", "--cluster"], "a100", "a100-dgx"),
    (["train", "--codec"], "to", "topk"),
    (["bench"], "all", "allreduce"),
    (["trace", "diagnose"], "--rep", "--report"),
])  # fmt: skip
def test_names_are_completed(words, incomplete, expected):
    completer = ShellComplete(cli, {}, "switchml", "_SWITCHML_COMPLETE")
    assert expected in {item.value for item in completer.get_completions(words, incomplete)}


def test_examples_name_existing_commands():
    assert set(common.examples()) == set(LEAVES)
