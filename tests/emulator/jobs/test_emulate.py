"""`switchml emulate`: job files and options, results, and errors before time is spent."""

import json

import pytest
from click.testing import CliRunner

from emulator.cluster.accelerator import accelerators
from emulator.jobs import emulate
from emulator.jobs.description import request
from emulator.jobs.training import Run, goodput
from emulator.jobs.workload import models
from emulator.jobs.workload.implementations import attention_kernels
from emulator.jobs.workload.job import Job
from switchml.cli.main import cli
from switchml.errors import ConfigError, OutOfMemory
from tests.support.commands import told

GPT3 = ["--model", "gpt3-175b", "--cluster", "a100-dgx", "--gpus", "1024", "--tp", "8", "--pp", "8", "--batch", "1536"]
GPT3 += ["--micro-batch", "1", "--schedule", "1f1b", "--recompute", "full"]


def run(*arguments):
    return CliRunner().invoke(cli, ["emulate", *arguments])


def run_json(*arguments):
    return told("emulate", *arguments)


def test_gpt3_on_1024_accelerators():
    """300 G tokens took 34 days at 140 TFLOP/s (Narayanan et al., section 5.1)."""
    found = run_json(*GPT3, "--allreduce", "ring", "--tokens", "300e9")
    assert found["hours"] / 24 == pytest.approx(34, rel=0.1)
    assert sum(found["parts"].values()) == pytest.approx(found["iteration_s"])
    assert found["samples_per_s"] == pytest.approx(1536 / found["iteration_s"])
    assert found["gpu_hours"] == pytest.approx(1024 * found["hours"])
    assert {"mfu", "cost", "ops", "events", "wall_s"} <= set(found)
    assert found["memory_bytes"] == pytest.approx(sum(found["memory"].values()))
    assert len(found["assumptions"]) > 5


