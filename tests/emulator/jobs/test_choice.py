"""What is chosen where a description leaves options open, and that what it gives is kept."""

import dataclasses
import itertools

import pytest

from emulator.jobs.description import Request, request
from emulator.jobs.emulate import emulate
from emulator.jobs.workload.job import Job
from switchml.errors import ConfigError, OutOfMemory

H100 = {"model": "llama3-8b", "cluster": "h100-dgx"}


def chosen(model="llama3-8b", cluster="h100-dgx", **job):
    return request({"model": model, "cluster": cluster, "job": {"gpus": 8, **job}})


def test_a_model_on_a_node_fits_and_names_what_was_chosen_beside_the_alternative():
    asked = chosen()
    done = emulate(asked)
    assert done.memory.total <= done.plan.cluster.device.memory_bytes and done.mfu > 0.3
    job, choice = asked.job, asked.choice
    assert job.precision == "bf16" and job.recompute == "none"
    assert {"precision", "implementation", "tp", "pp", "zero", "micro_batch", "recompute"} <= set(choice.names)
    assert choice.best.iteration_s == pytest.approx(done.iteration_s)
    other = dataclasses.replace(asked, job=choice.alternative.job)
    assert emulate(other).iteration_s == pytest.approx(choice.alternative.iteration_s)
    first, second = choice.lines(job)
    assert first.startswith(f"chosen: bf16, {job.implementation}, tp {job.tp} x pp {job.pp} x dp {job.dp}, zero")
    assert second.startswith("instead: torch, tp 1 x pp 1 x dp 8, zero 3") and second.endswith("GiB")


@pytest.mark.parametrize("given", [
    {"precision": "fp8"}, {"implementation": "composer"}, {"implementation": "megatron"}, {"tp": 8},
    {"tp": 1, "zero": 3}, {"zero": 2}, {"pp": 4}, {"micro_batch": 4}, {"recompute": "full"}, {"batch": 64},
    {"batch": 64, "tp": 4, "recompute": "none", "sequence_parallel": False}, {"schedule": "gpipe", "pp": 2},
    {"gradient_bytes": 4}, {"overlap": False},
], ids=str)  # fmt: skip
def test_what_is_given_is_kept(given):
    asked = chosen(**given)
    assert {name: getattr(asked.job, name) for name in given} == given
    assert not set(asked.choice.names) & given.keys()
    assert emulate(asked).iteration_s > 0


@pytest.mark.parametrize(("job", "model", "cluster", "implementation"), [
    ({"zero": 3}, "llama3-8b", "h100-dgx", "torch"), ({"zero": 3}, "mpt-7b", "a100-dgx", "composer"),
    ({"zero": 3, "precision": "fp8"}, "llama3-8b", "h100-dgx", "compiled"),
    ({"tp": 8}, "llama3-8b", "h100-dgx", "megatron-core"), ({"tp": 8}, "mpt-7b", "a100-dgx", "megatron-core"),
    ({"tp": 4, "zero": 3}, "llama3-8b", "h100-dgx", "torch"), ({"tp": 8}, "gpt3-6.7b", "a100-dgx", "megatron"),
    ({"pp": 4}, "gpt3-6.7b", "a100-dgx", "megatron"),
    ({"tp": 1, "overlap": False}, "gpt3-1.3b", "a100-dgx", "megatron"), ({}, "gpt2-124m", "a100-dgx", "torch"),
    ({}, "bert-large", "a100-dgx", "torch"), ({"gpus": 1}, "gpt2-124m", "h100-dgx", "torch"),
    ({"zero": 1}, "llama3-8b", "h100-dgx", "megatron-core"),
])  # fmt: skip
def test_implementation_by_what_the_job_says(job, model, cluster, implementation):
    assert chosen(model, cluster, **job).job.implementation == implementation


@pytest.mark.parametrize(
    ("cluster", "precision", "gradient_bytes"),
    [("a100-dgx", "bf16", 2), ("frontier", "bf16", 2), ("v100-dgx1", "fp16", 2), ("cpu-10g", "fp32", 4)],
)
def test_precision_by_accelerator(cluster, precision, gradient_bytes):
    job = chosen("gpt2-124m", cluster, gpus=4).job
    assert (job.precision, job.gradient_bytes) == (precision, gradient_bytes)


