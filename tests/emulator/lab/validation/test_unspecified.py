"""Measured jobs whose description leaves out implementation, recomputation and micro-batch: none is refused, and what
is chosen is about as fast as what ran."""

import dataclasses
from pathlib import Path

import pytest

import emulator.lab.validation
from emulator.jobs.description import Request, request
from emulator.jobs.emulate import emulate
from emulator.lab.validation import frameworks, throughput

MPT = Path(emulator.lab.validation.__file__).parent / "published" / "throughput" / "llm_foundry.csv"
LEFT_OUT = ("implementation", "recompute", "micro_batch")


def without(asked: Request, names: tuple[str, ...]) -> Request:
    """The same job, described without these fields."""
    fields = dataclasses.asdict(asked.job)
    if asked.job.zero < 3:
        del fields["fsdp"]
    job = {name: value for name, value in fields.items() if value is not None and name not in names}
    return request({"model": asked.model, "cluster": asked.cluster, "job": job})


@pytest.mark.parametrize(("rows", "most"), [
    ([(row.request, row.tokens_per_s) for row in throughput.read(MPT)], 0.05),
    ([(asked, rate * asked.job.gpus) for _, asked, rate in frameworks.torchtitan()], 0.1),
    # Micro-batches twice as large as those measured fit, and are faster.
    ([(asked, rate * asked.job.gpus) for _, asked, rate in frameworks.nemo()], 0.14),
], ids=["MPT", "torchtitan", "NeMo"])  # fmt: skip
def test_no_measured_job_is_refused(rows, most):
    errors = []
    for asked, tokens_per_s in rows:
        done = emulate(without(asked, LEFT_OUT))
        errors.append(abs(done.tokens_per_s / tokens_per_s - 1))
    assert sum(errors) / len(errors) < most


def test_megatron_rows_are_recognized():
    """NeMo's jobs on H100 with all but what runs them: the same prediction."""
    for _, asked, _ in frameworks.nemo():
        assert without(asked, ("implementation",)).job == asked.job
