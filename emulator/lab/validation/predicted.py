"""Rows of whole jobs: the measurement, the emulator's prediction, and its stated uncertainty."""

from emulator.cluster.cluster import Cluster
from emulator.jobs.costing import plan
from emulator.jobs.description import Request
from emulator.jobs.emulate import emulate, replayed_s
from emulator.jobs.emulation import Emulation
from emulator.jobs.interval import factor
from emulator.jobs.workload.job import Job
from emulator.jobs.workload.models import Model
from emulator.lab.validation.rows import Row


def iteration(name: str, model: Model, job: Job, cluster: Cluster, measured_s: float) -> Row:
    """Row of iteration seconds."""
    return Row(name, measured_s, replayed_s(plan(model, job, cluster)), "s", factor(model, job, cluster))


def throughput(name: str, request: Request, tokens_per_s: float) -> tuple[Row, Emulation]:
    """Row of tokens/s summed over all accelerators, and the emulation of the job. Raises ConfigError for a job that
    can't be emulated."""
    emulation, job = emulate(request), request.job
    stated = factor(emulation.plan.model, job, emulation.plan.cluster)
    return Row(name, tokens_per_s, emulation.samples_per_s * job.sequence, "tokens/s", stated), emulation
