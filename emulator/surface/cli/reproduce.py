"""`switchml reproduce`: papers' claims compared with this project's results."""

import os
from pathlib import Path

import click

from emulator.surface.cli.options import OUTPUT_FOLDER, json_option, output, plot_option
from switchml.errors import ConfigError
from switchml.terminal import progress, say

PAGE, TABLE = "reproduce.html", "claims.md"  # TABLE: report.TABLE, which is slow to import


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from emulator.lab.reproduce import claims

    return [name for name in claims.names() if name.startswith(incomplete)]


@click.command()
@click.argument("names", nargs=-1, metavar="[CLAIM|FILE.toml]…", shell_complete=_complete)
@click.option("--all", "is_all", is_flag=True, help="Run every built-in claim.")
@click.option("--quick", is_flag=True, help="Run only claims that take at most half a minute and need no root.")
@click.option("--out", type=OUTPUT_FOLDER, metavar="DIR", help=f"Write {PAGE} and {TABLE} there, both with plots.")
@plot_option
@json_option
def reproduce(
    names: tuple[str, ...], is_all: bool, quick: bool, out: Path | None, plot_file: Path | None, as_json: bool
) -> None:
    """Run the commands of a paper's claim, and print the paper's figures beside those reproduced here, with the
    differences and reasons.

    Without CLAIM, list the available claims: each is a TOML file with its source, commands, figures and tolerance, and
    FILE.toml may be one of your own. Missed figures remain in the table; the exit code is 1 only if a command failed.
    """
    from emulator.lab.reproduce import claims, report, running
    from switchml.tables import show

    if (is_all or quick) and names:
        raise click.UsageError("name claims, or give --all or --quick")
    chosen = claims.load_all(names)
    if not names and not is_all and not quick:
        if out or plot_file:
            raise click.UsageError("name claims, or give --all or --quick")
        rows = [
            {key: getattr(one, key) for key in ("id", "system", "title", "source", "how", "minutes", "needs_root")}
            for one in chosen
        ]
        output(as_json, lambda: {"claims": rows}, lambda: show(report.listed(chosen)))
        return
    if quick:
        chosen = [one for one in chosen if one.minutes <= report.QUICK_MINUTES and not one.needs_root]
    if out is not None:
        from switchml.pages import page

        page.check_extras()
    outcomes, failures = [], {}
    with progress("reproducing", total=len(chosen)) as task:
        for done, claim in enumerate(chosen):
            task.update(done, claim.id)
            try:
                if claim.needs_root and os.geteuid():
                    raise ConfigError("needs root, for network namespaces")
                outcomes.append(running.reproduce(claim))
            except (running.ReproductionFailed, ConfigError) as error:
                failures[claim.id] = str(error)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        report.write_page(outcomes, failures, out / PAGE)
        report.write_markdown(outcomes, out, report.PICTURES)
    if plot_file is not None:
        report.draw(outcomes, plot_file)
    output(
        as_json,
        lambda: {"claims": [one.to_json() for one in outcomes], "failures": failures},
        lambda: show(report.table(outcomes)),
    )
    for name, reason in failures.items():
        say(f"switchml: error: {name}: {reason.removeprefix(f'{name}: ')}", err=True)
    if failures:
        raise click.exceptions.Exit(1)
