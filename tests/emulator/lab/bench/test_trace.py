"""The measurement reads what it wrote."""

from emulator.lab.bench import trace as bench
from emulator.traces.readers.read import read
from emulator.traces.summary import of_job
from tests.support.commands import told


def test_generated_traces_are_traces(tmp_path):
    for name in ("rank-0.json", "rank-0.json.gz"):
        size = bench.write(tmp_path / name, 1_500_000)
        assert 1_500_000 <= size < 1_510_000
        (report,) = of_job(read(tmp_path / name))["ranks"]
        assert report["missing"] == []
        assert report["collectives"][0]["bytes"] == 4 << 20


def test_bench_trace_prints_figures():
    report = told("bench", "trace", "--size", "1MB", "--compare")
    assert report["json_bytes"] >= 1_000_000
    assert report["events"] > 3000
    assert report["peak_bytes"] > report["start_bytes"]
    assert report["plain_peak_bytes"] > 0
