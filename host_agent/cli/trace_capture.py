"""`switchml trace capture -- torchrun … script.py`: run an unmodified script and profile every rank."""

import json
import os
import re
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from host_agent.cli import trace_capture_cost as costs
from host_agent.launching import run_command
from switchml.cli.options import Count, given_parameters
from switchml.cli.output_options import OutputFolder
from switchml.errors import ConfigError
from switchml.runtime.raising import acknowledge
from switchml.tables import Table, number, show, text, wide_option
from switchml.terminal import say

FILES = re.compile(r"rank-\d+\.(json\.gz|et\.json|sizes\.json|wire\.npz|about\.json)")
"""Pattern of a capture's file names (host_agent/profile/files.py)."""
FLIGHT_RECORDS = 20_000
"""Default capacity of torch's flight recorder in collectives (torch's own default: 2,000); sizes of collectives that it
dropped are unknown."""
INTERRUPT_S = 60.0
"""Seconds that the ranks have to write their traces after Ctrl-C."""


class Steps(click.ParamType[tuple[int, int]]):
    """Command-line parameter type SKIP:STOP."""

    name = "SKIP:STOP"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"(\d+):(\d+)", value)
        skip, stop = (int(match[1]), int(match[2])) if match else (0, 0)
        if not 1 <= skip < stop:
            self.fail(f"{value}: expected SKIP:STOP with 1 <= SKIP < STOP, as in 3:13 for iterations 3 to 12", param)
        return skip, stop


@dataclass(frozen=True)
class RankSummary:
    """Summary of one rank's capture. `iterations`: number of captured iterations, `iteration_s` their median duration,
    `plain_s` that of the iterations between captures (0 without --measure). `start_s`: median cost of starting a
    capture: the call itself, and the slowdown of the iteration after it."""

    rank: int
    host: str
    backend: str
    iterations: int
    iteration_s: float
    plain_s: float
    start_s: float
    stop_s: float
    all_reduces: int
    packets: int
    packets_lost: int
    trace_bytes: int


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--out", type=OutputFolder(), default=Path("traces"), show_default=True, help="Folder for the traces.")
@click.option(
    "--steps",
    type=Steps(),
    default=(3, 13),
    help="Iterations to capture: SKIP to STOP - 1, counted from 0. [default: 3:13]",
)
@click.option("--measure", type=click.IntRange(1), metavar="PAIRS", help="Measure the cost of capturing: "
              "alternate PAIRS times between STOP-SKIP iterations without capture and as many with it.")  # fmt: skip
