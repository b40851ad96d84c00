"""Campaigns of seeds, the command line, and bugs planted on purpose: seeds have to find them."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from emulator.networks.faults import campaign
from emulator.networks.faults.bugs import BUGS, Bug, condition, statement, value_of
from emulator.networks.faults.world import play
from switchml.cli.main import cli
from switchml.errors import ConfigError


def test_one_process_or_two_come_to_the_same():
    seeds = range(40, 60)
    one, two = campaign.campaign(seeds, 1), campaign.campaign(seeds, 2)
    assert one == two and one.seeds == 20 and one.failures == []


def test_a_seed_alone_repeats_the_campaign():
    """Each in a fresh process, from the command line: the same packets, sums, errors and verdict. Nothing carries over
    from the seeds before it."""
    seeds = range(1510, 1518)
    for seed, outcome in zip(seeds, campaign.outcomes(seeds, 2), strict=True):
        if seed % 3 == 0:  # a process takes seconds
            command = [sys.executable, "-m", "switchml", "simulate", "--seed", str(seed), "--json"]
            alone = subprocess.run(command, capture_output=True, text=True, timeout=120)
            assert json.loads(alone.stdout) == dataclasses.asdict(outcome)


def test_a_campaign_ends_at_its_failures(monkeypatch):
    outcome = dataclasses.replace(play(1), problem="wrong")
    monkeypatch.setattr(campaign, "play", lambda seed, kind: dataclasses.replace(outcome, seed=seed))
    tally = campaign.campaign(range(100), 1, most_failures=3)
    assert [failed.seed for failed in tally.failures] == [0, 1, 2] and tally.seeds == 3


def test_ctrl_c_tells_what_passed_and_what_is_left(monkeypatch):
    outcome = play(1)

    def interrupted(seed, kind):
        if seed == 12:
            raise KeyboardInterrupt
        return dataclasses.replace(outcome, seed=seed)

    monkeypatch.setattr(campaign, "play", interrupted)
    arguments = ["simulate", "--failover", "--from", "10", "--seeds", "5", "--processes", "1"]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 130 and "all passed" not in done.output
    assert "interrupted after 2 of 5 seeds, 0 of which failed" in done.output
    assert "switchml simulate --failover --from 12 --seeds 3" in " ".join(done.output.split())
    told = json.loads(CliRunner().invoke(cli, [*arguments, "--json"]).stdout)
    assert told["seeds"] == 2 and told["interrupted"]


@pytest.mark.parametrize("name", list(BUGS))
def test_every_bug_has_its_place(name):
    bug = BUGS[name]
    source = (Path(campaign.__file__).parents[3] / bug.file).read_text()
    changed = bug.planted(source)
    compile(changed, bug.file, "exec")
    assert bug.wrong in changed and changed != source


@pytest.mark.parametrize(("function", "place", "message"), [
    ("a:f", statement("b"), "has 2 statements with b, expected one"),
    ("a:f", value_of("c"), "has 0 values with c, expected one"), ("a:f", condition("b"), "has 0 conditions with b"),
    ("a:g", statement("b"), "a.py has 0 'g', expected one"),
])  # fmt: skip
def test_a_bug_without_one_place_is_an_error(function, place, message):
    with pytest.raises(ConfigError, match=message):
        Bug(function, place, "pass", "").planted("def f():\n    b = 1\n    b += 2\n")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("kind", "name"), [
    *(("", name) for name in ("version-bit", "early-end", "deaf", "never-again")),
    *(("deadlines", name) for name in ("other-guess", "late-unsaid")),
    *(("best-effort", name) for name in ("slots-kept", "rank-kept")), ("failover", "no-redo"),
])  # fmt: skip
def test_seeds_find_planted_bugs(kind, name):
    """Some in the aggregator's kernels and in the worker's, and some elsewhere, which share what is compiled.
    `switchml simulate --plant NAME` does the same with the others."""
    options = [f"--{kind}"] * bool(kind) + ["--seeds", "300" if kind else "100"]
    done = campaign.run_planted(name, [*options, "--stop-after", "1", "--processes", "1", "--json"])
    assert done.returncode == 1, done.stderr
    (failure,) = json.loads(done.stdout)["failed"]
    assert failure["problem"]
    assert play(failure["seed"], kind=kind).problem == "", "without the bug the seed passes"


def test_hundreds_of_seeds():
    """Others than those of test_world.py. CI plays 100,000 a night (CONTRIBUTING.md)."""
    tally = campaign.campaign(range(20_000, 20_500), os.cpu_count() or 1)
    assert tally.failures == [] and tally.seeds == 500


def run(*arguments):
    return CliRunner().invoke(cli, ["simulate", *arguments])


def test_a_failed_seed_is_printed(monkeypatch):
    monkeypatch.setattr(
        campaign, "play", lambda seed, kind: dataclasses.replace(play(1), seed=seed, problem="a wrong sum")
    )
    result = run("--seeds", "2", "--processes", "1")
    assert result.exit_code == 1
    assert "seed 0 failed: a wrong sum" in result.stdout and "switchml simulate --seed 0 --log" in result.stdout


def test_a_network_on_the_command_line(tmp_path):
    (tmp_path / "n.toml").write_text("[[jobs]]\nworkers = 2\nsize_bytes = 65536\n[[jobs]]\nbackend = 'ring'\n")
    found = json.loads(run(str(tmp_path / "n.toml"), "--json").stdout)
    assert [job["backend"] for job in found["jobs"]] == ["switchml", "ring"]
    assert found["links"]["host 0 up"]["packets"] == 64
    assert "host 0 up" in run(str(tmp_path / "n.toml")).stdout


def test_a_picture_of_a_network(tmp_path):
    (tmp_path / "n.toml").write_text("[[jobs]]\nworkers = 2\nsize_bytes = 65536\n")
    assert run(str(tmp_path / "n.toml"), "--plot", str(tmp_path / "n.png")).exit_code == 0
    assert (tmp_path / "n.png").read_bytes().startswith(b"\x89PNG")
    refused = run(str(tmp_path / "n.toml"), "--plot", str(tmp_path / "n.txt"))
    assert refused.exit_code == 2 and "expected a name that ends in .png" in refused.stderr
