"""Prints a diagnosis on the terminal: time by part, ranks waited for, and recommended changes."""

from emulator.jobs.replay.report import critical_table, operation_text
from emulator.traces.diagnosis.agreement import replay_warning
from emulator.traces.diagnosis.checks import Diagnosis
from emulator.traces.diagnosis.context import Finding
from emulator.traces.join import MEAN
from switchml import tables
from switchml.terminal import say
from switchml.units import TimeUnit, time_text

MAX_RANKS = 16
LATE_BY_CHANCE = 0.02
"""Maximum share by which the mean iteration may be shorter than traced without a remark."""
COLOUR = {"high": "red", "medium": "yellow", "low": "cyan"}


def show(diagnosis: Diagnosis) -> None:
    """Print a diagnosis."""
    context = diagnosis.context
    ranks = len(context.graph.ranks)
    is_mean = context.joined.iteration == MEAN
    job, diagnosed = time_text(context.joined.traced_s), time_text(context.joined.iteration_s)
    which = f"{'mean ' * is_mean}iteration {diagnosed} as traced"
    if job != diagnosed:  # some iterations are not similar to the others
        which = (
            f"iteration {job} as traced; diagnosed is {'the mean' if is_mean else 'one'} of those alike, {diagnosed}"
        )
    replayed = f"{time_text(context.iteration_s)} replayed ({diagnosis.replay_error:+.1%})"
    say(f"{ranks} rank{'s' * (ranks != 1)}, {which}, {replayed}")
    if is_mean and ranks > 1 and diagnosis.replay_error < -LATE_BY_CHANCE:
        say("On average no rank is late by chance: `switchml trace replay` plays all iterations.", style="dim")
    for line in replay_warning(context):
        say(("Beware: ", "bold red"), line)
    say()
    tables.show(_by_rank(diagnosis), critical_table(context.path))
    for place, finding in enumerate(diagnosis.findings, 1):
        _say_finding(diagnosis, place, finding)
    say()
    if not diagnosis.findings:
        checked = f" no check found {context.least_share:.0%} of the iteration or more."
        say(("Nothing to change:", "bold"), checked)
    for line in context.joined.assumptions:
        say(f"Assumed: {line}", style="dim")


def _by_rank(diagnosis: Diagnosis) -> tables.Table:
    """Return a table of each rank's time by part, and the rank it waits for most."""
    context = diagnosis.context
    rows = context.causes.by_rank()
    names = list(rows[0]) if rows else []
    unit = TimeUnit(seconds for row in rows for seconds in row.values())
    # Without enough space, the parts with the least time are hidden first.
    small = sorted(names, key=lambda name: -sum(row[name] for row in rows))
    columns = [
        tables.text("rank"),
        *(tables.number(name, unit.name, drop=small.index(name)) for name in names),
        tables.text("waits most for", drop=1),
    ]
    table = tables.Table(columns, title="Where the time goes")
    for rank, row in list(enumerate(rows))[:MAX_RANKS]:
        waited_s = context.causes.waiting_s[rank].copy()
        waited_s[rank] = 0.0
        peer = int(waited_s.argmax())
        most = f"{context.short_name(peer)} ({time_text(float(waited_s[peer]))})" if waited_s[peer] > 0 else "nobody"
        table.add(context.short_name(rank), *map(unit.text, row.values()), most)
    if len(rows) > MAX_RANKS:
        table.notes = [f"{len(rows) - MAX_RANKS} further ranks are not shown."]
    return table


def _say_finding(diagnosis: Diagnosis, place: int, finding: Finding) -> None:
    """Print a finding: title, gain, evidence, sightings, and settings."""
    gain = f"{'at most ' * finding.is_bound}{time_text(finding.gain_s)} of each iteration ({finding.share:.1%})"
    say((f"\n{place}. {finding.title} ", "bold"), (f"[{finding.severity}]", COLOUR[finding.severity]))
    say(("   gains ", "bold"), gain)
    say(f"   replayed with {finding.replayed}", style="dim")
    for line in finding.evidence:
        say(f"   · {line}")
    for sighting in finding.sightings[:3]:
        where = diagnosis.context.rank_name(sighting.rank)
        span = f"{time_text(sighting.start_s)} to {time_text(sighting.end_s)}"
        say(f"     {operation_text(sighting.op)}, {where}, {span}", style="dim")
    for setting in finding.settings:
        say(("   → ", "bold green"), setting)