@pytest.mark.parametrize(("job", "gradient_bytes"), [
    ({"implementation": "megatron"}, 4), ({"implementation": "megatron-core", "precision": "fp8"}, 2),
    ({"implementation": "megatron", "precision": "fp16"}, 2), ({"implementation": "megatron-core", "zero": 3}, 2),
    ({"implementation": "torch", "zero": 0, "model": "gpt2-124m"}, 2),
    ({"implementation": "megatron", "gradient_bytes": 2}, 2),
], ids=str)  # fmt: skip
def test_megatron_adds_gradients_up_in_fp32_but_nvidias_recipes_do_not(job, gradient_bytes):
    asked = chosen(job.pop("model", "llama3-8b"), **job, **({} if "zero" in job else {"tp": 4}))
    assert asked.job.gradient_bytes == gradient_bytes
    told = any(f"gradients of {gradient_bytes} bytes each" in line for line in emulate(asked).plan.assumptions)
    assert told == (asked.job.zero < 3)


def test_where_gradients_in_fp32_do_not_fit_they_are_half_as_large():
    """Before anything is recomputed; who asks for them, and leaves nothing else open, is told."""
    split = {
        "gpus": 64, "tp": 4, "pp": 4, "virtual_stages": 5, "schedule": "interleaved", "batch": 128, "sequence": 3584,
    }  # fmt: skip
    split |= {"micro_batch": 1, "zero": 1, "precision": "bf16", "implementation": "megatron", "attention": "fa2"}
    asked = chosen("llama3-70b", **split)
    assert (asked.job.gradient_bytes, asked.job.recompute) == (2, "none")
    asked = chosen("llama3-70b", **split, gradient_bytes=4, recompute="none")
    with pytest.raises(OutOfMemory, match="It would fit with gradient-bytes 2"):
        emulate(asked)


def test_layers_are_even_with_embedding_and_loss():
    """Llama 3's 126 over 16 x 8 pieces, as NVIDIA splits them; who says how they count is heeded."""
    split = {"gpus": 256, "tp": 4, "pp": 16, "virtual_stages": 8, "schedule": "interleaved", "batch": 128}
    split |= {"sequence": 8192, "micro_batch": 1, "precision": "nvfp4"}
    asked = chosen("llama3-405b", "gb200-nvl72", **split)
    assert asked.job.counts_embedding and asked.job.counts_loss and emulate(asked).iteration_s > 0
    with pytest.raises(ConfigError, match="can't be split into 128 pieces"):
        emulate(chosen("llama3-405b", "gb200-nvl72", **split, counts_loss=False))
    assert not chosen("llama3-70b", **{**split, "gpus": 64, "virtual_stages": 5, "precision": "fp8"}).job.counts_loss


def test_no_more_layers_are_recomputed_than_do_not_fit():
    """Of a split that is given; else another one may need no recomputation."""
    split = {"gpus": 64, "tp": 4, "pp": 8, "batch": 256, "sequence": 8192, "micro_batch": 2, "zero": 1}
    split |= {"virtual_stages": 5, "schedule": "interleaved", "precision": "fp8", "implementation": "megatron-core"}
    asked = chosen("llama3-70b", **split)
    assert asked.job.recompute == "full" and asked.job.recompute_every > 1
    assert f"recompute full, 1 layer in {asked.job.recompute_every}" in asked.choice.lines(asked.job)[0]
    fewer = chosen("llama3-70b", **split, recompute="full", recompute_every=2 * asked.job.recompute_every)
    with pytest.raises(OutOfMemory):
        emulate(fewer)
    assert emulate(asked).iteration_s < emulate(chosen("llama3-70b", **split, recompute="full")).iteration_s


def test_small_models_are_data_parallel_only():
    for model in ("gpt2-124m", "bert-large", "resnet50", "dlrm"):
        job = chosen(model, "a100-dgx").job
        assert (job.tp, job.pp, job.zero, job.recompute) == (1, 1, 0, "none"), model


def test_gradients_that_switches_or_codecs_add_up_are_not_sharded():
    for options in ({"job": {"allreduce": "switchml", "gpus": 8}}, {"codec": "powersgd", "job": {"gpus": 8}}):
        assert request({**H100, **options}).job.zero == 0


