"""`switchml trace capture -- torchrun … script.py`: run a script as it is, and profile every rank of it."""

from __future__ import annotations

import itertools
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

FILES = re.compile(r"rank-\d+\.(json\.gz|et\.json|sizes\.json|wire\.npz|about\.json)")
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
            self.fail(f"{value}: expected SKIP:STOP with 1 <= SKIP < STOP, as in 3:13 for iterations 3 to 12", param)
        return skip, stop


@dataclass(frozen=True)
class RankSummary:
    """What one rank has left."""

    rank: int
    host: str
    backend: str
    iterations: int
    """Captured ones."""
    iteration_s: float
    """Median of the captured ones."""
    plain_s: float
    """Median of those between captures; 0 without --measure."""
    costs: list[float]
    """With --measure, of each pair: how much longer captured iterations took than those before them, medians."""
    cpu_costs: list[float]
    """The same in CPU time of the process: where others use the cores too, time says little."""
    all_reduces: int
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
    help="Iterations to capture, counted from 0: from SKIP to before STOP. [default: 3:13]",
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
@click.option("--graph/--no-graph", default=True, show_default=True, help="torch's execution trace, of one iteration.")
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
    return sorted((_summary(path) for path in out.glob("rank-*.about.json")), key=lambda summary: summary.rank)


def _summary(path: Path) -> RankSummary:
    about = json.loads(path.read_text())
    windows: dict[str, list[list[tuple[float, float]]]] = {"plain": [], "captured": [], "graph": []}
    for kind, run in itertools.groupby(about["iterations"][about["skip"] :], lambda iteration: iteration["kind"]):
        windows[kind].append([((one["end_unix_ns"] - one["start_unix_ns"]) / 1e9, one["cpu_ns"] / 1e9) for one in run])
    pairs = list(zip(windows["plain"], windows["captured"], strict=False))
    rank = about["rank"]
    return RankSummary(
        rank=rank,
        host=about["host"],
        backend=about["backend"],
        iterations=sum(map(len, windows["captured"])),
        iteration_s=_median(windows["captured"], 0),
        plain_s=_median(windows["plain"], 0),
        costs=[_median([captured], 0) / _median([plain], 0) - 1 for plain, captured in pairs],
        cpu_costs=[_median([captured], 1) / _median([plain], 1) - 1 for plain, captured in pairs],
        all_reduces=sum(agent["calls"] for agent in about["agents"]),
        packets=sum(agent["packets"] for agent in about["agents"]),
        packets_lost=sum(agent["packets_lost"] for agent in about["agents"]),
        trace_bytes=sum(file.stat().st_size for file in path.parent.glob(f"rank-{rank}.*")),
    )


def _median(windows: list[list[tuple[float, float]]], column: int) -> float:
    values = [iteration[column] for window in windows for iteration in window]
    return statistics.median(values) if values else 0.0


def _report(ranks: list[RankSummary], out: Path, code: int, as_json: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    world_size = json.loads((out / f"rank-{ranks[0].rank}.about.json").read_text())["world_size"]
    missing = sorted(set(range(world_size)) - {rank.rank for rank in ranks})
    costs = [cost for rank in ranks for cost in rank.costs]
    cost = statistics.median(costs) if costs else None
    cpu_cost = statistics.median(cost for rank in ranks for cost in rank.cpu_costs) if costs else None
    if as_json:
        told = {"folder": str(out), "exit_code": code, "world_size": world_size, "missing": missing}
        told |= {"cost": cost, "cpu_cost": cpu_cost, "ranks": [asdict(rank) for rank in ranks]}
        click.echo(json.dumps(told))
        return
    several = len({rank.host for rank in ranks}) > 1
    table = Table(title=f"{world_size} ranks, {ranks[0].backend}, {ranks[0].iterations} iterations captured")
    columns = ["rank", *(["host"] if several else []), "iteration", *(["without"] if costs else [])]
    for column in [*columns, "all-reduces", "packets", "not noted", "files"]:
        table.add_column(column, justify="left" if column == "host" else "right")
    for rank in ranks:
        table.add_row(
            str(rank.rank),
            *([rank.host] if several else []),
            f"{rank.iteration_s * 1e3:.2f} ms",
            *([f"{rank.plain_s * 1e3:.2f} ms"] if costs else []),
            f"{rank.all_reduces:,}",
            f"{rank.packets:,}",
            f"{rank.packets_lost:,}",
            f"{rank.trace_bytes / 1e6:.1f} MB",
        )
    console = Console()
    console.print(table)
    if cost is not None:
        low, high = min(costs), max(costs)
        console.print(
            f"captured iterations took {cost:+.1%} of time and {cpu_cost:+.1%} of CPU time more than those before them "
            f"(medians of {len(costs)} pairs; time {low:+.1%} to {high:+.1%})",
            soft_wrap=True,
        )
    if missing:
        console.print(f"[bold]no trace[/] of rank {', '.join(map(str, missing))}")
    if any(rank.packets_lost for rank in ranks):
        console.print("packets that were not noted had no room: capture fewer iterations, or give more --packets")
    console.print(f"traces in {out}", soft_wrap=True)
