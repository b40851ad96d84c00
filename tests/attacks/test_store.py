"""A stranger at torch's store, beside a job whose ranks have a secret: he reads all, and overwrites what he finds."""

import contextlib
import random
import time
from datetime import timedelta
from pathlib import Path

import pytest

from tests.attacks.conftest import FIRST_SEED, Attempts
from tests.support.ranks import Rank, start_ranks

pytest.importorskip("torch")

from torch.distributed import TCPStore

SCRIPT = Path(__file__).parents[1] / "host_agent" / "pytorch" / "store_script.py"
SECRET = "nobody finds this in the store"
PARTS = ("word/", "part/", "gloo/", "machine/", "invitation")
VALUES = (b"", b"\0", b"{}", b"[" * 1000, b"x" * (8 << 20), bytes(range(256)), b"9" * 30)


class Job:
    """Two ranks, whose store is ours, and a stranger's client of it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
        variables = {"STORE_PORT": str(self.server.port), "PATIENCE_S": "20", "SWITCHML_SECRET": SECRET}
        self.ranks: list[Rank] = start_ranks(SCRIPT, 2, folder, TORCH_CPP_LOG_LEVEL="ERROR", **variables)
        self.stranger = TCPStore("127.0.0.1", self.server.port, is_master=False, timeout=timedelta(seconds=5))
        if not hasattr(self.stranger, "list_keys"):
            pytest.skip("this torch does not list a store's keys")

    def listed(self) -> list[str]:
        return list(self.stranger.list_keys())

    def runs(self) -> bool:
        """Whether a rank does still, a moment later."""
        time.sleep(0.002)
        return any(rank.process.poll() is None for rank in self.ranks)

    def end(self) -> None:
        try:
            for rank in self.ranks:
                rank.finish(100)
        finally:
            for rank in self.ranks:
                rank.process.kill()


def test_all_that_a_stranger_reads_is_no_secret(tmp_path, attempts: Attempts):
    job, seen = Job(tmp_path / "job"), {}
    while job.runs():
        for key in set(job.listed()) - set(seen):
            seen[key] = bytes(job.stranger.get(key))
    job.end()
    assert [rank.returncode for rank in job.ranks] == [0, 0], job.ranks[0].err + job.ranks[1].err
    assert sum("invitation" in key for key in seen) == 2 and SECRET not in repr(seen)
    attempts.record("keys of torch's store, read by a stranger", len(seen))


def test_what_a_stranger_writes_ends_the_rendezvous_at_most(tmp_path, attempts: Attempts):
    source, written = random.Random(FIRST_SEED), 0
    for number in range(attempts.scaled(len(PARTS))):
        part, value = PARTS[number % len(PARTS)], source.choice(VALUES)
        job = Job(tmp_path / str(number))
        while job.runs():
            with contextlib.suppress(RuntimeError):
                for key in job.listed():
                    if part in key:
                        job.stranger.set(key, value)
                        written += 1
        job.end()
        for rank in job.ranks:
            errors = [line for line in rank.err.splitlines() if line.startswith("switchml: error: ")]
            assert "Traceback" not in rank.err, rank.err
            assert len(errors) == (rank.returncode != 0), (part, value[:20], rank.err)
    attempts.record("values of torch's store, overwritten by a stranger", written)
