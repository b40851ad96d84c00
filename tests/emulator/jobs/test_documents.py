"""Several documents packed into a sample: attention sees one document, all else the sample."""

import pytest

from emulator.cluster import cluster as clusters
from emulator.jobs.costing import plan
from emulator.jobs.description import Request
from emulator.jobs.emulate import emulate
from emulator.jobs.workload import models
from emulator.jobs.workload.job import Job
from switchml.errors import ConfigError

LLAMA = models.load("llama3-8b")
DGX = clusters.load("h100-dgx")


def job(**changes):
    known = {"gpus": 8, "precision": "bf16", "implementation": "megatron-core", "zero": 1, "batch": 8}
    return Job(**{**known, "sequence": 4096, **changes})


def _steps(**changes):
    return {step.name: step for step in plan(LLAMA, job(**changes), DGX).stages[0].steps}


def test_attention_computes_pairs_of_a_document_only():
    """Causal pairs: 16 documents of 256 x 256 / 2 in place of 4096 x 4096 / 2; 4 FLOPs of a pair and element."""
    whole, packed = _steps(), _steps(document=256)
    spared = 4 * LLAMA.query_width * (4096**2 - 4096 * 256) / 2
    assert whole["attention"].forward_flops - packed["attention"].forward_flops == pytest.approx(spared)
    assert packed["attention"].forward_s < whole["attention"].forward_s
    assert packed["mlp"] == whole["mlp"]


@pytest.mark.parametrize("document", [4096, 5000])
def test_a_document_as_long_as_the_sample_changes_nothing(document):
    assert _steps(document=document) == _steps()


def test_model_flops_are_those_of_the_documents():
    """MFU counts them, so that a step's FLOPs are those of 16 samples of 256 tokens."""
    packed = emulate(Request(model="llama3-8b", cluster="h100-dgx", job=job(document=256)))
    short = 16 * LLAMA.flops_per_sample(256, skips_future=True) * 8
    assert packed.mfu * packed.iteration_s * 8 * DGX.device.peak("bf16") == pytest.approx(short)
    assert "documents packed into samples" in packed.interval.basis


def test_documents_over_context_parallel_ranks_are_refused():
    with pytest.raises(ConfigError, match="documents of 256 tokens in a sample give cp 2 ranks unequal shares"):
        plan(LLAMA, job(document=256, cp=2), DGX)
