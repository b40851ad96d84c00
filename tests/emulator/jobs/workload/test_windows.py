"""Sliding windows of attention: what they compute beside a count over every query, which layers have them, and what
their kernels take."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.cluster import cluster as clusters
from emulator.cluster import kernels
from emulator.cluster.accelerator import accelerators
from emulator.jobs.costing import plan
from emulator.jobs.workload import models, transformer
from emulator.jobs.workload.implementations import BLOCK, attended, attention_kernels, cross_entropies, implementations
from emulator.jobs.workload.job import Job
from switchml.errors import ConfigError

OSS, GEMMA, MISTRAL = (models.load(name) for name in ("gpt-oss-20b", "gemma3-27b", "mistral-7b"))
CODE = transformer.Code(
    implementations()["megatron-core"], cross_entropies()["fused"], 1.3, (1e14, 1e14), (5e13, 5e13), 1.0
)


@given(st.integers(1, 300), st.integers(1, 400))
def test_a_window_is_counted_query_by_query(tokens, window):
    counted = sum(min(i, window) for i in range(1, tokens + 1))
    if window < tokens:
        assert attended(tokens, window) == counted
    else:
        assert attended(tokens, window) == attended(tokens) == counted - tokens / 2


@pytest.mark.parametrize("window", [1, 128, 4096, 8192])
def test_kernels_that_keep_scores_on_chip_compute_what_a_window_shows(window):
    """Four FLOPs forward for each pair and element of a head, ten backward; unfused scores are all computed."""
    job, tokens = Job(gpus=1, sequence=8192), 8192
    model = dataclasses.replace(MISTRAL, window=window)
    own, full = transformer.attention(model, job, CODE, window), transformer.attention(model, job, CODE)
    pairs = [attended(tokens, window), attended(tokens)]
    for way, each in (("forward", 4), ("backward", 10)):
        done = [kernels.flops(getattr(part, way)) for part in (own, full)]
        assert done[1] - done[0] == pytest.approx(each * 4096 * (pairs[1] - pairs[0]))
    unfused = job.replace(attention="unfused")
    scores = [transformer.attention(model, unfused, CODE, each).forward.tolist() for each in (window, 0)]
    assert scores[0] == scores[1]


@pytest.mark.parametrize("model", [OSS, GEMMA, MISTRAL], ids=lambda model: model.name)
def test_model_flops_are_those_of_each_layer(model):
    job = Job(gpus=1, sequence=8192, attention="fa2")
    by_layer = [
        transformer.attention(model, job, CODE, model.window if model.is_windowed(layer) else 0)
        for layer in range(model.layers)
    ]
    # Backward runs scores once more, so that they count five halves of forward; models count twice.
    core = sum(sum(row[0] * row[1] * row[2] * row[3] * 2 for row in one.forward if row[5]) for one in by_layer)
    linear = sum(kernels.flops(one.forward) for one in by_layer) - core
    mlp = kernels.flops(transformer.mlp(model, job, CODE).forward) * model.layers
    if model.experts > 1:
        mlp -= model.layers * 2 * 8192 * model.hidden * model.experts  # the router's
    head = 2 * 8192 * model.hidden * model.vocabulary
    assert model.flops_per_sample(8192, skips_future=True) == pytest.approx(3 * (core + linear + mlp + head))


def test_which_layers_have_a_window():
    """gpt-oss: every other one from the first on; Gemma 3: five, then one without; Mistral: all; others: none."""
    assert [OSS.is_windowed(layer) for layer in range(4)] == [True, False, True, False]
    assert [GEMMA.is_windowed(layer) for layer in range(12)] == 2 * [True, True, True, True, True, False]
    assert all(map(MISTRAL.is_windowed, range(32)))
    assert not any(map(models.load("llama3-8b").is_windowed, range(32)))


@pytest.mark.parametrize(("pp", "virtual"), [(1, 1), (4, 1), (3, 1), (4, 3), (2, 6)])
def test_stages_have_the_windows_of_their_layers(pp, virtual):
    """Pieces of the model go round the stages: put together again they are its layers in order."""
    job = Job(gpus=pp, pp=pp, virtual_stages=virtual, schedule="interleaved" if virtual > 1 else "1f1b", batch=12)
    pieces = {}
    for stage in range(pp):
        parts = iter(part for part in job.parts(GEMMA, stage) if part in ("window", "attention"))
        for piece, count in enumerate(job.piece_layers(GEMMA, stage)):
            pieces[piece * pp + stage] = [next(parts) for _ in range(count)]
    whole = [part for number in sorted(pieces) for part in pieces[number]]
    assert whole == ["window" if GEMMA.is_windowed(layer) else "attention" for layer in range(GEMMA.layers)]


@pytest.mark.parametrize("window", [128, 256, 1024, 4096])
def test_a_window_takes_the_time_of_the_blocks_that_it_touches(window):
    """A kernel computes blocks of queries and keys: of those that hold a pair in the window, some pairs are wasted, on
    the left as many as on the diagonal. Beside that, a short row of blocks has its start and its end."""
    tokens, kernel, device = 16384, attention_kernels()["fa2"], accelerators()["a100-80g"]

    def blocks(window):
        touched = 0
        for first in range(0, tokens, BLOCK):
            low = max(0, first - window + 1) // BLOCK
            touched += first // BLOCK + 1 - low
        return touched * BLOCK**2

    def seconds(window):
        rate = kernel.rates(device, "fa2", "bf16", tokens, 128, window)[0]
        return attended(tokens, window) / rate

    per_pair = (seconds(8192) - seconds(4096)) / (attended(tokens, 8192) - attended(tokens, 4096))
    start_and_end = (seconds(0) / per_pair - blocks(tokens)) / tokens
    assert seconds(window) / per_pair == pytest.approx(blocks(window) + tokens * start_and_end, rel=0.02)
    assert seconds(tokens) == seconds(0)


def test_windows_shorten_an_iteration_and_change_no_memory():
    from emulator.jobs.costed import closed_form_s
    from emulator.jobs.workload.memory import memory

    job = Job(gpus=8, sequence=32768, batch=8, zero=3, precision="bf16")
    full = dataclasses.replace(GEMMA, window=0, full_every=0)
    own, other = (plan(model, job, clusters.load("h100-dgx")) for model in (GEMMA, full))
    cores = [sum(step.forward_s for step in one.stages[0].steps if step.name == "attention") for one in (own, other)]
    assert cores[0] < 0.6 * cores[1] and closed_form_s(own) < closed_form_s(other)
    assert memory(GEMMA, job) == memory(full, job)


def test_a_clamped_gate_moves_its_input_three_times_more():
    job, plain = Job(gpus=1), dataclasses.replace(OSS, clamped=False)
    own, other = (transformer.mlp(model, job, CODE) for model in (OSS, plain))
    elements = 4 * OSS.sequence * OSS.ffn
    forward, backward = (
        getattr(own, way)[:, 4].sum() - getattr(other, way)[:, 4].sum() for way in ("forward", "backward")
    )
    # Of a half: read and written twice as they are clamped, then both read and written.
    assert forward == 2 * elements * (2 + 2 + 4)
    # Three comparisons and a conjunction make masks; two choices by them; both halves read and written.
    assert backward == elements * (3 * (2 + 1) + 3 + 2 * (4 + 1) + 8)


def test_windows_that_make_no_sense_are_refused():
    with pytest.raises(ConfigError, match="which layers have no sliding window; expected a window"):
        dataclasses.replace(OSS, window=0)
    with pytest.raises(ConfigError, match="requires a gated"):
        dataclasses.replace(OSS, gated=False)
