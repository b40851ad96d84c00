"""Seeds of `switchml simulate --best-effort`: jobs that share the few slots of a switch, with the aggregator behind it
(docs/protocol.md, section 14). The links between switch and aggregator lose, duplicate and reorder packets like the
others; ranks die and the switch with its aggregator crashes, as in plan.py."""

import random
from dataclasses import replace

from emulator.networks.faults.clock import draw_clocks
from emulator.networks.faults.plan import FaultPlan, draw, draw_job
from emulator.networks.netsim.config import LinkConfig


def draw_best_effort(seed: int) -> FaultPlan:
    """Draw the plan of a seed."""
    plan, chooser = draw(seed), random.Random(f"best effort {seed}")
    jobs, hosts = [], 0
    for number in range(chooser.choice([2, 2, 2, 3])):
        workers = chooser.choice([1, 2, 2, 3, 3, 4, 5])
        job = draw_job(chooser, f"job{number}", tuple(range(hosts, hosts + workers)))
        calls = job.calls * (chooser.choice([1, 1, 2]) if not job.misfit else 1)
        jobs.append(replace(job, calls=calls))
        hosts += workers
    is_rough = bool(plan.link.loss or plan.link.duplicate or plan.link.late)
    behind = LinkConfig(
        rate_bps=plan.link.rate_bps * chooser.choice([1.0, 4.0, 10.0]),
        delay_s=chooser.choice([1e-6, 1e-4, 2e-3]),  # slots may be occupied for 2 ms
        queue_bytes=chooser.choice([0, 0, 30_000]) if is_rough else 0,
        loss=chooser.choice([0.0, 0.01, 0.1, 0.3]) if is_rough else 0.0,
        duplicate=chooser.choice([0.0, 0.02, 0.2]) if is_rough else 0.0,
        late=chooser.choice([0.0, 0.02, 0.2]) if is_rough else 0.0,
        late_s=chooser.choice([0.001, 0.02, 0.3]),
    )
    return replace(
        plan,
        jobs=tuple(jobs),
        faults=tuple(replace(fault, host=min(fault.host, hosts - 1)) for fault in plan.faults),
        clocks=draw_clocks(seed, hosts),
        shared_slots=chooser.choice([1, 2, 4, 8, 32]),
        behind=behind,
    )
