"""Seeds of jobs that share the slots of a switch: they pass, and meet every rule of that switch."""

import ast
from collections import Counter

from emulator.networks.faults.best_effort_plan import draw_best_effort
from emulator.networks.faults.world import World, play
from switchml.aggregator import tiers
from switchml.protocol import best_effort

SEEDS = 10


def test_seeds_pass_and_slots_are_shared():
    lines: list[str] = []
    outcomes = [play(seed, lines.append, "best-effort") for seed in range(SEEDS)]
    assert [(outcome.seed, outcome.problem) for outcome in outcomes if outcome.problem] == []
    counts: Counter[str] = Counter()
    for line in lines:
        if " shared " in line:
            counts.update(ast.literal_eval(line.partition(" shared ")[2]))
    assert min(counts[name] for name in best_effort.COUNTS) > 0, "each rule was met"
    assert play(3, kind="best-effort") == outcomes[3], "a seed repeats itself"


def test_what_seeds_draw():
    plans = [draw_best_effort(seed) for seed in range(100)]
    assert {plan.shared_slots for plan in plans} == {1, 2, 4, 8, 32} and all(len(plan.jobs) > 1 for plan in plans)
    assert any(plan.behind.loss for plan in plans) and any(plan.behind.duplicate for plan in plans)
    assert {"crash", "aggregator", "pause"} <= {fault.kind for plan in plans for fault in plan.faults}
    assert "slots for all jobs, and behind them" in "\n".join(plans[0].describe())


def test_slots_that_are_never_given_back_are_found(monkeypatch):
    monkeypatch.setattr(best_effort, "release_job", lambda shared, job_tag: None)
    monkeypatch.setattr(tiers, "apply_front", _keeping(tiers.apply_front))
    plan = next(plan for seed in range(100) if not (plan := draw_best_effort(seed)).faults and plan.hosts > 4)
    assert "slots of the switch are in use" in World(plan).run().problem


def _keeping(apply):
    """A slot more is in use with each packet."""

    def applied(front, *arguments):
        front.shared.slots["key"][0] = 1
        return apply(front, *arguments)

    return applied
