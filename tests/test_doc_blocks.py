"""The commands and the Python of README and docs run in the environment that the README says to activate
(`switchml[all]`), commands in the order of their page and in one folder; what a page promises of their output is there.
Rows: tests/doc_blocks.toml.
"""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.doc_blocks import PAGES, ROOT, TABLE, commands, python, tables

RUN = {page: [command for command in commands(page) if not command.not_run] for page in PAGES}


@pytest.fixture
def folder(tmp_path):
    """A folder with what the pages take for granted: the checkout's folders, and a script of one's own."""
    for name in ("scripts", "emulator", "tests", "p4", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    for name in ("train.py", "script.py"):
        shutil.copy(ROOT / "scripts" / "examples" / "ddp_models.py", tmp_path / name)
    return tmp_path


def test_every_row_is_for_a_command():
    assert {str(page.relative_to(ROOT)) for page in PAGES if python(page)} == set(TABLE["python"])
    texts = [command.text for page in PAGES for command in commands(page)]
    rows = [row["of"] for kind in ("shortened", "expected") for row in TABLE[kind]]
    assert [of for of in rows if not any(of in text for text in texts)] == []
    assert len(texts) > 60


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("page", [page for page in PAGES if RUN[page]], ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_run(page, folder):
    for number, text in enumerate(tables(page)):
        (folder / ("settings.toml" if "ddp" in text else f"network{number or ''}.toml")).write_text(text)
    bin_folder = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{bin_folder}:{os.environ['PATH']}", "COLUMNS": "80"}
    if "PYTHONPATH" not in environment:
        environment["PYTHONPATH"] = str(ROOT)
    where = {"cwd": folder, "env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    if first := TABLE["before"].get(str(page.relative_to(ROOT))):
        subprocess.run(["bash", "-c", first], check=True, timeout=900, **where)
    behind = []
    missing = {
        row["program"]: [command for command in RUN[page] if any(part in command.text for part in row["of"])]
        for row in TABLE["needs"]
        if not shutil.which(row["program"])
    }
    left_out = [command for those in missing.values() for command in those]
    try:
        for command in RUN[page]:
            if command in left_out:
                continue
            if command.run.endswith("&") or command.run.startswith(
                ("switchml aggregate", "switchml control", "switchml switch", "switchml ui")
            ):
                program = ["bash", "-c", f"exec {command.run.rstrip('& ')}"]
                behind.append(
                    subprocess.Popen(program, start_new_session=True, **where | {"stdout": subprocess.DEVNULL})
                )
                continue
            done = subprocess.run(["bash", "-c", command.run], text=True, timeout=900, **where)
            assert done.returncode == 0, f"{command.run}\n{done.stdout[-3000:]}"
            assert [text for text in command.expect if text not in done.stdout] == [], command.run
    finally:
        for process in behind:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
    for program, those in missing.items():
        if those:
            pytest.skip(f"all but {those[0].text}: needs the program {program}")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", list(TABLE["python"]))
def test_python_runs(page, folder):
    row = TABLE["python"][page]
    if row.get("needs_root") and os.geteuid():
        pytest.skip("needs root")
    if missing := [program for program in row.get("needs", ()) if not shutil.which(program)]:
        pytest.skip(f"needs the program {missing[0]}")
    bin_folder = Path(sys.executable).parent
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PATH": f"{bin_folder}:{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, "-c", python(ROOT / page)], cwd=folder, env=environment, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert [text for text in row["expect"] if text not in done.stdout] == [], done.stdout
