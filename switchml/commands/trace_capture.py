"""`switchml trace capture -- torchrun … script.py`: run a script as it is, and profile every rank of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from switchml.errors import ConfigError

FILES = re.compile(r"rank-\d+\.(json\.gz|et\.json|wire\.npz|about\.json)")
"""What a capture leaves (host_agent/profile/files.py)."""
INTERRUPT_S = 60.0
"""How long ranks may take to write their traces after Ctrl-C."""


class Steps(click.ParamType):
    """SKIP:STOP."""

    name = "SKIP:STOP"

    def convert(self, value, param, ctx) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        found = re.fullmatch(r"(\d+):(\d+)", value)
        skip, stop = (int(found[1]), int(found[2])) if found else (0, 0)
        if not 1 <= skip < stop:
            self.fail(f"{value}: expected SKIP:STOP with 1 <= SKIP < STOP, like 3:13 for iterations 3 to 12", param, ctx)
        return skip, stop


@dataclass(frozen=True)
class RankSummary:
    """What one rank has left."""

    rank: int
    host: str
    backend: str
    iterations: int
    iteration_s: float
    """Median of the captured ones."""
    plain_s: float
    """Median of those that were not captured, between captures; 0 without --measure."""
    calls: int
    packets: int
    packets_lost: int
    trace_bytes: int


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("traces"),
    show_default=True,
    help="Folder for the traces.",
)
@click.option(
    "--steps",
    type=Steps(),
    default=(3, 13),
    show_default="3:13",
    help="Iterations to capture, counted from 0: from SKIP to before STOP.",
)
@click.option("--measure", type=click.IntRange(1), metavar="PAIRS", help="Measure what the capture costs: alternate so "
              "often between STOP-SKIP iterations without and as many with it.")  # fmt: skip
@click.option(
    "--packets",
    type=click.IntRange(1),
    default=1 << 20,
    show_default=True,
    help="Packets that each agent notes at most (32 bytes each).",
)
@click.option("--graph/--no-graph", default=True, help="torch's execution trace, of one iteration more. [default: graph]")
@click.option("--overwrite", is_flag=True, help="Replace a capture that is in the folder.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object in place of the table.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def capture(
    out: Path,
    steps: tuple[int, int],
    measure: int | None,
    packets: int,
    graph: bool,
    overwrite: bool,
    as_json: bool,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND (torchrun … script.py), and have every rank leave a trace of some of its iterations: torch's profile
    and execution trace, and each packet of our own transport. The script stays as it is; its Python must have switchml
    installed, and it must use torch's optimizers, as their steps are what iterations are told by.
    """
    out = out.absolute()
    _make_room(out, overwrite)
    skip, stop = steps
    environment = os.environ | {
        "SWITCHML_TRACE_DIR": str(out),
        "SWITCHML_TRACE_STEPS": f"{skip}:{stop}",
        "SWITCHML_TRACE_PACKETS": str(packets),
        "SWITCHML_TRACE_PAIRS": str(measure or 0),
        "SWITCHML_TRACE_GRAPH": str(int(graph)),
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "1",
    }
    code = _run(_command(command), environment, as_json)
    ranks = summaries(out)
    if not ranks:
        ended = f"{command[0]} ended with exit code {code}; " if code else ""
        raise ConfigError(
            f"{ended}no rank has written a trace into {out}: a script must take more than {skip} steps with a torch "
            "optimizer (--steps), in a Python that has switchml installed"
        )
    _report(ranks, out, code, as_json)
    if code:
        raise ConfigError(f"{command[0]} ended with exit code {code}; {len(ranks)} ranks left a trace in {out}")


def _make_room(out: Path, overwrite: bool) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror}") from None
    old = [path for path in out.iterdir() if FILES.fullmatch(path.name)]
    if old and not overwrite:
        raise ConfigError(f"--out {out}: there is a capture in it already; name another folder, or add --overwrite")
    for path in old:
        path.unlink()


