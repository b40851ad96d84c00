import pytest
from click.testing import CliRunner

from emulator.traces.readers import native
from host_agent.pytorch.settings import load
from switchml.cli.main import cli
from tests.support import traced_jobs
from tests.support.commands import told


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """Two iterations of a job that pays the latency of many all-reduces, one after the other."""
    folder = tmp_path_factory.mktemp("traces")
    job = traced_jobs.Job(
        ranks=2, backward_s=0.010, gradient_bytes=1e6, buckets=(1, 1, 1, 1, 2, 2), latency_s=0.02, bytes_per_s=1e8
    )
    for trace in traced_jobs.traced(job, iterations=2).traces:
        native.write(trace, folder / f"rank-{trace.rank}{native.SUFFIX}")
    return folder


def run(*arguments):
    return CliRunner().invoke(cli, ["trace", "optimize", *map(str, arguments)])


def test_a_file_and_an_object(traces, tmp_path):
    out = tmp_path / "settings.toml"
    said = told("trace", "optimize", traces, "--out", out, "--trials", 300)
    assert said["replayed_s"] == pytest.approx(said["traced_s"], rel=0.03)
    assert 0 < said["predicted_s"] < said["replayed_s"] and 0.1 < said["gain"] < 1
    assert {each["pass"] for each in said["alone"]} >= {"buckets", "allreduce", "codec", "accumulate", "fuse"}
    settings = load(out)
    assert settings.ddp == said["settings_file"]["ddp"]
    assert "bucket_cap_mb" in settings.ddp or "bucket_cap_mb_list" in settings.ddp


def test_a_file_that_is_there_is_kept_unless_asked_for(traces, tmp_path):
    out = tmp_path / "settings.toml"
    out.write_text("mine")
    ran = run(traces, "--out", out)
    assert ran.exit_code == 1 and "exists: give --overwrite" in ran.stderr and out.read_text() == "mine"
    ran = run(traces, "--out", out, "--overwrite", "--allow", "allreduce", "--trials", 20)
    assert ran.exit_code == 0, ran.output
    assert out.read_text() != "mine" and "note" not in ran.stderr


@pytest.mark.slow
def test_a_table_for_people(traces, tmp_path):
    out = tmp_path / "settings.toml"
    ran = run(traces, "--out", out, "--allow", "buckets,accumulate", "--uniform", "--trials", 200)
    assert ran.exit_code == 0, ran.output
    assert "less time for a sample" in " ".join(ran.output.split()) and "no_sync" in ran.output
    assert "bucket_cap_mb_list" not in load(out).ddp


def test_a_jobs_settings(tmp_path):
    job, out = tmp_path / "job.toml", tmp_path / "better.toml"
    job.write_text('model = "resnet50"\ncluster = "a100-dgx"\n[job]\ngpus = 8\nbatch = 256\nmicro_batch = 32\n')
    ran = run(job, "--out", out, "--allow", "buckets", "--time-limit", "60s")
    assert ran.exit_code == 0, ran.output
    assert "What each change gains alone" in ran.stdout and "buckets" in ran.stdout and "[job]" in out.read_text()