@click.option("--shapes", is_flag=True, help="Record the shapes of all operators' tensors; costs time and memory.")
@click.option(
    "--packets",
    type=Count(1),
    default=1 << 20,
    show_default=True,
    help="Maximum number of packets each agent logs (32 bytes each).",
)
@click.option(
    "--graph/--no-graph", default=True, show_default=True, help="Record torch's execution trace of one iteration."
)
@click.option(
    "--emulate",
    "cluster",
    metavar="CLUSTER",
    help="Run nothing on a GPU: play the script as `switchml emulate` does, on this cluster, and write what it did.",
)
@click.option("--gpus", type=Count(1), help="With --emulate: number of accelerators.  [default: as many as torchrun's]")
@click.option("--overwrite", is_flag=True, help="Replace an existing capture in the folder.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the table.")
@wide_option
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def capture(
    out: Path,
    steps: tuple[int, int],
    measure: int | None,
    shapes: bool,
    packets: int,
    graph: bool,
    cluster: str | None,
    gpus: int | None,
    overwrite: bool,
    as_json: bool,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND (torchrun … script.py), and write a trace of some iterations of every rank: torch's profile and
    execution trace, and each packet of switchml's transport. The script needs no changes; its Python must have switchml
    installed, and it must use torch's optimizers, whose steps delimit the iterations.
    """
    out = out.absolute()
    if gpus is not None and cluster is None:
        raise click.UsageError("--gpus needs --emulate")
    _make_room(out, overwrite)
    if cluster is not None:
        _emulate(cluster, gpus, out, as_json, command)
        return
    skip, stop = steps
    environment = os.environ | {
        "SWITCHML_TRACE_DIR": str(out),
        "SWITCHML_TRACE_STEPS": f"{skip}:{stop}",
        "SWITCHML_TRACE_PACKETS": str(packets),
        "SWITCHML_TRACE_PAIRS": str(measure or 0),
        "SWITCHML_TRACE_GRAPH": str(int(graph)),
        "SWITCHML_TRACE_SHAPES": str(int(shapes)),
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "1",
    }
    if "TORCH_NCCL_TRACE_BUFFER_SIZE" not in os.environ:  # the variable's older name
        environment.setdefault("TORCH_FR_BUFFER_SIZE", str(FLIGHT_RECORDS))
    try:
        code = run_command(command, environment, stdout=sys.stderr if as_json else None, interrupted_s=INTERRUPT_S)
    except KeyboardInterrupt:  # the ranks received it, too, and have written their captures
        acknowledge()
        code = 130
    abouts = _abouts(out)
    if not abouts:
        ended = f"{command[0]} ended with exit code {code}; " if code else ""
        raise ConfigError(
            f"{ended}no rank has written a trace into {out}: if no rank printed an error, the script must "
            f"run more than {skip} steps with a torch optimizer (--steps), in a Python that has switchml installed"
        )
    _report(abouts, out, code, as_json)
    if code:
        raise ConfigError(f"{command[0]} ended with exit code {code}; {len(abouts)} ranks left a trace in {out}")


def _make_room(out: Path, overwrite: bool) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror}") from None
    old = [path for path in out.iterdir() if FILES.fullmatch(path.name)]
    if old and not overwrite:
        raise ConfigError(f"--out {out}: there is a capture in it already; choose another folder, or add --overwrite")
    for path in old:
        path.unlink()


def _abouts(out: Path) -> list[dict[str, Any]]:
    """Load the ranks' descriptions of their captures, sorted by rank."""
    return sorted((json.loads(path.read_text()) for path in out.glob("rank-*.about.json")), key=lambda one: one["rank"])


def _summary(about: dict[str, Any], out: Path) -> RankSummary:
    windows = costs.windows(about)
    plain_s = costs.median(windows["plain"], costs.TIME)
    lead_in_s = costs.median(windows["lead-in"], costs.TIME)
    rank = about["rank"]
    return RankSummary(
        rank=rank,
        host=about["host"],
        backend=about["backend"],
        iterations=sum(map(len, windows["captured"])),
        iteration_s=costs.median(windows["captured"], costs.TIME),
        plain_s=plain_s,
        start_s=statistics.median(one["start_s"] for one in about["captures"])
        + (max(lead_in_s - plain_s, 0.0) if plain_s and lead_in_s else 0.0),
        stop_s=statistics.median(one["stop_s"] for one in about["captures"]),
        all_reduces=sum(agent["calls"] for agent in about["agents"]),
        packets=sum(agent["packets"] for agent in about["agents"]),
        packets_lost=sum(agent["packets_lost"] for agent in about["agents"]),
        trace_bytes=sum(file.stat().st_size for file in out.glob(f"rank-{rank}.*")),
    )


_OF_RUNS = ("steps", "measure", "shapes", "packets", "graph")
"""Parameters that do not apply to an emulated script."""


def _emulate(cluster: str, gpus: int | None, out: Path, as_json: bool, command: tuple[str, ...]) -> None:
    """Emulate the script with `switchml emulate`, which is part of another package."""
    context = click.get_current_context()
    for parameter in given_parameters(context):
        if parameter.name in _OF_RUNS:
            raise click.UsageError(
                f"{parameter.opts[0]} can't be combined with --emulate, which plays three iterations"
            )
    root = context.find_root()
    emulate = root.command.get_command(root, "emulate") if isinstance(root.command, click.Group) else None
    if emulate is None:
        raise click.UsageError("--emulate: the emulator is not installed")
    out.mkdir(parents=True, exist_ok=True)
    words = ["--cluster", cluster, "--timeline", str(out / "rank-0.json.gz")]
    words += ["--gpus", str(gpus)] if gpus is not None else []
    words += ["--json"] if as_json else []
    emulate.main([*words, "--", *command], standalone_mode=False)


def _report(abouts: list[dict[str, Any]], out: Path, code: int, as_json: bool) -> None:
    ranks = [_summary(about, out) for about in abouts]
    world_size = abouts[0]["world_size"]
    missing = sorted(set(range(world_size)) - {rank.rank for rank in ranks})
    cost, cpu_cost = (costs.measure(abouts, column) for column in (costs.TIME, costs.CPU_TIME))
    if as_json:
        fields = {"folder": str(out), "exit_code": code, "world_size": world_size, "missing": missing}
        fields |= {"cost": cost and asdict(cost), "cpu_cost": cpu_cost and asdict(cpu_cost)}
        click.echo(json.dumps(fields | {"ranks": [asdict(rank) for rank in ranks]}))
        return
    with_cost = cost is not None
    table = Table(
        [
            number("rank"),
            text("host", drop=1),
            number("iteration", "ms"),
            number("without", "ms", drop=1),
            number("collectives", drop=1),
            number("packets", drop=2),
            number("not recorded", "packets", drop=3),
            number("files", "MB"),
        ],
        title=f"{world_size} ranks, {ranks[0].backend}, {ranks[0].iterations} iterations captured",
    )
    several = len({rank.host for rank in ranks}) > 1
    by_agents = any(rank.all_reduces for rank in ranks)  # False for other backends, whose packets are not counted
    for rank in ranks:
        table.add(
            str(rank.rank),
            rank.host if several else "",
            f"{rank.iteration_s * 1e3:,.2f}",
            f"{rank.plain_s * 1e3:,.2f}" if with_cost else "",
            f"{rank.all_reduces:,}" if by_agents else "",
            f"{rank.packets:,}" if by_agents else "",
            f"{rank.packets_lost:,}" if by_agents else "",
            f"{rank.trace_bytes / 1e6:,.1f}",
        )
    show(table)
    if cost and cpu_cost:
        _report_cost(cost, cpu_cost, ranks)
    if missing:
        say(("no trace", "bold"), f" of rank {', '.join(map(str, missing))}")
    if any(rank.packets_lost for rank in ranks):
        say("some packets did not fit in the log: capture fewer iterations, or raise --packets")


def _report_cost(cost: costs.Cost, cpu_cost: costs.Cost, ranks: list[RankSummary]) -> None:
    def share(one: costs.Cost) -> str:
        interval = "" if one.low is None else f" ({one.low:+.1%} to {one.high:+.1%})"
        return f"{one.cost:+.1%}{interval}"

    many = len(cost.pairs)
    how = f"median of {many} pairs, all ranks together, with its 95 % interval"
    say(
        f"a captured iteration takes {share(cost)} of time and {share(cpu_cost)} of CPU time more than one without: "
        f"{how if many > 1 else 'one pair, all ranks together; --measure 2 or more also tells how sure that is'}"
    )
    start_ms, stop_ms = (max(getattr(rank, name) for rank in ranks) * 1e3 for name in ("start_s", "stop_s"))
    say(f"in addition, once per capture: {start_ms:.0f} ms to start and {stop_ms:.0f} ms to stop it")
    if (more := costs.advice(cost)) is not None:
        say(f"times vary: --measure {more} would give the cost to about ±2 %")
