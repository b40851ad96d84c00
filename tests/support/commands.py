"""The `switchml` command as users run it, in its own process."""

import json
import subprocess
import sys

import psutil
from click.testing import CliRunner

from switchml.cli.main import cli
from tests.support.ranks import environment


def start(*arguments: str, **options) -> subprocess.Popen:
    """`switchml ARGUMENTS`; its output is text in pipes. `options`: of Popen."""
    return subprocess.Popen(
        [sys.executable, "-m", "switchml", *arguments], env=environment(), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
    )  # fmt: skip


def run(*arguments: str, timeout_s: float = 110) -> subprocess.CompletedProcess:
    """`start`, and wait for it to end."""
    process = start(*arguments)
    try:
        out, err = process.communicate(timeout=timeout_s)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def run_json(*arguments: str) -> dict:
    """The command's output with --json, parsed."""
    done = run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_all_end(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=8)
    assert alive == []


def told(*arguments: object) -> dict:
    """`run_json`, in this process."""
    done = CliRunner().invoke(cli, [*map(str, arguments), "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)
