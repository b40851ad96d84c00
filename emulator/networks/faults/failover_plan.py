"""Seeds of `switchml simulate --failover`: jobs of plan.py whose aggregators, including standbys, crash, restart and
are cut off, one after the other or at once, while no rank dies. Hence each call must complete with its result."""

import math
import random
from dataclasses import replace

from emulator.networks.faults.clock import draw_clocks
from emulator.networks.faults.plan import Fault, FaultPlan, JobPlan, draw

KINDS = ("aggregator", "aggregator", "aggregator", "cut", "cut data", "cut up", "cut down", "pause")
SUSPICION = "suspicion"
"""Fault kind: a rank treats its aggregator as lost although it is alive, as heartbeat.py may on a busy machine."""
FAILOVER_S = 40.0
"""Longer than all faults of a seed together, so that agents never give up."""
_MAX_PAUSE_S = 0.1
_FIRST_CALLS_S = 0.02
"""Time by which jobs may have started."""
_CHASED_SHARE = 0.4
"""Share of seeds in which further aggregators fail soon after the first, when ranks have just arrived there or are
about to."""
_CHASE_S = 0.6
_MAX_DOWN_S = 2.0


def draw_failover(seed: int) -> FaultPlan:
    """Draw the plan of a seed."""
    plan, chooser = draw(seed), random.Random(f"failover {seed}")
    aggregators = chooser.choice([1, 2, 2, 2, 3])
    span_s = chooser.choice([0.02, 0.05, 0.1, 0.4])
    faults = []
    for _ in range(chooser.choice([1, 1, 2, 2, 3, 5])):
        kind = chooser.choice(KINDS)
        if kind == "cut" and aggregators == 1:
            kind = "cut data"  # a rank that is silent for long is lost, and no standby exists to fail over to
        longest_s = 2.5 * plan.peer_timeout_s if kind.startswith("cut") else _MAX_DOWN_S
        if kind == "pause":
            longest_s = 0.4 * plan.peer_timeout_s  # a rank that is silent for longer is lost
        faults.append(
            Fault(
                chooser.uniform(_FIRST_CALLS_S, _FIRST_CALLS_S + span_s),
                kind,
                -1 if kind == "aggregator" else chooser.randrange(plan.hosts),
                _duration_s(chooser, longest_s),
                chooser.randrange(aggregators) if chooser.random() < 0.5 else 0,
            )
        )
    if aggregators > 1:
        for _ in range(chooser.choice([0, 0, 1, 2])):
            at_s = chooser.uniform(_FIRST_CALLS_S, _FIRST_CALLS_S + span_s)
            faults.append(Fault(at_s, SUSPICION, chooser.randrange(plan.hosts), 0.0))
    if chooser.random() < _CHASED_SHARE:
        faults += _chase(chooser, aggregators, span_s)
    faults.sort(key=lambda fault: fault.at_s)
    return replace(
        plan,
        jobs=tuple(_calm(job, chooser, span_s) for job in plan.jobs),
        faults=tuple(faults),
        heal_s=max(span_s, *(fault.at_s + fault.duration_s for fault in faults)),
        slot_capacity=65536,
        aggregators=aggregators,
        failover_s=FAILOVER_S,
        clocks=draw_clocks(seed, plan.hosts),
    )


def _duration_s(chooser: random.Random, longest_s: float) -> float:
    return 0.003 * math.pow(longest_s / 0.003, chooser.random())


def _chase(chooser: random.Random, aggregators: int, span_s: float) -> list[Fault]:
    """Two or three failures in a row: the first aggregator, and soon after it those that jobs fail over to, or the
    first one again if it is the only one."""
    faults, at_s = [], chooser.uniform(_FIRST_CALLS_S, _FIRST_CALLS_S + span_s)
    for number in range(chooser.choice([2, 2, 3])):
        faults.append(Fault(at_s, "aggregator", -1, _duration_s(chooser, _MAX_DOWN_S), number % aggregators))
        at_s += chooser.uniform(0.0, _CHASE_S)
        if aggregators == 1:
            at_s += faults[-1].duration_s
    return faults


def _calm(job: JobPlan, chooser: random.Random, span_s: float) -> JobPlan:
    """A job whose programs make no mistakes and have no timeouts. Some pause between calls, so that they run as long as
    there are faults."""
    repeats = chooser.choice([1, 2, 4])
    most_s = chooser.choice([0.0, 2.0]) * span_s / (repeats * len(job.calls))
    calls = tuple(
        replace(call, timeout_s=None, pause_s=min(call.pause_s, _MAX_PAUSE_S) + chooser.uniform(0.0, most_s))
        for _ in range(repeats)
        for call in job.calls
    )
    return replace(job, calls=calls, misfit="", misfit_rank=-1, misfit_call=-1)
