"""The command line itself: help, version, how errors are shown, and that subcommands load only when called."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from switchml import __version__
from switchml.cli import main as command_line

SUBCOMMANDS = """
import click
from switchml.errors import ConfigError

@click.command()
@click.option("--count", type=int, default=1)
def fine(count):
    click.echo(f"count {count}")

@click.command()
def wrong():
    raise ConfigError("pool size 3 is odd:\\n  it must be even")

@click.command()
def interrupted():
    raise KeyboardInterrupt

@click.command()
def needs_torch():
    raise ModuleNotFoundError("No module named 'torch'", name="torch")

@click.command()
def broken():
    raise ModuleNotFoundError("No module named 'no_such_thing'", name="no_such_thing")
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run the command line with SUBCOMMANDS registered; returns click's result."""
    (tmp_path / "fake_subcommands.py").write_text(SUBCOMMANDS)
    (tmp_path / "fake_without_scipy.py").write_text("import scipy.nowhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("fine", "wrong", "interrupted", "needs_torch", "broken"):
        monkeypatch.setitem(command_line.commands(), name, (f"fake_subcommands:{name}", "For a test."))
    monkeypatch.setitem(command_line.commands(), "unimportable", ("fake_without_scipy:nothing", "For a test."))
    return lambda *args: CliRunner().invoke(command_line.cli, args)


def test_help_lists_every_subcommand(run):
    result = run("--help")
    assert result.exit_code == 0
    for name, (_, help_line) in command_line.commands().items():
        assert (f"  {name} " in result.stdout) == (" " not in name)
        assert (help_line in result.stdout) == (" " not in name)


@pytest.mark.parametrize("args", [("no-such-subcommand",), ("--no-such-option",), ("fine", "--count", "many")])
def test_wrong_usage_exits_2(run, args):
    result = run(*args)
    assert result.exit_code == 2
    assert args[-1] in result.stderr
    assert result.stdout == ""


def test_our_error_is_one_line(run):
    result = run("wrong")
    assert result.exit_code == 1
    assert result.stderr == "switchml: error: pool size 3 is odd: it must be even\n"
    assert result.stdout == ""


def test_interrupt_exits_130_quietly(run):
    result = run("interrupted")
    assert (result.exit_code, result.output) == (130, "")


@pytest.mark.parametrize(
    ("name", "module", "extra"), [("needs_torch", "torch", "train"), ("unimportable", "scipy", "trace")]
)
def test_missing_optional_package_names_the_extra(run, name, module, extra):
    result = run(name)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"switchml: error: this needs {module} ")
    assert result.stderr.endswith(f"pip install 'switchml[{extra}]'\n")
    assert result.stderr.count("\n") == 1


def test_other_import_errors_keep_their_traceback(run):
    assert isinstance(run("broken").exception, ModuleNotFoundError)


def test_python_dash_m(tmp_path):
    result = subprocess.run([sys.executable, "-m", "switchml", "--version"], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, f"switchml, version {__version__}\n")


@pytest.mark.parametrize("script", ["/usr/bin/switchml", "/home/me/train.py"])
@pytest.mark.parametrize("module", ["switchml.lazy", "switchml.cli.interrupts", "click"])
def test_ctrl_c_while_the_command_line_loads(script, module):
    program = f"""
import os, signal, sys
class Interrupt:
    def find_spec(name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt)
sys.argv[0] = {script!r}
from switchml.cli.main import main
main(["--version"])
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout == ""
    if script.endswith("switchml"):
        assert (result.returncode, result.stderr) == (130, "")
    else:  # a program that imports us decides for itself
        assert "KeyboardInterrupt" in result.stderr


def test_help_imports_nothing_heavy():
    # What is imported is what --help costs: a duration would depend on the machine.
    program = """
import sys
from switchml.__main__ import main
try:
    main(["--help"])
except SystemExit as end:
    assert end.code == 0, end.code
ours = ("switchml.", "host_agent.", "emulator.")
print(*sorted(name for name in sys.modules if name.startswith(ours)), file=sys.stderr)
heavy = {"torch", "numba", "numpy", "grpc", "scapy", "zmq", "rich", "scipy"}
print(*sorted(heavy & set(sys.modules)), file=sys.stderr)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stderr == (
        "emulator.surface emulator.surface.cli host_agent.cli switchml.__main__ switchml.cli switchml.cli.common "
        "switchml.cli.interrupts switchml.cli.main switchml.errors switchml.lazy switchml.runtime "
        "switchml.runtime.raising switchml.text\n\n"
    )
