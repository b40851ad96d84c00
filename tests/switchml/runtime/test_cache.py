"""Kernels that the cache can't take go to a folder that a process shares with those that it starts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SHARE = "import os; from switchml.runtime import cache; cache.share(); cache.share(); "
SHOW = "folder = os.environ['SWITCHML_CACHE_DIR']; print(folder, *sorted(map(str, cache.Path(folder).rglob('*'))))"
FULL = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)); "
KERNEL = "from switchml.net.checksum import fold; fold(70_000); print(sum(fold.stats.cache_hits.values()))"


def run(code: str, cache: Path, temporary: Path, *before: str) -> subprocess.CompletedProcess[str]:
    variables = {"PYTHONPATH": str(ROOT), "SWITCHML_CACHE_DIR": str(cache), "TMPDIR": str(temporary)}
    return subprocess.run(
        [*before, sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
    )


def test_a_cache_with_room_is_used(tmp_path):
    found = run(SHARE + SHOW, tmp_path / "cache", tmp_path)
    assert found.stdout.split() == [str(tmp_path / "cache")] and found.stderr == ""


@pytest.mark.parametrize(
    ("cache", "limit", "reason"), [("cache", FULL, "File too large"), ("file/cache", "", "Not a dir")]
)
def test_a_full_cache_is_told_once_and_replaced(tmp_path, cache, limit, reason):
    (tmp_path / "file").touch()
    kept = tmp_path / "cache" / "kernels" / "module-1"
    kept.mkdir(parents=True)
    (kept / "kernel.nbc").touch()
    found = run(limit + SHARE + SHOW, tmp_path / cache, tmp_path)
    folder, *names = found.stdout.split()
    assert folder.startswith(f"{tmp_path}/switchml-kernels-") and not Path(folder).exists()  # it went with the process
    if limit:
        assert f"{folder}/kernels/module-1/kernel.nbc" in names  # what is there needs no compiling
    assert found.stderr.count("\n") == 1 and f"{tmp_path / cache} can't keep compiled kernels ({reason}" in found.stderr


@pytest.mark.root
@pytest.mark.slow
def test_processes_share_what_a_full_home_can_not_take(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    child = f"import subprocess, sys; [subprocess.run([sys.executable, '-c', {KERNEL!r}]) for _ in range(2)]"
    mounts = ("unshare", "-m", "sh", "-c", f'mount -t tmpfs -o size=64k none {home} && exec "$@"', "sh")
    found = run(SHARE + child, home / "cache", tmp_path, *mounts)
    assert "No space left on device" in found.stderr
    assert found.stdout.split() == ["0", "1"]


def test_a_training_says_it_before_its_long_imports(tmp_path):
    (tmp_path / "file").touch()
    program = """
import sys
from switchml.cli.main import main
from switchml.runtime import cache
cache._say = lambda text: sys.exit(f"{text[:5]} {'torch' in sys.modules} {'numpy' in sys.modules}")
main(["train"])
"""
    found = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "SWITCHML_CACHE_DIR": str(tmp_path / "file" / "cache")},
    )
    assert found.stderr == f"{tmp_path}"[:5] + " False False\n"
