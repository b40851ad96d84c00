"""`switchml stf`: run a p4c STF test file on the P4 switch, in this process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from emulator.surface.cli.options import json_option
from switchml.terminal import say

if TYPE_CHECKING:
    from emulator.p4switch.stf.stf import Report


@click.command()
@click.argument("program", type=click.Path(exists=True, dir_okay=False))
@click.argument("stf_file", metavar="FILE.stf", type=click.Path(exists=True, dir_okay=False))
@json_option
@click.option("-v", "--verbose", is_flag=True, help="Also show the output packets.")
def stf(program: str, stf_file: str, as_json: bool, verbose: bool) -> None:
    """Run FILE.stf on PROGRAM (p4c's BMv2 JSON). Exit code 0: all packets were as expected."""
    from emulator.p4switch.program.loader import loader
    from emulator.p4switch.stf.stf import run_file

    report = run_file(loader.load(program), stf_file)
    if as_json:
        sent = {str(port): [data.hex() for data in packets] for port, packets in report.sent.items()}
        found = {"passed": report.has_passed, "failures": report.failures, "warnings": report.warnings, "sent": sent}
        click.echo(json.dumps(found))
    else:
        show(report, verbose)
    raise SystemExit(0 if report.has_passed else 1)


def show(report: Report, verbose: bool) -> None:
    """Print failures and the overall result."""
    for warning in report.warnings:
        say(f"warning: {warning}", err=True)
    for failure in report.failures:
        say(failure)
    if verbose:
        for port, packets in report.sent.items():
            for data in packets:
                click.echo(f"{port} {data.hex()}")  # a packet is not wrapped, so that it can be copied
    say("passed" if report.has_passed else f"failed: {len(report.failures)}")