def test_a_job_that_says_all_is_as_it_was():
    fields = {"gpus": 64, "tp": 4, "pp": 2, "batch": 64, "micro_batch": 2, "zero": 1, "recompute": "full"}
    fields |= {"precision": "bf16", "implementation": "megatron-core", "sequence_parallel": True, "ep": 1}
    fields |= {"gradient_bytes": 2}
    asked = chosen(**fields)
    assert asked.job == Job(**fields) and asked.choice.names == () and asked.choice.lines(asked.job) == []
    plain = Request(model="llama3-8b", cluster="h100-dgx", job=Job(**fields))
    assert emulate(asked).iteration_s == emulate(plain).iteration_s


def test_a_split_that_is_given_in_part_is_completed_only_where_it_does_not_fit():
    assert (chosen(tp=8).job.tp, chosen(tp=8).job.pp) == (8, 1)
    large = chosen("llama3-70b", gpus=64, tp=4)
    assert large.job.tp == 4 and large.job.pp > 1
    assert emulate(large).memory.total <= 84.93e9
    sharded = chosen("gpt3-175b", "a100-dgx", gpus=64, tp=8, pp=1)
    assert sharded.job.zero == 3 and emulate(sharded).memory.total <= 84.99e9


def test_batches_decide_the_split_where_none_is_given():
    assert chosen(batch=2).job.dp <= 2
    assert chosen(batch=7).job.dp in (1, 7)
    with pytest.raises(ConfigError, match="batch 7 is not divisible by 8"):
        chosen(batch=7, tp=1, pp=1)


def test_a_job_that_nothing_makes_fit_is_refused_with_the_least_memory():
    asked = chosen("llama3-70b")
    with pytest.raises(OutOfMemory, match="on the fullest accelerator, NVIDIA H100 SXM5 80 GB has 79.1 GiB"):
        emulate(asked)
    assert asked.job.recompute == "full"


def ranked(**options):
    return request({**H100, "split": "auto", **options}).choice.ranking


def test_a_ranking_has_the_ten_fastest_splits_that_fit():
    ranking = ranked(job={"gpus": 16, "batch": 32})
    times = [one.iteration_s for one in ranking]
    assert len(ranking) == 10 and times == sorted(times)
    assert len({dataclasses.astuple(one.job) for one in ranking}) == 10
    assert all(one.memory_bytes <= 84.93e9 and one.job.global_batch == 32 for one in ranking)
    assert all(one.job.tp == 2 for one in ranked(job={"gpus": 16, "tp": 2}))


@pytest.mark.slow
def test_the_best_split_is_the_best_of_all_combinations():
    """Each combination is emulated; the search costs most of them by their closed form alone."""
    common = {"gpus": 4, "batch": 16, "sequence_parallel": False}
    table = {"model": "gpt3-2.7b", "cluster": "a100-dgx"}
    best = request({**table, "split": "auto", "job": common}).choice.best
    times = {}
    spaces = (1, 2, 4), (1, 2, 4), (0, 1, 3), (1, 2, 4, 8), ("none", "selective", "full"), (1, 2)
    for tp, pp, zero, micro, recompute, pieces in itertools.product(*spaces):
        split = {"tp": tp, "pp": pp, "zero": zero, "virtual_stages": pieces}
        load = {"micro_batch": micro, "recompute": recompute}
        try:
            code = request({**table, "job": {**common, "tp": tp, "pp": pp, "zero": zero}}).job.implementation
            schedule = "interleaved" if pieces > 1 else "1f1b"
            job = Job(**common, **split, **load, precision="bf16", implementation=code, schedule=schedule)
            times[tp, pp, zero, pieces, micro, recompute] = emulate(Request(**table, job=job)).iteration_s
        except (ConfigError, OutOfMemory):
            continue
    assert best.iteration_s <= min(times.values()) * 1.02


def test_layers_that_no_pipeline_divides_are_divided_with_embedding_and_loss():
    """Llama 3 405B's 126 layers on 16,384 GPUs: the split that was trained with (Dubey et al. 2024, table 4)."""
    job = {"gpus": 16384, "batch": 2048, "sequence": 8192}
    asked = request({"model": "llama3-405b", "cluster": "h100-dgx", "job": job, "split": "auto"})
    found = asked.job
    assert (found.tp, found.pp, found.dp, found.recompute) == (8, 16, 128, "none")
    assert found.counts_embedding and found.counts_loss and found.virtual_stages > 1
    assert "embedding and loss counted as layers" in asked.choice.lines(found)[0]
