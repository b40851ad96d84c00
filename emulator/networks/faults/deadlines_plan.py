"""Seeds of `switchml simulate --deadlines`: jobs whose sums don't wait for late ranks (docs/protocol.md, section 13).
Ranks are slow at times, or stopped, and packets are lost; occasionally a rank or the aggregator dies, too."""

import random
from dataclasses import replace

from emulator.networks.faults.clock import draw_clocks
from emulator.networks.faults.plan import NARROW, Fault, FaultPlan, JobPlan, Pace, PlannedCall, draw
from emulator.networks.netsim.config import LinkConfig

KINDS = ("pause", "pause", "pause", "cut data", "cut up", "cut down", "crash", "aggregator")
_CALM_SHARE = 0.15
"""Share of seeds in which no rank is late and no packet is lost: every sum includes all ranks."""
_STEADY_SHARE = 0.25
"""Share of the other seeds in which ranks are slow or stopped and no other fault occurs: sums don't wait for these
ranks."""
_MAX_JOBS = 2
_MIN_DEADLINES_S = (0.005, 0.02, 0.1)
_CALM_DEADLINE_S = 1.0
_SPECIALS = (*("",) * 12, "zeros", "nan", "inf", "infs")
_OTHERS = ("all_reduce", "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "barrier")
"""Kinds of the calls between steps, which wait for every rank."""


def draw_deadlines(seed: int) -> FaultPlan:
    """Draw the plan of a seed."""
    plan, chooser = draw(seed), random.Random(f"deadlines {seed}")
    plan = replace(plan, jobs=plan.jobs[:_MAX_JOBS])
    is_calm = chooser.random() < _CALM_SHARE
    link = replace(plan.link, loss=min(plan.link.loss, 0.2), late_s=min(plan.link.late_s, 0.1))
    is_steady = not is_calm and chooser.random() < _STEADY_SHARE
    if is_calm or is_steady:
        link = LinkConfig(rate_bps=plan.link.rate_bps, delay_s=plan.link.delay_s)
    span_s = chooser.choice([0.1, 0.3, 1.0])
    faults = []
    for _ in range(0 if is_calm else chooser.choice([0, 0, 1, 1, 2, 3])):
        kind = "pause" if is_steady else chooser.choice(KINDS)
        longest_s = 0.5 if kind in ("crash", "aggregator") else 1.2 * plan.peer_timeout_s
        host = -1 if kind == "aggregator" else chooser.randrange(plan.hosts)
        faults.append(Fault(chooser.uniform(0.02, span_s), kind, host, 0.003 * (longest_s / 0.003) ** chooser.random()))
    faults.sort(key=lambda fault: fault.at_s)
    return replace(
        plan,
        jobs=tuple(_job(job, chooser, link, span_s, is_calm, is_steady) for job in plan.jobs),
        link=link,
        faults=tuple(faults),
        heal_s=max([span_s, *(fault.at_s + fault.duration_s for fault in faults)]),
        slot_capacity=65536,
        inbox_packets=200,
        clocks=draw_clocks(seed, plan.hosts),
    )


def _job(
    job: JobPlan, chooser: random.Random, link: LinkConfig, span_s: float, is_calm: bool, is_steady: bool
) -> JobPlan:
    """Draw a job of steps: a sum for each bucket of gradients, and occasionally another call."""
    buckets = [
        PlannedCall(
            chooser.choice(["float32", "float32", "float64"]),
            chooser.choice([chooser.randint(1, 64), chooser.randint(1, 600), 1500]),
            chooser.choice(["sum", "mean"]),
            None,
            0.0,
            chooser.choice([0, 0, -20, 40]),
            "",
            "late",
            bucket=number,
        )
        for number in range(chooser.choice([1, 1, 2, 3]))
    ]
    if chooser.random() < 0.3:  # two of one shape, whose exponent guesses come from each other
        buckets.append(replace(buckets[0], bucket=len(buckets)))
    calls = []
    others = 0.0 if is_steady else chooser.choice([0.0, 0.0, 0.2])
    for _ in range(steps := chooser.choice([3, 6, 12])):
        special = chooser.choice(_SPECIALS)
        calls += [replace(bucket, special=special) for bucket in buckets]
        if chooser.random() < others:
            dtype = chooser.choice(["float32", "int32", "int64"])
            call = PlannedCall(dtype, chooser.randint(1, 300), "sum", None, 0.0, 0, "", chooser.choice(_OTHERS))
            calls.append(replace(call, root=chooser.randrange(job.workers)))
    # Time of a step's packets on a rank's link: with a deadline below that, every rank would be late.
    busy_s = 8 * sum(8 * bucket.numel + 400 for bucket in buckets) / link.rate_bps + 4 * link.delay_s
    # A rank that waits for each call before the next starts the step's last call later than a rank that doesn't, by
    # this factor.
    begins = len(set(job.at_once))
    deadline_s = max(chooser.choice(_MIN_DEADLINES_S), 3 * busy_s * begins)
    step_s = span_s / steps
    paces = []
    for _ in job.hosts:
        slow_s = deadline_s * 2.0 ** chooser.uniform(-1, 5)
        chance = 0.0 if is_calm else chooser.choice([0.0, 0.0, 0.1, 0.3, 1.0])
        # Usual steps differ by less than a deadline: jobs must end once no rank is slow any more.
        paces.append(Pace(step_s + deadline_s * chooser.uniform(0.0, 0.2), min(slow_s, 2.0), chance))
    return replace(
        job,
        calls=tuple(calls),
        wire=chooser.choice(["int32", "int32", *NARROW]),
        misfit="",
        misfit_rank=-1,
        misfit_call=-1,
        deadline_s=_CALM_DEADLINE_S if is_calm else deadline_s,
        paces=tuple(paces),
    )
