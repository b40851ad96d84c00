"""Runs a script in several processes, as torchrun would, and collects their results."""

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.forks import TORCH, Forked

ROOT = Path(__file__).resolve().parents[2]


class Rank:
    """One process. `finish` waits for it and fills in the rest."""

    def __init__(self, rank: int, command: Sequence[object], env: dict[str, str], cwd: Path):
        self.rank = rank
        self.returncode: int | None = None
        self.out = self.err = ""
        self._out, self._err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")  # noqa: SIM115 - read at the end
        with open(os.devnull) as nothing:
            self.process = Forked(
                command, preload=TORCH, env=env, cwd=cwd, stdin=nothing, stdout=self._out, stderr=self._err
            )

    def finish(self, timeout_s: float) -> None:
        try:
            self.returncode = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"rank {self.rank} still ran after {timeout_s} s:\n{self._read()}") from None
        self._read()

    def _read(self) -> str:
        self._out.seek(0)
        self._err.seek(0)
        self.out, self.err = self._out.read(), self._err.read()
        return f"{self.out}\n{self.err}"


def environment(**changes: str) -> dict[str, str]:
    """Ours, with the checkout importable, one thread a process, nothing that points at a running aggregator, and no
    waiting for one that is lost."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("SWITCHML_")}
    env["SWITCHML_FAILOVER_TIMEOUT"] = "0"
    path = os.pathsep.join(part for part in (str(ROOT), env.get("PYTHONPATH", "")) if part)
    return env | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"} | changes


def start_ranks(script: Path, world_size: int, folder: Path, *arguments: str, **env: str) -> list[Rank]:
    """Start `script` once a rank. It finds RANK, WORLD_SIZE, and RENDEZVOUS (for init_method) in its environment."""
    ranks = []
    for rank in range(world_size):
        settings = environment(
            RANK=str(rank), WORLD_SIZE=str(world_size), RENDEZVOUS=f"file://{folder}/rendezvous", **env
        )
        ranks.append(Rank(rank, [script, *arguments], settings, folder))
    return ranks


def run_ranks(
    script: Path, world_size: int, folder: Path, *arguments: str, timeout_s: float = 100, **env: str
) -> list[Rank]:
    """Start them all and wait for them all; AssertionError with their stderr if one fails or hangs."""
    ranks = start_ranks(script, world_size, folder, *arguments, **env)
    try:
        for rank in ranks:
            rank.finish(timeout_s)
    finally:
        for rank in ranks:
            rank.process.kill()
    failed = [rank for rank in ranks if rank.returncode]
    assert not failed, "\n".join(
        f"--- rank {rank.rank}: exit code {rank.returncode}\n{rank.out}\n{rank.err}" for rank in failed
    )
    return ranks
