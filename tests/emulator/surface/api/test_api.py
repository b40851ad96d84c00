"""`import switchml` and nothing else: emulate, sweep, traces; what results look like, and what is refused."""

import dataclasses
import json
import os
import re
import typing
from importlib import metadata
from pathlib import Path

import pytest
from click.testing import CliRunner

import switchml
from emulator.jobs.description import Request
from emulator.jobs.workload.job import Job
from emulator.surface.api.emulating import Options
from emulator.surface.api.replaying import Changes
from emulator.surface.cli.emulate import emulate as command
from emulator.surface.cli.trace.replay import replay as replay_command
from switchml.errors import ConfigError, TraceError

TRACES = Path(__file__).parents[2] / "traces" / "captures" / "switchml-2-ranks"
JOB = {"model": "resnet50", "cluster": "a100-dgx", "gpus": 8, "micro_batch": 32}


@pytest.fixture(scope="module")
def result() -> switchml.Result:
    return switchml.emulate(**JOB)


@pytest.fixture(scope="module")
def traces() -> switchml.trace.Traces:
    return switchml.trace.read(TRACES)


# Where the names come from


def test_every_name_from_above_is_an_entry_point():
    stub = Path(switchml.__file__).with_suffix(".pyi").read_text()
    above = re.findall(r"^from (emulator\S*) import (\w+) as \2$", stub, re.MULTILINE)
    entries = {entry.name: entry.value for entry in metadata.entry_points(group="switchml.api")}
    expected = {name: f"{module}.{name}" if name == "trace" else f"{module}:{name}" for module, name in above}
    assert entries == expected


def test_options_are_those_of_a_job_file():
    fields = {field.name: field for field in (*dataclasses.fields(Job), *dataclasses.fields(Request))}
    hints = typing.get_type_hints(Options)
    assert hints.keys() == fields.keys() - {"job", "assumed", "choice"}
    for name, hint in hints.items():
        assert fields[name].type == getattr(hint, "__name__", "") or typing.get_origin(hint) is not None, name


# Emulation


def test_result_says_what_the_command_says(result):
    said = CliRunner().invoke(command, [f"--{k.replace('_', '-')}={v}" for k, v in JOB.items()] + ["--json"])
    figures, ours = json.loads(said.stdout), result.to_json()
    assert figures | {"wall_s": 0} == json.loads(json.dumps(ours)) | {"wall_s": 0}


def test_reprs_are_short(result, traces):
    assert repr(result).startswith("ResNet-50")
    assert repr(result).count("\n") in (6, 7) and "iteration" in repr(result)
    emulation = result.emulation
    for each in (emulation, emulation.played, emulation.played.graph, traces, *traces, traces.diagnose().diagnosis):
        assert len(repr(each)) < 500


def test_notebooks_show_names_of_strangers_as_they_are(result, monkeypatch):
    monkeypatch.setattr(type(result), "title", "<script>alert(1)</script>\x1b")
    assert "&lt;script&gt;" in result._repr_html_() and "<script>" not in result._repr_html_()
    assert "\x1b" not in repr(result) + result._repr_html_()


def test_frame_of_a_result(result):
    pytest.importorskip("pandas")
    [row] = result.to_frame().to_dict("records")
    assert row["iteration_s"] == result.iteration_s
    assert row["parts.compute"] == result.parts["compute"]


@pytest.mark.slow
def test_frames_of_polars_say_the_same(result, traces):
    polars = pytest.importorskip("polars")
    sweep = switchml.sweep(**JOB | {"gpus": [8]}, allreduce=["ring", "no-such"])
    diagnosed, replay = traces.diagnose(), traces.replay(bandwidth_factor=2.0)
    frames = [each.to_frame("polars") for each in (result, sweep, diagnosed, replay, traces)]
    assert all(isinstance(frame, polars.DataFrame) for frame in frames)
    assert frames[0]["parts.compute"].to_list() == [result.parts["compute"]]
    assert frames[1]["error"].is_null().to_list() == [True, False]
    assert frames[1]["iteration_s"].is_null().to_list() == [False, True]
    assert len(frames[2]) == len(diagnosed.findings)
    assert frames[3].filter(polars.col("part") == "iteration")["changed_s"].to_list() == [replay.changed.iteration_s]
    assert len(frames[4]) == sum(len(trace.events) for trace in traces)


