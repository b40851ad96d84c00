"""`switchml train` as a user calls it, in a process of its own."""

import json
import os
import re
import signal
import subprocess
import time

import psutil
import pytest

from tests.support import commands

pytest.importorskip("torch")


def start(*arguments: str, start_new_session: bool = False) -> subprocess.Popen:
    return commands.start("train", *arguments, start_new_session=start_new_session)


def run(*arguments: str) -> subprocess.CompletedProcess:
    return commands.run("train", *arguments)


def run_json(*arguments: str) -> dict:
    return commands.run_json("train", *arguments)


@pytest.fixture(scope="module")
def runs() -> dict[str, dict]:
    """A run through each aggregator that needs no root; the first is what users get."""
    return {"p4": run_json("--steps", "120"), "software": run_json("--steps", "120", "--aggregator", "software")}


@pytest.fixture(params=["p4", "software"])
def short_run(request, runs) -> dict:
    return runs[request.param]


def test_same_accuracy_as_gloo(short_run):
    assert short_run["workers"] == 4 and short_run["steps"] == 120
    assert short_run["transport"] == {"p4": "frames", "software": "shm"}[short_run["aggregator"]]
    assert short_run["accuracy"]["switchml"] >= 0.97
    assert abs(short_run["accuracy"]["switchml"] - short_run["accuracy"]["gloo"]) <= 0.005
    assert 0 < short_run["max_param_diff"] < 1e-3
    assert len(short_run["loss"]["switchml"]) == 120
    assert short_run["loss"]["switchml"] == pytest.approx(short_run["loss"]["gloo"], abs=2e-3)
    assert all(seconds > 0 for seconds in short_run["seconds"].values())
    packets = short_run["packets"]
    # 71,754 float32 at 256 or 2,048 a packet, from each of 4 workers in each of 120 steps.
    least = 120 * 4 * (281 if short_run["aggregator"] == "p4" else 36)
    assert packets["sent"] - packets["retransmitted"] >= least and packets["received"] >= least
    assert packets["refused"] == 0


@pytest.mark.parametrize("aggregator", ["p4", "software"])
def test_lost_and_reordered_packets_change_no_bit(runs, aggregator):
    short_run = runs[aggregator]
    lossy = run_json("--steps", "120", "--loss", "0.02", "--reorder", "0.02", "--aggregator", aggregator)
    assert lossy["packets"]["retransmitted"] > short_run["packets"]["retransmitted"]
    assert lossy["packets"]["retransmitted"] > 1000
    assert lossy["params_sha256"] == short_run["params_sha256"]
    assert lossy["loss"] == short_run["loss"]


def test_all_aggregators_give_the_same_bits(runs):
    assert runs["p4"]["params_sha256"] == runs["software"]["params_sha256"]


@pytest.mark.root
def test_simple_switch_gives_the_same_bits(require_program):
    require_program("simple_switch")
    require_program("ip")
    through = {
        name: run_json("--steps", "10", "--ranks", "2", "--aggregator", name, "--loss", rate)
        for name, rate in (("bmv2", "0.01"), ("software", "0"))
    }
    assert through["bmv2"]["params_sha256"] == through["software"]["params_sha256"]
    assert through["bmv2"]["transport"] == "frames"


@pytest.mark.parametrize("workers", [1, 8])
def test_number_of_workers(workers):
    report = run_json("--ranks", str(workers), "--steps", "8", "--micro-batch", "8")
    assert report["workers"] == workers
    assert report["loss"]["switchml"] == pytest.approx(report["loss"]["gloo"], abs=1e-3)


def test_a_model_in_shards():
    """FSDP through the software aggregator and a P4 switch: Gloo's losses, and the model that DDP trains."""
    result = run_json("--parallel", "fsdp", "--ranks", "2", "--steps", "40")
    switched = run_json("--parallel", "fsdp", "--ranks", "2", "--steps", "40", "--aggregator", "p4")
    assert switched["loss"] == result["loss"]
    assert (result["parallel"], result["aggregator"]) == ("fsdp", "software")
    assert result["loss"]["switchml"] == pytest.approx(result["loss"]["gloo"], abs=1e-5)
    assert 0 <= result["max_param_diff"] < 1e-5
    assert result["packets"]["sent"] >= 40 * 2 * 2 * 36, "parameters are gathered, and gradients scattered"
    whole = run_json("--ranks", "2", "--steps", "40", "--aggregator", "software")
    assert result["loss"]["gloo"] == pytest.approx(whole["loss"]["gloo"], abs=1e-4)


def test_a_model_in_stages():
    """Gloo's losses through the aggregator, and those of ranks that each have the whole model."""
    result = run_json("--pipeline", "2", "--ranks", "4", "--steps", "40", "--seed", "2")
    assert (result["pipeline"], result["aggregator"]) == (2, "software")
    assert result["loss"]["switchml"] == pytest.approx(result["loss"]["gloo"], abs=1e-4)
    whole = run_json("--ranks", "4", "--steps", "40", "--seed", "2", "--aggregator", "software")
    assert result["loss"]["gloo"] == pytest.approx(whole["loss"]["gloo"], abs=1e-4)


