"""`switchml doctor`: what this machine supports, and what to install or configure for the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.text import Text

from switchml import tables
from switchml.cli.options import NAMED_SECONDS, Count
from switchml.tables import Table, text, wide_option
from switchml.terminal import progress, say

if TYPE_CHECKING:
    from host_agent.checkup import Finding

MARKS = {"ok": ("✓", "green"), "missing": ("–", "yellow"), "broken": ("✗", "bold red")}


@click.command()
@click.option("--seconds", type=NAMED_SECONDS, default=1.0, show_default=True, help="Duration of the all-reduce trial.")
@click.option("--ranks", type=Count(1, 64), default=2, show_default=True, help="Ranks in the trial.")
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    help="Compare the torch backend's collectives and training there with exact results and Gloo. [default: cuda, if "
    "there is one]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@wide_option
def doctor(seconds: float, ranks: int, device: str | None, as_json: bool) -> None:
    """Check what this machine can do and what it lacks.

    Checks the kernel, the user's privileges, and the programs and packages that switchml can use; then runs an
    aggregator and some ranks on loopback for a second and verifies their sums. With a GPU, or --device, it also
    compares the torch backend on that device with exact results, which takes less than a minute. Exit code 1 if the
    trial or the comparison fails.
    """
    import json

    if seconds <= 0:
        raise click.UsageError("expected --seconds above 0")

    from host_agent import checkup

    with progress("checking"):
        findings = checkup.run_checks()
        findings.append(checkup.compared(device))
        findings.append(trial(ranks, seconds))
    if as_json:
        click.echo(json.dumps({finding.name: finding.as_dict() for finding in findings}, indent=2))
    else:
        show(findings)
    if any(finding.state == "broken" for finding in findings[-2:]):
        raise click.exceptions.Exit(1)


def show(findings: list[Finding]) -> None:
    """Print the findings as a table, and advice below it, so that addresses and commands are not truncated."""
    table = Table([text("", least=1), text("check"), text("found")])
    for finding in findings:
        table.add(Text(*MARKS[finding.state]), finding.name, finding.detail)
    tables.show(table)
    to_do = [finding for finding in findings if finding.advice]
    if to_do:
        say(("\nTo do", "bold"))
    for finding in to_do:
        say(f"- {finding.name}: {finding.advice}")


def trial(ranks: int, seconds: float) -> Finding:
    """All-reduce 1 MiB tensors for `seconds` among `ranks` threads, through an aggregator in this process."""
    import time
    from concurrent.futures import ThreadPoolExecutor

    import numpy as np

    from host_agent.agent import HostAgent
    from host_agent.checkup import Finding
    from switchml.aggregator.software import SoftwareDataplane
    from switchml.control.server import Controller

    name, numel, rounds, elapsed_s, problems = "all-reduce", 1 << 18, [0] * ranks, [0.0] * ranks, []
    dataplane = SoftwareDataplane("127.0.0.1", 0).start()
    controller = Controller(dataplane, bind="127.0.0.1", control_port=0, events_port=0)
    try:
        address = "{}:{}".format(*controller.start().control)

        def work(rank: int) -> None:
            try:
                with HostAgent.join(address, job="doctor", rank=rank, world_size=ranks, timeout_s=60) as agent:
                    x = np.full(numel, rank + 1, np.float32)
                    expected = ranks * (ranks + 1) / 2
                    start_s, is_running = time.monotonic(), True
                    while is_running:  # rank 0's clock decides for all ranks, so that they stop after the same round
                        total = agent.allreduce(x, timeout_s=30)
                        if not (total == expected).all():
                            raise AssertionError(f"a sum is {total[total != expected][0]}, expected {expected}")
                        rounds[rank] += 1
                        in_time = rank == 0 and time.monotonic() - start_s < seconds
                        is_running = bool(agent.allreduce(np.array([in_time], np.int32), timeout_s=30)[0])
                    elapsed_s[rank] = time.monotonic() - start_s
            except Exception as error:  # reported in the table
                problems.append(f"rank {rank}: {type(error).__name__}: {error}")

        with ThreadPoolExecutor(ranks) as threads:
            threads.map(work, range(ranks))
    finally:
        controller.stop()
        dataplane.stop()
    if problems:
        return Finding(name, "broken", "; ".join(problems), "run with `switchml aggregate -v` and please report this")
    rate = rounds[0] * numel / elapsed_s[0] / 1e6
    return Finding(
        name,
        "ok",
        f"{ranks} ranks, {rounds[0]} × 1 MiB in {elapsed_s[0]:.1f} s, {rate:.0f} million elements a second, "
        "all sums right",
    )
