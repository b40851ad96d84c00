"""The options that `switchml emulate` chose where they were left out, and the table of the best splits of a job."""

from typing import Any

from switchml import tables
from switchml.terminal import say
from switchml.units import GIB, TimeUnit

COUNTED = "*"
"""Mark of a number of virtual stages where embedding and loss count as layers."""


def ranking_table(ranking: Any) -> tables.Table:
    """One row per split, fastest first."""
    unit = TimeUnit(one.iteration_s for one in ranking)
    has_experts = any(one.job.ep > 1 for one in ranking)
    table = tables.Table(
        [
            *(tables.number(name) for name in ("tp", "pp", "dp", *(["ep"] if has_experts else []))),
            tables.number("virtual", drop=2),
            tables.number("ZeRO"),
            tables.number("micro"),
            tables.text("recompute"),
            tables.text("implementation", drop=1),
            tables.number("iteration", unit.name),
            tables.number("memory", "GiB"),
        ]
    )
    for one in ranking:
        job = one.job
        counts = [job.tp, job.pp, job.dp, *([job.ep] if has_experts else [])]
        table.add(
            *map(str, counts),
            f"{job.virtual_stages}{COUNTED * job.counts_loss}",
            str(job.zero),
            str(job.micro_batch),
            job.recompute,
            job.implementation or "-",
            unit.text(one.iteration_s),
            f"{one.memory_bytes / GIB:.1f}",
        )
    return table


def show_choice(emulation: Any) -> None:
    """Print the choice, its best alternative, and the ranking if requested."""
    choice = emulation.request.choice
    for line in choice.lines(emulation.plan.job):
        say(line)
    if choice.ranking:
        say()
        tables.show(ranking_table(choice.ranking))
        if any(one.job.counts_loss for one in choice.ranking):
            say(f"{COUNTED} with --count-embedding --count-loss")
        say()