def test_frames_without_a_library_name_the_extra(result, monkeypatch):
    monkeypatch.setattr("emulator.surface.api.summarized.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"switchml\[polars\]"):
        result.to_frame("polars")
    with pytest.raises(ConfigError, match=r"switchml\[pandas\]"):
        result.to_frame()
    with pytest.raises(ConfigError, match="expected 'pandas' or 'polars'"):
        result.to_frame("numpy")


def test_job_files_and_options_together(tmp_path, result):
    file = tmp_path / "job.toml"
    file.write_text('model = "resnet50"\ncluster = "a100-dgx"\n[job]\ngpus = 64\nmicro_batch = 32\n')
    assert switchml.emulate(file, gpus=8).iteration_s == result.iteration_s


@pytest.mark.parametrize(("options", "message"), [
    ({"model": "resnet50", "gpu": 8}, "unknown option 'gpu'; did you mean gpus?"), ({"gpus": 8}, "no model"),
    ({"model": "resnet50", "gpus": [8]}, "gpus: expected a whole number"),
    ({"model": "resnet50", "run": {"step": 1}}, "run: unknown key 'step'"),
])  # fmt: skip
def test_nonsense_is_refused_in_words(options, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        switchml.emulate(**options)


# Sweeps


def test_sweep_is_every_combination(result):
    sweep = switchml.sweep(**JOB | {"gpus": [8, 16]}, allreduce=["ring", "no-such"])
    assert [(row["gpus"], row["allreduce"]) for row in sweep.rows] == [
        (8, "ring"), (8, "no-such"), (16, "ring"), (16, "no-such"),
    ]  # fmt: skip
    assert sweep.rows[0]["iteration_s"] > 0 and "'no-such'" in sweep.rows[1]["error"]
    assert repr(sweep).startswith("4 jobs over gpus, allreduce, 2 refused")
    pytest.importorskip("pandas")
    frame = sweep.to_frame()
    assert frame["error"].notna().tolist() == [False, True, False, True]


def test_sweep_over_nothing_is_refused():
    with pytest.raises(ConfigError, match="give an option a list"):
        switchml.sweep(**JOB)
    with pytest.raises(ConfigError, match="unknown option 'gpu'"):
        switchml.sweep(model="resnet50", gpu=[1, 2])


# Traces


def test_replay_says_what_the_command_says(traces):
    replay = traces.replay(bandwidth_factor=2.0)
    said = CliRunner().invoke(replay_command, [str(TRACES), "--bandwidth", "x2", "--json"])
    assert json.loads(said.stdout) == json.loads(json.dumps(replay.to_json()))
    assert replay.speedup > 1.2 and "links x2" in repr(replay)
    pytest.importorskip("pandas")
    frame = replay.to_frame().set_index("part")
    assert frame.loc["iteration", "changed_s"] == replay.changed.iteration_s


def test_diagnosis_of_traces(traces, tmp_path):
    diagnosed = traces.diagnose()
    assert [one.title for one in diagnosed.findings] == [one["title"] for one in diagnosed.to_json()["findings"]]
    assert repr(diagnosed).count("\n") == len(diagnosed.findings) > 0
    pytest.importorskip("pandas")
    assert len(diagnosed.to_frame()) == len(diagnosed.findings)


def test_frame_of_traces_has_every_event(traces):
    pytest.importorskip("pandas")
    assert len(traces.to_frame()) == sum(len(trace.events) for trace in traces)


def test_changes_and_files_that_are_not_there(traces, tmp_path):
    with pytest.raises(ConfigError, match="unknown change 'bandwith'; did you mean"):
        traces.replay(bandwith=2)
    with pytest.raises(TraceError):
        switchml.trace.read(tmp_path)
    assert Changes().of(None, []) == []


# A notebook


@pytest.mark.slow
def test_notebook():
    """It shows what its cells give. REWRITE_GOLDEN=1 runs them anew."""
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    pytest.importorskip("pandas")
    root = Path(__file__).parents[4]
    path = root / "docs" / "python.ipynb"
    shown, notebook = (nbformat.read(path, as_version=4) for _ in range(2))
    resources = {"metadata": {"path": str(root)}}
    nbclient.NotebookClient(
        notebook, timeout=280, kernel_name="python3", resources=resources, record_timing=False
    ).execute()
    if os.environ.get("REWRITE_GOLDEN"):
        for cell in notebook.cells:
            cell["metadata"] = {}
        nbformat.write(notebook, path)
    found, expected = (
        json.dumps([cell.get("outputs") for cell in one.cells], sort_keys=True) for one in (notebook, shown)
    )
    number = r"\d+(?:\.\d+)?"
    assert re.sub(number, "#", found) == re.sub(number, "#", expected)
    # The diagnosis measures what a codec costs on this machine.
    found, expected = ([float(one) for one in re.findall(number, text)] for text in (found, expected))
    assert found == pytest.approx(expected, rel=0.2)
