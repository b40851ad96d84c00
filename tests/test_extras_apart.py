"""Commands run with the packages of their extra and no others: what an environment lacks can't be imported there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from switchml.cli.extras import EXTRAS
from tests.support.ranks import environment

MODULES = {module for extra in EXTRAS.values() for module in extra.modules}
BROUGHT_ALONG = {"torch": {"jinja2"}}
"""By what they install as well."""

ABSENT = """
import os
from importlib.machinery import PathFinder

absent, find_spec = set(os.environ["ABSENT"].split()), PathFinder.find_spec
PathFinder.find_spec = classmethod(
    lambda cls, name, *args: None if name.partition(".")[0] in absent else find_spec(name, *args)
)
"""

EVERY_HELP = """
import click
from switchml.cli.main import cli, commands

for name in commands():
    command = cli
    for word in name.split():
        command = command.get_command(click.Context(command), word)
    assert "Usage:" in command.get_help(click.Context(command, info_name=name))
"""


@pytest.fixture
def run(tmp_path):
    """`run(extras, *arguments)`: Python, and the processes that it starts, with these extras alone."""
    (tmp_path / "sitecustomize.py").write_text(ABSENT)

    def python(extras: tuple[str, ...], *arguments: str) -> str:
        there = {module for name in extras for module in EXTRAS[name].modules}
        there |= {each for module in there for each in BROUGHT_ALONG.get(module, ())}
        env = environment(ABSENT=" ".join(sorted(MODULES - there)))
        env["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{env['PYTHONPATH']}"
        done = subprocess.run([sys.executable, *arguments], env=env, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return python


def test_every_command_explains_itself_without_any_extra(run):
    run((), "-c", EVERY_HELP)


def test_what_scripts_run_installs_is_enough_for_a_training(run):
    text = (Path(__file__).resolve().parents[1] / "scripts" / "run").read_text()
    [extras] = [line.split()[2:] for line in text.splitlines() if line.startswith("setup_venv")]
    out = run(tuple(extras), "-m", "switchml", "train", "--ranks", "2", "--steps", "3", "--aggregator", "p4")
    assert "SHA-256" in out
