"""Claims as a table, as an HTML page with a plot of each in the paper's form, and as Markdown."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from emulator.lab.reproduce.claims import HOW, MODEL, Claim, Figure, Plot
from emulator.lab.reproduce.running import Outcome, Points
from switchml import plotting
from switchml.output_files import whole_file
from switchml.pages import charts, page, panels
from switchml.pages.charts import Line
from switchml.pages.panels import Bar, Bars, Curves, Panel
from switchml.tables import Table, name, number, text

QUICK_MINUTES = 0.6
"""Upper limit in minutes of claims run by --quick; they also need no root."""
VERDICTS = {True: "met", False: "missed", None: "not counted"}
TABLE, PICTURES = "claims.md", "claims"
"""Names in the folder of `--out`: the document, and the folder of its plots."""
OURS = ""
"""Key of the plot line with the numbers that are drawn as bars."""


def listed(claims: Sequence[Claim]) -> Table:
    """Table of the available claims."""
    columns = [name("claim"), text("of"), text("what", drop=1), text("how"), number("about", "min", drop=2)]
    table = Table(columns, notes=["`switchml reproduce CLAIM` runs one; --all runs all, --quick the short ones."])
    for claim in claims:
        table.add(claim.id, claim.system, claim.title, HOW[claim.how] + needs(claim), f"{claim.minutes:g}")
    return table


def needs(claim: Claim) -> str:
    """Return " (root)" if the claim needs root."""
    return " (root)" if claim.needs_root else ""


def value(number: float | None, unit: str = "") -> str:
    """Three significant digits, with the unit; empty for a figure that the paper does not state."""
    if number is None:
        return ""
    shown = f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"
    return f"{shown} {unit}".rstrip()


def wanted(figure: Figure) -> str:
    """The tolerance of a figure in words."""
    if figure.how == MODEL:
        return ""
    if figure.within is not None:
        return f"within {100 * figure.within:g} %"
    bounds = [f"at least {figure.least:g}" if figure.least is not None else ""]
    bounds += [f"at most {figure.most:g}" if figure.most is not None else ""]
    return " and ".join(filter(None, bounds))


def origins(claim: Claim, figure: Figure) -> tuple[str, str]:
    """Origin of this project's value, and how reliably the paper's figure is known."""
    return HOW[figure.how or claim.how], figure.trust if figure.paper is not None else "only a direction"


def table(outcomes: Sequence[Outcome]) -> Table:
    """Table with a row for each figure below its claim; differences from the papers' set-ups as notes."""
    columns = [text("figure"), number("paper"), number("ours"), text("")]
    columns += [text("ours is", drop=1), text("asked for", drop=2), text("paper's is", drop=3)]
    shown = Table(columns, notes=remarks(outcomes))
    for outcome in outcomes:
        claim = outcome.claim
        shown.add(f"{claim.system}: {claim.title} ({HOW[claim.how]})")
        for figure, ours, is_met in outcome.rows:
            how, trust = origins(claim, figure)
            numbers = value(figure.paper, figure.unit), value(ours, figure.unit)
            shown.add(figure.name, *numbers, VERDICTS[is_met], how, wanted(figure), trust)
    return shown


def remarks(outcomes: Sequence[Outcome]) -> list[str]:
    """For each claim, the differences from the paper's set-up and the reasons."""
    return [f"{one.claim.id}: {' '.join(one.claim.differs.split())}" for one in outcomes if one.claim.differs]


def drawn(outcome: Outcome) -> Panel | None:
    """The claim's plot; None if it has none."""
    plot = outcome.claim.plot
    if plot is None:
        return None
    shown = {name: points for name, points in outcome.lines.items() if outcome.claim.lines[name].is_drawn}
    lines = {name: points for name, points in shown.items() if isinstance(points, Mapping)}
    names = {name: outcome.claim.lines[name].name or name for name in outcome.lines}
    if plot.bars:
        numbers = {name: value for name, value in outcome.lines.items() if not isinstance(value, Mapping)}
        lines = {OURS: {names[name]: numbers[name] for name in plot.bars}, **lines}
        names[OURS] = HOW[outcome.claim.how]
    if any(isinstance(x, str) for points in lines.values() for x in points):
        return _bars(plot, lines, names)
    curves = [Line(names[key], [float(x) for x in points], list(points.values())) for key, points in lines.items()]
    return Curves(plot.title, plot.x, plot.y, curves, x_log=plot.x_log, y_log=plot.y_log)


