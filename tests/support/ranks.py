"""Runs a script in several processes, as torchrun would, and collects their results."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Rank:
    """One process. `finish` waits for it and fills in the rest."""

    rank: int
    process: subprocess.Popen
    returncode: int | None = None
    out: str = ""
    err: str = ""

    def finish(self, timeout_s: float) -> None:
        try:
            self.out, self.err = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.out, self.err = self.process.communicate()
            raise AssertionError(f"rank {self.rank} still ran after {timeout_s} s:\n{self.out}\n{self.err}") from None
        self.returncode = self.process.returncode


def environment(**changes: str) -> dict[str, str]:
    """Ours, with the checkout importable, one thread a process, and nothing that points at a running aggregator."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("SWITCHML_")}
    path = os.pathsep.join(part for part in (str(ROOT), env.get("PYTHONPATH", "")) if part)
    return env | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"} | changes


def start_ranks(script: Path, world_size: int, folder: Path, *arguments: str, **env: str) -> list[Rank]:
    """Start `script` once a rank. It finds RANK, WORLD_SIZE, and RENDEZVOUS (for init_method) in its environment."""
    ranks = []
    for rank in range(world_size):
        settings = environment(
            RANK=str(rank), WORLD_SIZE=str(world_size), RENDEZVOUS=f"file://{folder}/rendezvous", **env
        )
        ranks.append(
            Rank(
                rank,
                subprocess.Popen(
                    [sys.executable, str(script), *arguments],
                    env=settings,
                    text=True,
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                ),
            )
        )
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
