"""`switchml doctor`: a table that says what is there, what is missing and how to get it; JSON; the exit status."""

import json

import pytest
from click.testing import CliRunner

from host_agent import checkup
from host_agent.checkup import Finding
from host_agent.cli import doctor

FINDINGS = [
    Finding("Python", "ok", "3.12", ""),
    Finding("torch", "missing", "not installed", "the backend: pip install 'switchml[torch]'"),
]


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setattr(checkup, "look_around", lambda: list(FINDINGS))

    def run(trial: Finding, *arguments: str):
        monkeypatch.setattr(doctor, "trial", lambda ranks, seconds: trial)
        return CliRunner().invoke(doctor.doctor, list(arguments), env={"COLUMNS": "150"})

    return run


GOOD = Finding("all-reduce", "ok", "2 ranks, all sums right", "")


def test_the_table_names_the_extra_that_is_missing(run):
    result = run(GOOD)
    assert result.exit_code == 0
    assert "pip install 'switchml[torch]'" in result.stdout


def test_json_has_every_finding(run):
    result = run(GOOD, "--json")
    assert list(json.loads(result.stdout)) == ["Python", "torch", "all-reduce"]


def test_sums_that_are_wrong_fail(run):
    assert run(Finding("all-reduce", "broken", "wrong sums", "")).exit_code == 1


@pytest.mark.slow
def test_the_real_thing_on_this_machine(monkeypatch):
    """Nothing replaced but its length: two ranks really sum."""
    result = CliRunner().invoke(doctor.doctor, ["--seconds", "0.2", "--json"])
    assert result.exit_code == 0
    assert "all sums right" in json.loads(result.stdout[result.stdout.index("{") :])["all-reduce"]["found"]
