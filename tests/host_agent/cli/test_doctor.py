"""`switchml doctor`: a table that says what is there, what is missing and how to get it; JSON; the exit status."""

import json

import pytest
from click.testing import CliRunner

from host_agent import checkup, comparison
from host_agent.checkup import Finding
from host_agent.cli import doctor
from host_agent.pytorch.aggregator import command_of
from switchml.control.p4 import bmv2
from switchml.errors import ConfigError

FINDINGS = [
    Finding("Python", "ok", "3.12", ""),
    Finding("torch", "missing", "not installed", "the backend: pip install 'switchml[torch]'"),
]


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setattr(checkup, "run_checks", lambda: list(FINDINGS))

    def run(trial: Finding, *arguments: str, wrong: tuple[str, ...] = ()):
        monkeypatch.setattr(doctor, "trial", lambda ranks, seconds: trial)
        monkeypatch.setattr(comparison, "compare", lambda device: wrong)
        return CliRunner().invoke(doctor.doctor, list(arguments), env={"COLUMNS": "150"})

    return run


GOOD = Finding("all-reduce", "ok", "2 ranks, all sums right", "")


def test_the_table_names_the_extra_that_is_missing(run):
    result = run(GOOD)
    assert result.exit_code == 0
    assert "pip install 'switchml[torch]'" in result.stdout


def test_json_has_every_finding(run):
    result = run(GOOD, "--json")
    assert list(json.loads(result.stdout)) == ["Python", "torch", "torch on GPU", "all-reduce"]


def test_sums_that_are_wrong_fail(run):
    assert run(Finding("all-reduce", "broken", "wrong sums", "")).exit_code == 1


def test_the_comparison_says_right_or_what_is_wrong(run, monkeypatch):
    pytest.importorskip("torch")
    found = json.loads(run(GOOD, "--device", "cpu", "--json").stdout)["torch on cpu"]
    assert found["state"] == "ok" and found["found"].startswith("right: ")
    bad = run(GOOD, "--device", "cpu", "--json", wrong=("sums of int32: off by 3",))
    assert bad.exit_code == 1 and json.loads(bad.stdout)["torch on cpu"]["found"] == "sums of int32: off by 3"
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    none = run(GOOD, "--json")
    assert none.exit_code == 0 and "no GPU" in json.loads(none.stdout)["torch on GPU"]["found"]
    assert run(GOOD, "--device", "cuda").exit_code == 1


def test_a_difference_is_one_beyond_what_rounding_allows():
    torch = pytest.importorskip("torch")
    exact = torch.tensor([1.0, -4.0]).double()
    assert comparison._difference(exact.float() + 1e-6, exact, 1e-6) == ""
    assert comparison._difference(exact.float() + 1e-3, exact, 1e-6).startswith("off by 0.001, of numbers up to 4")
    assert comparison._difference(exact.float() * torch.nan, exact, 1e-6).startswith("off by nan")


@pytest.mark.slow
def test_two_ranks_on_the_cpu_are_right():
    pytest.importorskip("torch")
    assert comparison.compare("cpu", timeout_s=600) == []


@pytest.mark.slow
def test_the_real_thing_on_this_machine(monkeypatch):
    """Nothing replaced but its length: two ranks really sum."""
    result = CliRunner().invoke(doctor.doctor, ["--seconds", "0.2", "--json"])
    assert result.exit_code == 0
    assert "all sums right" in json.loads(result.stdout[result.stdout.index("{") :])["all-reduce"]["found"]


def test_bmv2_is_refused_before_anything_starts(monkeypatch):
    monkeypatch.setattr(bmv2.shutil, "which", lambda name, **_: None)
    with pytest.raises(ConfigError, match="the aggregator bmv2 needs simple_switch on PATH"):
        command_of("bmv2", 2)
    assert command_of("p4", 2)
    found = checkup._bmv2()
    assert found.state == "missing" and "simple_switch" in found.detail


@pytest.mark.parametrize(
    ("address", "secret", "state"),
    [("", "", "ok"), ("127.0.0.1", "", "ok"), ("10.0.0.1", "", "missing"), ("10.0.0.1", "a secret", "ok")],
)
def test_a_store_that_shows_a_secret_to_other_machines(monkeypatch, address, secret, state):
    pytest.importorskip("torch")
    monkeypatch.setenv("MASTER_ADDR", address)
    monkeypatch.setenv("SWITCHML_SECRET", secret)
    (finding,) = (each for each in checkup.run_checks() if each.name == "torch's store")
    assert finding.state == state and ("set SWITCHML_SECRET" in finding.advice) == (state == "missing")