def test_states_on_the_host_or_of_pruned_weights():
    """A tenth of the weights takes about a tenth of the packets, and learns; what is offloaded is all there."""
    options = ("--ranks", "2", "--steps", "200", "--aggregator", "software")
    offloaded, pruned = run_json(*options, "--offload"), run_json(*options, "--prune", "0.9")
    assert offloaded["states"]["host_bytes"] == 8 * 71754
    assert pruned["states"]["left"] < 0.11 * pruned["states"]["parameters"]
    assert pruned["packets"]["sent"] < 0.2 * offloaded["packets"]["sent"]
    assert offloaded["accuracy"]["switchml"] > 0.97 and pruned["accuracy"]["switchml"] > 0.9


def test_the_workers_of_this_host_sum_first():
    """One of them sends for all."""
    report = run_json("--ranks", "3", "--steps", "8", "--aggregator", "software", "--hierarchy", "node")
    assert report["hierarchy"] == "node"
    assert report["loss"]["switchml"] == pytest.approx(report["loss"]["gloo"], abs=1e-3)
    packets = report["packets"]
    assert 8 * 36 <= packets["sent"] - packets["retransmitted"] < 2 * 8 * 36


def test_table_and_progress(as_on_a_terminal):
    done = run("--ranks", "2", "--steps", "6", "--activations", "levels")
    assert done.returncode == 0, done.stderr
    for text in (
        "2 ranks, 6 steps",
        "Gloo",
        "in-network",
        "accuracy",
        "activations by levels",
        "packets retransmitted",
    ):
        assert text in done.stdout
    assert "Gloo" in done.stderr and "6/6, loss" in done.stderr


def workers_of(process: subprocess.Popen, count: int) -> list[psutil.Process]:
    """The worker processes of a running command by rank, once there are `count`."""
    deadline = time.monotonic() + 200
    while True:
        # The command's children are the aggregator, whose child may be a switch, and the process that forks workers.
        forkers = [one for one in psutil.Process(process.pid).children() if "forkserver" in " ".join(one.cmdline())]
        found = [child for one in forkers for child in one.children()]
        if len(found) >= count:
            return sorted(found, key=lambda worker: worker.pid)
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)


def family(process: subprocess.Popen) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def wait_for_line(process: subprocess.Popen, text: str) -> None:
    """Read stderr up to a line that contains `text`."""
    for line in process.stderr:
        if text in line:
            return
    raise AssertionError(f"the command ended before it said {text!r}")


@pytest.mark.parametrize(
    ("phase", "victim"), [("Gloo", "rank 2"), ("in-network", "rank 2"), ("in-network", "the aggregator")]
)
def test_who_is_killed_is_named(phase, victim, as_on_a_terminal):
    process = start("--steps", "300", "--ranks", "3", "--micro-batch", "4")
    try:
        killed = workers_of(process, 3)[2]
        wait_for_line(process, f"{phase} ")
        everybody = family(process)
        if victim == "the aggregator":
            killed = next(child for child in everybody if "host_agent.pytorch.aggregator" in child.cmdline())
        killed.kill()
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 1
    assert re.search(rf"{victim} \(pid {killed.pid}\).* was killed by SIGKILL", err)
    assert "Traceback" not in err and out == ""
    commands.assert_all_end(everybody)


def test_ctrl_c_before_anything_runs():
    """A terminal sends it to all processes at once; none of them has anything to say about it."""
    process = start("--ranks", "2", start_new_session=True)
    try:
        while len(family(process)) < 2:
            time.sleep(0.01)
        everybody = family(process)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (130, "", "")
    commands.assert_all_end(everybody)


def test_settings_files_are_obeyed(tmp_path):
    (tmp_path / "settings.toml").write_text(
        '[environment]\nSWITCHML_WIRE = "int16"\n'
        "[ddp]\nbucket_cap_mb_list = [0.01, 1.0]\n"
        '[compression]\ncodec = ["none", "fp16"]\n'
    )
    options = ("--ranks", "2", "--steps", "6", "--aggregator", "software", "--trace", str(tmp_path))
    told = run_json(*options, "--settings", str(tmp_path / "settings.toml"))
    assert (told["wire"], told["codec"]) == ("int16", "none, fp16")
    assert told["codec_totals"]["bytes_sent"] < told["codec_totals"]["bytes_dense"]
    for backend, hook in (("gloo", ""), ("switchml", "codec_hook")):
        (ddp,) = json.loads((tmp_path / backend / "rank-0.about.json").read_text())["ddp"]
        assert ddp["comm_hook"] == hook
        assert [len(bucket) for bucket in ddp["buckets"]] == [4, 4], "without settings all eight gradients go together"


def test_settings_and_codec_exclude_each_other(tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text('[compression]\ncodec = ["fp16"]\n')
    refused = run("--settings", str(path), "--codec", "bf16")
    assert refused.returncode == 2 and "names codecs, too; expected one of the two" in refused.stderr


def test_settings_that_are_none(tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text("[ddp]\nbucket_cap = 1\n")
    refused = run("--settings", str(path))
    assert refused.returncode == 1 and str(path) in refused.stderr and "bucket_cap" in refused.stderr
