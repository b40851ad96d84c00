"""`switchml emulate … -- SCRIPT`: a training script on emulated accelerators."""

from typing import Any

import click

from emulator.surface.cli.options import output
from emulator.surface.job_options import DEFAULTS
from switchml import tables
from switchml.cli.extras import require
from switchml.cli.options import GroupedCommand, given_parameters
from switchml.errors import ConfigError
from switchml.terminal import say
from switchml.units import memory_text

SCRIPT = "emulator.surface.cli.emulate.script"
"""Key of click's context for the words after `--`."""


class WithScript(GroupedCommand):
    """A command with a second command line after `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[SCRIPT], args = args[at + 1 :], args[:at]
        return super().parse_args(ctx, args)


_SHOWN_MODULES = 10
_TAKEN = ("cluster", "accelerator", "gpus", "allreduce", "as_json", "time_budget_s", "timeline_file")
"""Parameters of `switchml emulate` that are allowed with a script; the script itself determines all others."""


def emulate_script(as_json: bool) -> None:
    """Emulate the script after `--` and print the results. Raises ConfigError for options that describe a job in other
    ways."""
    require("torch")
    context = click.get_current_context()
    for parameter in given_parameters(context):
        if parameter.name not in _TAKEN and parameter.name in context.params:
            raise ConfigError(
                f"{parameter.opts[0]}: the script after -- says that itself; "
                "expected --cluster, --accelerator, --gpus, --allreduce, --timeline or --json"
            )
    words = context.meta[SCRIPT]
    if not words:
        raise ConfigError("no script follows --")
    from emulator.peers.script.launch import play

    options = context.params
    result = play(
        words,
        options.get("cluster") or DEFAULTS["cluster"],
        options.get("gpus") or 0,
        options.get("allreduce") or "auto",
        accelerator=options.get("accelerator") or "",
        limit_s=options.get("time_budget_s"),
        profile=options.get("timeline_file"),
        quiet=as_json,
    )
    output(as_json, lambda: result, lambda: show(result))


def show(result: dict[str, Any]) -> None:
    """Print the results of a script."""
    say((result["script"], "bold"), f" on {result['gpus']} x {result['accelerator']} ({result['cluster']})\n")
    table = tables.Table([tables.text(""), tables.number("")])
    whole_s = result["iteration_s"]
    table.add("iteration", f"{whole_s * 1e3:,.1f} ms" if whole_s < 1 else f"{whole_s:,.2f} s")
    for name, seconds in result["parts"].items():
        if seconds > 0.0005 * whole_s:
            table.add(f"  {name}", f"{seconds / whole_s:.1%}")
    if result["collectives"]:
        table.add()
        table.add("communication, hidden or not", f"{result['communication_s'] * 1e3:,.1f} ms")
        for name, entry in result["collectives"].items():
            table.add(f"  {entry['calls']:,.0f} x {name.replace('_', '-')}", f"{entry['bytes'] / 1e9:,.2f} GB")
    table.add()
    capacity = result["capacity_bytes"]
    table.add("memory, allocated at the peak", f"{memory_text(result['allocated_bytes'])} of {memory_text(capacity)}")
    for name, size in result["memory"].items():
        if size > 0.0005 * result["allocated_bytes"]:
            table.add(f"  {name}", memory_text(size))
    table.add("memory, reserved", memory_text(result["reserved_bytes"]))
    tables.show(table)
    _show_stages(result)
    _show_modules(result)
    if result["notes"]:
        say("")
    for note in result["notes"]:
        say(("note: ", "bold"), note)


def _show_stages(result: dict[str, Any]) -> None:
    """Print the ranks that differ. Other figures are those of the rank that waits least for others."""
    if not result.get("stages"):
        return
    say("")
    table = tables.Table(
        [
            tables.number("rank"),
            tables.number("bubble", "%"),
            tables.number("allocated", "GiB"),
            tables.number("reserved", "GiB"),
            tables.number("weights", "GiB"),
        ]
    )
    for one in result["stages"]:
        sizes = (one[f"{what}_bytes"] / 2**30 for what in ("allocated", "reserved", "weights"))
        bubble = f"{100 * one['bubble_share']:.1f}"
        table.add(str(one["rank"]), bubble, *(f"{size:,.1f}" for size in sizes))
    tables.show(table)
    say(("note: ", "bold"), f"other figures are those of rank {result['rank']}, which waits least for others")


def _show_modules(result: dict[str, Any]) -> None:
    """Print the modules with the longest time, forward and backward, and their activations saved for
    the backward pass."""
    modules = list(result["modules"].items())
    if len(modules) < 2:
        return
    say("")
    table = tables.Table(
        [
            tables.name("module"),
            tables.number("time", "ms"),
            tables.number("share", "%"),
            tables.number("activations", "GiB"),
        ]
    )
    shown = [(name or "in no module: loss, optimizer", entry) for name, entry in modules[:_SHOWN_MODULES]]
    if rest := [entry for _, entry in modules[_SHOWN_MODULES:]]:
        shown.append((f"others ({len(rest)})", {key: sum(entry[key] for entry in rest) for key in rest[0]}))
    for name, entry in shown:
        share = 100 * entry["seconds"] / result["iteration_s"]
        table.add(name, f"{entry['seconds'] * 1e3:,.2f}", f"{share:.1f}", f"{entry['activation_bytes'] / 2**30:.2f}")
    tables.show(table)
