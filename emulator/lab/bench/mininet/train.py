"""`switchml mininet --experiment train`: `switchml train` with each worker in its own host, first over Gloo, then
through the aggregator, over the same links."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from emulator.lab.bench.mininet.experiments import MininetPlan, aggregator, built, cases
from emulator.networks.testbed.namespaces import enter
from emulator.networks.testbed.star import INTERFACE
from host_agent.ranks import Report
from host_agent.training import runner, worker
from host_agent.training.runner import Comparison
from host_agent.training.worker import Step, TrainingSettings

BATCH_SIZE, LEARNING_RATE = 32, 0.05


def settings_of(plan: MininetPlan) -> TrainingSettings:
    """Training settings from the plan."""
    return TrainingSettings(
        plan.hosts,
        plan.steps,
        BATCH_SIZE,
        LEARNING_RATE,
        plan.seed,
        transport="udp",
        wire=plan.wire,
        interface=INTERFACE,
        parallel=plan.parallel,
    )


def run(plan: MininetPlan, progress: Callable[[str], None]) -> Comparison:
    """Run both trainings. To be called inside a world; `progress` is called with status lines."""
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # silences a warning about hosts without a name
    (case,) = cases(plan)
    every = max(1, plan.steps // 10)

    def on_step(step: Step) -> None:
        if step.step % every == 0:
            speed = f"{step.images_per_s:.0f} images/s"
            progress(f"{step.backend}: step {step.step} of {plan.steps}, loss {step.loss:.4f}, {speed}")

    with built(case.layout, list(plan.captures), progress) as fabric, aggregator(case.series, fabric) as (control, _):
        assert control is not None  # plans of trainings have an aggregator
        names = [host.name for host in fabric.hosts]
        return runner.compare_with(control, settings=settings_of(plan), on_step=on_step, make=partial(in_host, names))


def in_host(names: list[str], rank: int, settings: TrainingSettings, folder: Path, report: Report) -> worker.DigitsRank:
    """Start a worker process inside its host's network namespace."""
    enter(names[rank])
    return worker.DigitsRank(rank, settings, folder, report)
