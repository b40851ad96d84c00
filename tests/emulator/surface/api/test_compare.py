"""`switchml report`: results beside each other."""

import json

import pytest
from click.testing import CliRunner

from emulator.surface.api.emulating import emulate, sweep
from switchml.cli.main import cli
from switchml.units import time_text
from tests.support.html_pages import read_page, without_our_code

pytest.importorskip("jinja2", reason="needs jinja2 (pip install 'switchml[report]')")
pytest.importorskip("vl_convert", reason="needs vl-convert (pip install 'switchml[report]')")
JOB = {"model": "resnet50", "cluster": "a100-dgx", "micro_batch": 32}


@pytest.fixture
def run(tmp_path):
    def invoke(*results):
        files = []
        for name, result in zip("ab", results, strict=False):
            files.append(tmp_path / f"{name}.json")
            files[-1].write_text(json.dumps(result))
        out = tmp_path / "out.html"
        return CliRunner().invoke(cli, ["report", *map(str, files), "--out", str(out)]), out

    return invoke


def test_two_jobs(run):
    one, other = emulate(**JOB, gpus=8).to_json(), emulate(**JOB, gpus=16).to_json()
    said, out = run(one, other)
    assert said.exit_code == 0, said.output
    words = read_page(out)
    for expected in ("a beside b", "Where the time goes", "iteration_s", "b / a", "parts.compute", "2"):
        assert expected in words
    assert time_text(one["iteration_s"]) in words and f"{other['iteration_s'] / one['iteration_s']:.3g}" in words


def test_two_sweeps(run):
    rows = {network: sweep(**JOB, gpus=[8, 16], allreduce=[network]).rows for network in ("ring", "switchml")}
    said, out = run(*({"rows": each} for each in rows.values()))
    assert said.exit_code == 0, said.output
    assert "Throughput" in read_page(out) and '"line":"ring, a"' in out.read_text()


def test_names_of_strangers_stay_names(run):
    strange = {"<script>alert(1)</script>": 1.0, "model": "</script><b>\x1b[31m", "assumptions": ["<i>", None]}
    said, out = run(strange, strange)
    assert said.exit_code == 0, said.output
    assert "<script>alert(1)</script>" in read_page(out)
    text = without_our_code(out)
    assert "<script" not in text and "<b>" not in text and "\x1b" not in text