def _command(command: tuple[str, ...]) -> list[str]:
    """`command` as it can be run; torchrun also where its folder is not in PATH."""
    if shutil.which(command[0]):
        return list(command)
    if command[0] == "torchrun":
        return [sys.executable, "-m", "torch.distributed.run", *command[1:]]
    if command[0].endswith(".py"):
        return [sys.executable, *command]
    raise ConfigError(f"{command[0]}: no such program; expected a command like: torchrun --nproc-per-node 2 script.py")


def _run(command: list[str], environment: dict[str, str], as_json: bool) -> int:
    """The command's exit code. Ctrl-C goes to all of its processes; they then write what they have."""
    with subprocess.Popen(command, env=environment, stdout=sys.stderr if as_json else None) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            try:
                process.wait(INTERRUPT_S)
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                process.kill()
            return 130


def summaries(out: Path) -> list[RankSummary]:
    """What is in a folder, by rank."""
    found = []
    for path in out.glob("rank-*.about.json"):
        about = json.loads(path.read_text())
        durations: dict[str, list[float]] = {"captured": [], "plain": []}
        iterations = about["iterations"]
        kinds = [iteration["kind"] for iteration in iterations]
        # Before the first capture things warm up; without --measure all that is plain is there.
        warm_up = kinds.index("captured") if about["pairs"] == 0 else about["skip"]
        for iteration in iterations[warm_up:]:
            if iteration["kind"] in durations:
                durations[iteration["kind"]].append((iteration["end_unix_ns"] - iteration["start_unix_ns"]) / 1e9)
        rank = about["rank"]
        found.append(
            RankSummary(
                rank,
                about["host"],
                about["backend"],
                len(durations["captured"]),
                statistics.median(durations["captured"] or [0.0]),
                statistics.median(durations["plain"] or [0.0]),
                sum(agent["calls"] for agent in about["agents"]),
                sum(agent["packets"] for agent in about["agents"]),
                sum(agent["packets_lost"] for agent in about["agents"]),
                sum(file.stat().st_size for file in out.glob(f"rank-{rank}.*")),
            )
        )
    return sorted(found, key=lambda summary: summary.rank)


def _report(ranks: list[RankSummary], out: Path, code: int, as_json: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    world_size = json.loads((out / f"rank-{ranks[0].rank}.about.json").read_text())["world_size"]
    missing = sorted(set(range(world_size)) - {rank.rank for rank in ranks})
    measured = [rank.iteration_s / rank.plain_s - 1 for rank in ranks if rank.plain_s]
    cost = statistics.mean(measured) if measured else None
    if as_json:
        listed = [asdict(rank) for rank in ranks]
        told = {"folder": str(out), "exit_code": code, "world_size": world_size, "missing": missing, "cost": cost}
        click.echo(json.dumps(told | {"ranks": listed}))
        return
    table = Table()
    for column in ("rank", "host", "backend", "iterations", "median", *(["not captured"] if measured else [])):
        table.add_column(column, justify="left" if column in ("host", "backend") else "right")
    for column in ("all-reduces", "packets", "lost", "size"):
        table.add_column(column, justify="right")
    for rank in ranks:
        table.add_row(
            str(rank.rank),
            rank.host,
            rank.backend,
            str(rank.iterations),
            f"{rank.iteration_s * 1e3:.2f} ms",
            *([f"{rank.plain_s * 1e3:.2f} ms"] if measured else []),
            f"{rank.calls:,}",
            f"{rank.packets:,}",
            f"{rank.packets_lost:,}",
            f"{rank.trace_bytes / 1e6:.1f} MB",
        )
    console = Console()
    console.print(table)
    if cost is not None:
        console.print(f"captured iterations took {cost:+.1%} longer than those between them")
    if missing:
        console.print(f"[bold]missing:[/] ranks {', '.join(map(str, missing))} left no trace")
    if any(rank.packets_lost for rank in ranks):
        console.print("the lost packets had no room: capture fewer iterations (--steps), or more packets (--packets)")
    console.print(f"traces in {out}")
