"""Seeds of `switchml simulate --failover`: jobs of plan.py whose aggregators crash, restart and are cut off, one after
the other or at once, while no rank dies. So each call has to end with its result."""

from __future__ import annotations

import random
from dataclasses import replace

from emulator.faults.plan import Fault, JobPlan, Plan, draw

KINDS = ("aggregator", "aggregator", "aggregator", "cut", "cut data", "cut up", "cut down", "pause")
SUSPICION = "suspicion"
"""A rank takes its aggregator for lost although it is there, as heartbeat.py may on a busy machine."""
FAILOVER_S = 40.0
"""Longer than all faults of a seed together, so that agents never give up."""
_MOST_PAUSE_S = 0.1


def draw_failover(seed: int) -> Plan:
    """The plan of a seed."""
    plan, chooser = draw(seed), random.Random(f"failover {seed}")
    aggregators = chooser.choice([1, 2, 2, 2, 3])
    span_s = chooser.choice([0.02, 0.05, 0.1, 0.4])
    faults = []
    for _ in range(chooser.choice([1, 1, 2, 2, 3, 5])):
        kind = chooser.choice(KINDS)
        if kind == "cut" and aggregators == 1:
            kind = "cut data"  # whoever is silent for long is lost, and there is no other aggregator to meet at
        longest_s = 2.5 * plan.peer_timeout_s if kind.startswith("cut") else 2.0
        if kind == "pause":
            longest_s = 0.4 * plan.peer_timeout_s  # a rank that is silent for longer is lost
        faults.append(
            Fault(
                chooser.uniform(0.0, span_s),
                kind,
                -1 if kind == "aggregator" else chooser.randrange(plan.hosts),
                0.003 * (longest_s / 0.003) ** chooser.random(),
                chooser.randrange(aggregators) if chooser.random() < 0.5 else 0,
            )
        )
    if aggregators > 1:
        for _ in range(chooser.choice([0, 0, 1, 2])):
            faults.append(Fault(chooser.uniform(0.0, span_s), SUSPICION, chooser.randrange(plan.hosts), 0.0))
    faults.sort(key=lambda fault: fault.at_s)
    return replace(
        plan,
        jobs=tuple(_calm(job, chooser) for job in plan.jobs),
        faults=tuple(faults),
        heal_s=max(span_s, *(fault.at_s + fault.duration_s for fault in faults)),
        slot_capacity=65536,
        aggregators=aggregators,
        failover_s=FAILOVER_S,
    )


def _calm(job: JobPlan, chooser: random.Random) -> JobPlan:
    """A job whose programs do nothing wrong, have patience, and take some time."""
    calls = tuple(
        replace(call, timeout_s=None, pause_s=min(call.pause_s, _MOST_PAUSE_S))
        for _ in range(chooser.choice([1, 2, 4]))
        for call in job.calls
    )
    return replace(job, calls=calls, misfit="", misfit_rank=-1, misfit_call=-1)
