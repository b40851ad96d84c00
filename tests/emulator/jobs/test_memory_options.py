"""The published figures that the formulas must give, and a pipeline of buckets by hand."""

import pytest

from emulator.cluster import cluster as clusters
from emulator.jobs import memory_options
from emulator.jobs.costing import plan
from emulator.jobs.workload import memory, models
from emulator.jobs.workload.job import Job
from switchml.errors import ConfigError


def test_axonn_quarters_the_memory():
    """AxoNN: 20 φ become 4 φ + 16 · bucket, a reduction by 4 to 5 with the default bucket of 16 million."""
    dense = memory_options.DENSE_BYTES * 2.5e9
    assert dense / memory_options.offload_bytes(2.5e9, 16e6) == pytest.approx(50 / (10 + 0.256))
    assert memory_options.offload_bytes(1e6, 16e6) == 20e6, "a bucket never holds more than there is"


def test_samo_published_savings():
    """−78 % at 90 % sparsity, −66 % at 80 %."""
    assert 1 - memory_options.samo_bytes(1e9, 0.9) / 20e9 == pytest.approx(0.78)
    assert 1 - memory_options.samo_bytes(1e9, 0.8) / 20e9 == pytest.approx(0.66)
    assert memory_options.samo_gradient_share(0.9) == pytest.approx(0.1)


def test_offload_pipeline_by_hand():
    """Four buckets of 100: copying takes 1.2 s each way, updating 0.5 s. In, then one bucket every 1.2 s, then out."""
    found = memory_options.offload_step(400, 100, copy_bytes_per_s=1000, adam_parameters_per_s=200)
    assert found.step_s == pytest.approx(1.2 + 0.5 + 1.2 + 3 * 1.2)
    assert found.exposed_s == pytest.approx(found.step_s - 4 * 0.5)
    assert not found.is_hidden


def test_offload_hides_behind_the_all_reduce():
    """12 b / PCIe ≤ max(Adam, all-reduce): only the first copy in and the last one out show."""
    found = memory_options.offload_step(400, 100, copy_bytes_per_s=1000, adam_parameters_per_s=200, all_reduce_s=8)
    assert found.is_hidden
    assert found.step_s == pytest.approx(1.2 + 0.5 + 1.2 + 3 * 2.0)
    assert found.exposed_s == pytest.approx(2.4)


def test_comet():
    assert memory_options.comet_bytes(13.5e9, 13.5) == pytest.approx(1e9)
    assert memory_options.comet_bytes(10.0, 2.0, compressed_share=0.5) == 7.5


def test_what_layers_keep_is_compressed_and_nothing_else():
    model, job = models.load("gpt3-2.7b"), Job(gpus=8, micro_batch=4)
    plain = memory.memory(model, job)
    packed = memory_options.MemoryOptions(activation_ratio=4.0).memory(
        plain, plan(model, job, clusters.load("a100-dgx"))
    )
    kept = memory.micro_batch_activations(model, job, 0)
    assert packed.activations < plain.activations - 0.7 * kept
    assert packed.activations > plain.activations - 0.75 * kept > 0
    assert packed.weights == plain.weights and packed.temporary == plain.temporary


@pytest.mark.parametrize("call", [
    lambda: memory_options.samo_bytes(1, 1.5),
    lambda: memory_options.comet_bytes(1, 0.5),
    lambda: memory_options.offload_bytes(1, 0),
    lambda: memory_options.offload_step(1, 1, copy_bytes_per_s=0, adam_parameters_per_s=1),
])  # fmt: skip
def test_nonsense_is_refused(call):
    with pytest.raises(ConfigError):
        call()
