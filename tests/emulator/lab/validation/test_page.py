"""The figures of docs/accuracy.md, and the shipped intervals, are what the commands give."""

import re
from pathlib import Path

import pytest

from emulator.jobs import interval
from emulator.lab.validation import campaigns, coverage, iterations
from emulator.lab.validation.rows import mape

PAGE = Path(__file__).resolve().parents[4] / "docs" / "accuracy.md"
PUBLISHED = Path(campaigns.__file__).parent / "published"


def on_the_page(section: str) -> dict[str, list[str]]:
    """Rows of the section's first table by their first cell, remarks in parentheses left out; numbers without their
    unit."""
    text = PAGE.read_text().partition(f"\n## {section}\n")[2]
    table = "|" + text.partition("\n|")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:2] == "| "]
    return {re.sub(r" \(.*\)$", "", name): [cell.replace(" %", "") for cell in cells] for name, *cells in rows[1:]}


def figures(found: list[campaigns.Campaign]) -> dict[str, list[str]]:
    return {
        name: [
            str(one["rows"]),
            f"{100 * one['mape']:.1f}",
            f"{100 * one['worst']:+.0f}",
            "–" if one["inside"] is None else f"{100 * one['inside']:.0f}",
        ]
        for name, one in campaigns.to_json(found).items()
    }


def test_the_page_has_a_row_for_what_a_command_prints():
    page = on_the_page("Accuracy")
    megatron = list(campaigns._megatron())
    assert figures(megatron[:3]) == {one.name: page[one.name] for one in megatron[:3]}
    assert page["Narayanan's table 1"][1] == f"{100 * mape(megatron[3].rows):.1f}"


def test_figures_told_again_are_those_of_the_page():
    page = {tuple(cells[:3]) for cells in on_the_page("Accuracy").values()}
    told = PAGE.with_name("reliability.md").read_text().partition("\n## Emulated iterations and memory\n")[2]
    rows = re.findall(r"^\|.*\| ([\d,]+) \| ([\d.]+) % \| (\S+) % \|$", told.partition("\n## ")[0], re.MULTILINE)
    assert len(rows) == 8 and {(count.replace(",", ""), *rest) for count, *rest in rows} <= page


def without_refits(table: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: figures for name, figures in table.items() if "fitted without" not in name}


@pytest.mark.timeout(3600)
def test_the_page_has_what_validate_all_prints():
    assert figures(campaigns.all_of(PUBLISHED, measure=True)) == without_refits(on_the_page("Accuracy"))


@pytest.mark.timeout(3600)
def test_the_page_has_what_is_predicted_of_sizes_left_out():
    page = on_the_page("Accuracy")
    samples = [one for path in sorted((PUBLISHED / "iterations").glob("*.csv")) for one in iterations.read(path)]
    found = figures(list(campaigns.left_out(samples)))
    assert found == {name: page[name] for name in page if "fitted without" in name}


def test_the_interval_of_context_parallel_jobs_is_as_shipped():
    rows = coverage.measured([])
    found, shipped = coverage.groups(rows)[interval.CONTEXT], interval.groups()[interval.CONTEXT]
    assert coverage.by_campaign(rows)["NeMo"].rows == 12
    assert (found.rows, found.title) == (shipped.rows, shipped.title)
    assert found.spread == pytest.approx(shipped.spread, abs=1e-3)


@pytest.mark.timeout(3600)
def test_shipped_intervals_are_what_the_command_writes(tmp_path):
    rows = coverage.measured(sorted(PUBLISHED.rglob("*.csv")))
    found = coverage.groups(rows)
    coverage.write(found, tmp_path / "intervals.toml")
    assert (tmp_path / "intervals.toml").read_text() == interval.FILE.read_text()
    page = on_the_page("Intervals")
    for group in found.values():
        shares = group.held_out, group.held_out_models, group.held_out_campaigns
        assert page[group.title][1:] == [f"± {100 * (group.spread - 1):.1f}", *(f"{100 * one:.0f}" for one in shares)]
    for name, held in coverage.by_campaign(rows).items():
        assert page[name][2:] == [f"{100 * one:.0f}" for one in (held.tenths, held.models, held.campaigns)]