def test_job_files_and_options_that_override_them(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text('model = "gpt2-124m"\n[job]\ngpus = 4\nmicro_batch = 2\n[run]\nsteps = 1000\n')
    from_file = run_json(str(path))
    assert (from_file["gpus"], from_file["batch"], from_file["steps"]) == (4, 8, 1000)
    assert run_json(str(path), "--gpus", "8")["gpus"] == 8


def test_out_of_memory_says_what_would_help():
    job = {"gpus": 8, "tp": 1, "pp": 1, "zero": 0, "recompute": "none"}
    asked = request({"model": "gpt3-6.7b", "job": job})
    with pytest.raises(
        OutOfMemory, match="It would fit with recompute full with zero 1|It would fit with zero"
    ) as caught:
        emulate.emulate(asked)
    assert sum(caught.value.parts.values()) == pytest.approx(caught.value.needed_bytes)
    ignoring = request({"model": "gpt3-6.7b", "job": job, "ignore_memory": True})
    assert emulate.emulate(ignoring).iteration_s > 0


def test_torch_modules(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    (tmp_path / "mynet.py").write_text(
        "import torch\ndef net():\n    "
        "return torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = emulate.emulate(request({"model": "mynet:net", "input_shape": "8", "job": {"gpus": 2}}))
    assert found.plan.model.parameters == 8 * 64 + 64 + 64 * 2 + 2


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "axonn"])
def test_measured_stages_take_what_their_formula_says(tmp_path, schedule):
    """Equal stages: (micro-batches + stages - 1) passes (Narayanan et al., SC 2021), where messages take no time."""
    path = tmp_path / "net.csv"
    columns = "layer_index,numel,forward_pass_ns,backward_pass_ns,stage,output_elements\n"
    path.write_text(columns + "".join(f"{i},10,5000000,10000000,{i // 2},1\n" for i in range(4)))
    job = {"gpus": 4, "pp": 2, "batch": 16, "micro_batch": 1, "schedule": schedule}
    found = emulate.emulate(request({"model": str(path), "cluster": "a100-dgx", "job": job}))
    assert found.iteration_s == pytest.approx((8 + 1) * 30e-3, rel=0.02)
    with pytest.raises(ConfigError, match="2 stages in its column `stage`, each in one piece, but pp is 4"):
        emulate.emulate(request({"model": str(path), "job": job | {"pp": 4}}))


def test_a_straggler_holds_all_up():
    table = {"model": "gpt2-355m", "job": {"gpus": 8, "micro_batch": 4}}
    even = emulate.emulate(request(table))
    slow = emulate.emulate(request(table | {"noise": {"stragglers": 0.125, "slowness": 2.0}}))
    assert slow.fold == "tensor" and len(slow.played.graph.ranks) == 8
    assert slow.iteration_s > 1.8 * even.iteration_s
    assert slow.parts["waiting for peers"] > 0.3 * slow.iteration_s


def test_goodput():
    """Daly's first-order optimum: checkpoints of 60 s and a failure a day cost about sqrt(2 C / M)."""
    day = 86400.0
    assert goodput(60, 0, day) == pytest.approx(1 - (2 * 60 / day) ** 0.5)
    assert goodput(0, 0, day) == pytest.approx(1.0, abs=1e-4)
    with pytest.raises(ConfigError, match="no time is left"):
        goodput(600, 300, 600)


def test_failures_lengthen_a_training():
    base = ("--model", "gpt2-124m", "--gpus", "64", "--steps", "1e6")
    found = run_json(*base, "--mtbf-hours", "50")
    assert found["goodput"] < 1
    without = run_json(*base)
    assert without["goodput"] is None and found["hours"] == pytest.approx(without["hours"] / found["goodput"])
    spread = found["goodput_quantiles"]
    assert 0 < spread["p5"] < spread["p50"] < spread["p95"] < 1
    assert found["failures"] == pytest.approx(64 * found["hours"] / 50, rel=0.05)
    assert found["hours_p95"] > found["hours"] and found["checkpoint_steps"] > 1
    assert any("1,000 trainings played" in line for line in found["assumptions"])
    rarely = run_json(*base, "--mtbf-hours", "50", "--checkpoint-steps", str(20 * found["checkpoint_steps"]))
    assert rarely["goodput"] < found["goodput"] < 1
    # Of unknown length, the closed form: the same on average.
    unknown = run_json(*base[:-2], "--mtbf-hours", "50")
    assert unknown["goodput"] == pytest.approx(found["goodput"], abs=0.01) and "failures" not in unknown


def test_nonsense_is_refused():
    with pytest.raises(ConfigError, match="steps or in tokens"):
        Run(steps=1, tokens=1)


def test_offloaded_states_need_host_memory():
    def emulated(pp, **more):
        job = {"gpus": 64, "tp": 8, "pp": pp, "zero": 0, "recompute": "full"}
        table = {"model": "gpt3-175b", "cluster": "h200-hgx", "job": job, "memory": {"offload_bucket": 16e6}, **more}
        return emulate.emulate(request(table))

    with pytest.raises(OutOfMemory, match="out of host memory: 8 ranks of a node hold .* of 243.9 GiB each"):
        emulated(1)
    assert emulated(2).memory.total < emulated(1, ignore_memory=True).memory.total


def test_memory_options():
    base = ("--model", "gpt3-2.7b", "--gpus", "8", "--pp", "4", "--batch", "64", "--recompute", "selective")
    plain = run_json(*base)
    offloaded = run_json(*base, "--offload-bucket", "16e6")
    pruned = run_json(*base, "--pruned", "0.9")
    packed = run_json(*base, "--activation-ratio", "4")
    for found in (offloaded, pruned, packed):
        assert found["memory_bytes"] < plain["memory_bytes"]
    parameters = plain["memory"]["weights"] / 2
    states = [sum(found["memory"][k] for k in ("weights", "gradients", "optimizer")) for found in (offloaded, pruned)]
    assert states == pytest.approx([4 * parameters + 16 * 16e6, 4.4 * parameters])
    assert offloaded["iteration_s"] > plain["iteration_s"] > pruned["iteration_s"]
    assert packed["parts"]["compression"] > 0


def test_nccl_tables_take_the_place_of_the_formula(tmp_path):
    rows = "\n".join(f"{i * 2**20},1,float,{i * 100_000},1,1,1" for i in range(1, 65))
    (tmp_path / "slow_8gpu.txt").write_text(rows)
    base = ("--model", "megatron-22b", "--gpus", "8", "--tp", "8", "--recompute", "full", "--micro-batch", "1")
    formula, table = run_json(*base), run_json(*base, "--nccl-tables", str(tmp_path))
    exchanged = 48 * 2 * 3 * 2048 * 6144 * 2 / (2**20 / 1e-4)
    assert table["parts"]["exposed_communication"] == pytest.approx(exchanged, rel=0.02)
    assert table["iteration_s"] > formula["iteration_s"]


def test_timeline_and_report(tmp_path):
    pytest.importorskip("jinja2")
    timeline, page = tmp_path / "t.json", tmp_path / "r.html"
    small = ("--model", "gpt2-124m", "--gpus", "8", "--pp", "2", "--batch", "16")
    run_json(*small, "--timeline", str(timeline), "--report", str(page))
    events = json.loads(timeline.read_text())["traceEvents"]
    assert any(event.get("name", "").startswith("attention") for event in events)
    assert "GPT-2" in page.read_text()
    picture = tmp_path / "r.svg"
    done = run(*small, "--report", str(picture), "--sweep", "gpus=8:16:2x")
    assert done.exit_code == 0 and f"wrote {picture}" in "".join(done.stderr.splitlines())
    for words in ("GPT-2", "exposed communication", "Memory: ", "Throughput", "linear"):
        assert words in picture.read_text()
    found = run(*small, "--report", str(tmp_path / "none" / "r.html"))
    assert found.exit_code == 2 and "no such folder" in " ".join(found.stderr.split())


def test_a_micro_batch_is_what_fits_and_is_marked():
    """ResNet-50 with 256 images a GPU took 12.2 s, in 256 micro-batches of one image."""
    job = ("--model", "resnet50", "--batch", "2048", "--gpus", "8")
    found = run_json(*job)
    assert found["micro_batch"] == 256 and found["assumed"]["micro_batch"] == 256 and "batch" not in found["assumed"]
    assert found["iteration_s"] == pytest.approx(0.073, rel=0.02) and found["warnings"] == []
    assert "batch 2048 in micro-batches of 256 (assumed)" in " ".join(run(*job).output.split())
    in_ones = run_json(*job, "--micro-batch", "1")
    assert in_ones["iteration_s"] > 50 * found["iteration_s"] and "256 micro-batches of 1" in in_ones["warnings"][0]


def test_what_does_not_fit_is_split_into_micro_batches():
    found = run_json("--model", "gpt2-1.5b", "--gpus", "8", "--batch", "512", "--zero", "1")
    assert 1 < found["micro_batch"] < 64 and 64 % found["micro_batch"] == 0 and found["memory_bytes"] < 85e9
    piped = run_json("--model", "gpt2-1.5b", "--gpus", "8", "--pp", "4", "--batch", "512")
    assert 256 / piped["micro_batch"] >= 16


def test_a_slow_network_is_pointed_out():
    job = ("--model", "vgg16", "--gpus", "32", "--allreduce", "switchml")
    assert any("fp16 travels as int32 here: --wire-bytes 2" in line for line in run_json(*job)["warnings"])


def test_what_nobody_asked_for_is_null():
    found = run_json("--model", "gpt2-124m", "--gpus", "8")
    assert [found[name] for name in ("steps", "hours", "gpu_hours", "cost", "energy_kwh")] == [None] * 5
    assert found["tokens_per_s_per_gpu"] == pytest.approx(found["tokens_per_s"] / 8)
    assert found["tflops_per_gpu"] == pytest.approx(312 * found["mfu"])


def test_units_in_options_and_files(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text('model = "gpt2-124m"\n[job]\nbucket_bytes = "25MiB"\n[run]\ntokens = "300M"\n')
    as_written = run_json(str(path))
    as_option = run_json("--model", "gpt2-124m", "--bucket-cap", "25MiB", "--tokens", "300M")
    assert as_written["steps"] == as_option["steps"] == run_json(str(path), "--tokens", "300e6")["steps"]
    path.write_text('model = "gpt2-124m"\n[job]\nbucket_bytes = "25 lots"\n')
    assert "bucket_bytes: expected a number, not '25 lots', or a size such as 25MB" in run(str(path)).stderr


def test_a_cluster_of_ones_own_is_credited_to_its_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('extends = "a100-dgx"\nprice_per_hour = 1.5\n[between]\nport_bps = "100gbit"\n')
    lines = run_json("--model", "gpt2-124m", "--cluster", str(path), "--steps", "10")["assumptions"]
    assert any(line.startswith("price: mine.toml") for line in lines)
    assert any("mine.toml; what it omits: NVIDIA" in line for line in lines)


@pytest.mark.parametrize("cluster", ["a100-dgx", "h100-dgx", "b200-dgx", "mi300x-platform"])
def test_long_sequences_are_no_faster_than_the_chip(cluster):
    """Causal attention counts by the half that its kernel computes: 141 % were printed at 131,072 tokens."""
    job = ("--model", "llama3-8b", "--cluster", cluster, "--gpus", "8", "--ignore-memory", "--recompute", "full")
    for sequence in ("8192", "131072", "1048576"):
        assert 0 < run_json(*job, "--sequence", sequence, "--cp", "8")["mfu"] < 0.75


@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp32"])
def test_attention_is_slower_than_a_matrix_product(precision):
    for device in accelerators().values():
        for name, kernel in attention_kernels().items():
            if precision in device.flops and kernel.runs_on(device) and kernel.runs_in(precision):
                best = device.matmul_share * device.peak(precision)
                assert max(kernel.rates(device, name, precision, 1 << 20, 128)) <= best, (device.title, name)


@pytest.mark.parametrize(
    ("cluster", "options", "kernel"),
    [
        ("h100-dgx", "--implementation torch", "cuDNN's attention"),
        ("h100-dgx", "--implementation megatron-core", "cuDNN's attention"),
        ("h100-dgx", "--implementation megatron", "FlashAttention-2"),
        ("a100-dgx", "--implementation torch", "torch's own FlashAttention-2"),
        ("a100-dgx", "--implementation megatron-core", "FlashAttention-2"),
        ("h100-dgx", "--implementation torch-1", "FlashAttention-2"),
        ("v100-dgx1", "--implementation torch", "torch's memory-efficient attention"),
        ("h100-dgx", "--implementation torch --precision tf32", "torch's memory-efficient attention"),
        ("h100-dgx", "--implementation torch --attention fa3", "FlashAttention-3"),
    ],
)
def test_the_implementation_chooses_attentions_kernel(cluster, options, kernel):
    job = ("--model", "llama2-7b", "--gpus", "8", "--ignore-memory", "--cluster", cluster, *options.split())
    assert any(line.startswith(f"attention: {kernel}; ") for line in run_json(*job)["assumptions"])


def test_kernels_run_where_they_exist():
    job = ("--model", "gpt3-1.3b", "--gpus", "1", "--attention", "fa3")
    assert "FlashAttention-3 runs on Hopper; NVIDIA A100" in run(*job, "--cluster", "a100-dgx").stderr
    assert run(*job, "--cluster", "h100-dgx").exit_code == 0
    assert (
        "runs in half precision, the job is in tf32" in run(*job, "--cluster", "h100-dgx", "--precision", "tf32").stderr
    )
    job = (*job[:-1], "fa2")
    assert "FlashAttention-2 does not run there; NVIDIA V100" in run(*job, "--cluster", "v100-dgx1").stderr
    job = (*job[:-1], "measured")
    assert "no kernel was measured on NVIDIA H100" in run(*job, "--cluster", "h100-dgx").stderr


def test_buckets_of_gradients_are_the_implementations():
    """Megatron: 40 million parameters, or a million for each rank; DDP: 25 MiB."""
    gpt, resnet = models.load("gpt3-1.3b"), models.load("resnet50")
    assert Job(gpus=8, batch=8).bucket_parameters(gpt) == 40e6
    assert Job(gpus=1024, batch=1024).bucket_parameters(gpt) == 1024e6
    assert Job(gpus=64, batch=64, tp=8, implementation="megatron-core").bucket_parameters(gpt) == 40e6
    for job in (Job(gpus=8, batch=8, implementation="compiled"), Job(gpus=8, batch=8, implementation="torch")):
        assert job.bucket_parameters(gpt) == 25 * 2**20 / 2
    assert Job(gpus=1024, batch=1024, gradient_bytes=4).bucket_parameters(resnet) == 25 * 2**20 / 4
    assert Job(gpus=8, batch=8, bucket_bytes=1e6).bucket_parameters(gpt) == 5e5
    with pytest.raises(ConfigError, match="bucket_bytes is 0; expected 1 to 1e15"):
        Job(gpus=8, batch=8, bucket_bytes=0)