def _bars(plot: Plot, lines: Mapping[str, Points], names: Mapping[str, str]) -> Bars:
    xs = dict.fromkeys(x for points in lines.values() for x in points)
    bars = [Bar(str(x), names[key], points[x]) for x in xs for key, points in lines.items() if x in points]
    return Bars(plot.title, plot.y, bars, is_log=plot.y_log)


def draw(outcomes: Sequence[Outcome], path: Path) -> None:
    """Draw all claims' plots side by side. Raises ConfigError if the file can't be written."""
    shown = [
        replace(panel, title=f"{one.claim.system}: {panel.title}")
        for one in outcomes
        if (panel := drawn(one)) is not None
    ]
    plotting.draw(path, "Claims reproduced", shown)


def counted(outcomes: Sequence[Outcome]) -> tuple[int, int]:
    """Number of figures met, and number of figures that are not modelled."""
    verdicts = [is_met for one in outcomes for *_, is_met in one.rows if is_met is not None]
    return sum(verdicts), len(verdicts)


def write_markdown(outcomes: Sequence[Outcome], folder: Path, pictures: str) -> None:
    """Write `folder`/claims.md: each claim's figures, differences and plot; plots are written to
    `folder`/`pictures`."""
    met, possible = counted(outcomes)
    lines = ["# The papers' results beside ours", "", f"{met} of {possible} figures are met.", ""]
    (folder / pictures).mkdir(parents=True, exist_ok=True)
    for outcome in outcomes:
        claim, panel = outcome.claim, drawn(outcome)
        lines += [f"## {claim.system}: {claim.title}", "", f"{claim.says} ({claim.source})", ""]
        lines += ["| figure | paper | ours | | ours is | asked for | the paper's is |", "|---|---|---|---|---|---|---|"]
        for figure, ours, is_met in outcome.rows:
            verdict = VERDICTS[is_met] if is_met is not False else f"**{VERDICTS[is_met]}**"
            how, trust = origins(claim, figure)
            numbers = value(figure.paper, figure.unit), value(ours, figure.unit)
            lines.append(f"| {' | '.join((figure.name, *numbers, verdict, how, wanted(figure), trust))} |")
        lines += ["", f"What differs: {' '.join(claim.differs.split())}", ""]
        lines += [f"`switchml reproduce {claim.id}` runs it{needs(claim)}.", ""]
        if panel is not None:
            plotting.draw(folder / pictures / f"{claim.id}.svg", "", [panel])
            lines += [f"![{panel.title}]({pictures}/{claim.id}.svg)", ""]
    with whole_file(folder / TABLE) as part:
        part.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def write_page(outcomes: Sequence[Outcome], failures: Mapping[str, str], path: Path) -> None:
    """Write one HTML page with every claim: figures, plot, differences, commands. `failures`: claim → reason why it did
    not run."""
    content = {
        "title": "The papers' results beside ours",
        "claims": [_on_page(one) for one in outcomes],
        "failures": dict(failures),
        "met": counted(outcomes)[0],
        "figures": counted(outcomes)[1],
        "zoom": charts.ZOOM,
    }
    page.write(path, page.render("reproduce.html", (Path(__file__).parent,), content))


def _on_page(outcome: Outcome) -> dict[str, Any]:
    claim, panel = outcome.claim, drawn(outcome)
    commands = dict.fromkeys(line.command for line in claim.lines.values() if line.run)
    return {
        "id": claim.id,
        "system": claim.system,
        "title": claim.title,
        "says": claim.says,
        "source": claim.source,
        "differs": " ".join(claim.differs.split()),
        "how": HOW[claim.how] + needs(claim),
        "rows": [
            (
                one.name,
                value(one.paper, one.unit),
                value(ours, one.unit),
                VERDICTS[is_met],
                wanted(one),
                *origins(claim, one),
            )
            for one, ours, is_met in outcome.rows
        ],  # fmt: skip
        "panel": panels.chart(panel) if panel is not None else None,
        "commands": list(commands),
    }
