"""A user's training command: what it gets, and what it leaves behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from host_agent.launching import run_command
from tests.support.launch import until
from tests.support.ranks import environment


@pytest.mark.parametrize("own", ["", "/own"])
def test_torchruns_logs_go_with_the_command(tmp_path, own):
    variables = {"PATH": os.environ["PATH"], **({"PET_LOG_DIR": own} if own else {})}
    with (tmp_path / "out").open("w") as out:
        assert run_command(["sh", "-c", 'echo "$PET_LOG_DIR"; test -d "$PET_LOG_DIR"'], variables, stdout=out) == (
            own != ""
        )
    logs = (tmp_path / "out").read_text().strip()
    assert logs == own if own else not Path(logs).exists()


@pytest.mark.slow
def test_torchrun_leaves_no_folder_when_a_signal_ends_us(tmp_path):
    pytest.importorskip("torch")
    script = tmp_path / "script.py"
    script.write_text("import pathlib, time\npathlib.Path('started').touch()\ntime.sleep(1000)\n")
    program = (
        "import os, sys\nfrom host_agent.launching import run_command\nfrom switchml.cli.interrupts import in_order\n"
        f"with in_order(): run_command(['torchrun', '--nproc-per-node', '1', {str(script)!r}], os.environ)"
    )
    folder = tmp_path / "temporary"
    folder.mkdir()
    ours = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, env=environment(TMPDIR=str(folder)))
    until((tmp_path / "started").exists)
    ours.send_signal(signal.SIGTERM)
    assert ours.wait() == 128 + signal.SIGTERM
    assert not [path.name for path in folder.iterdir() if "torchelastic" in path.name or "switchml" in path.name]
