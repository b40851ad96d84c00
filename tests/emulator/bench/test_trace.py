"""The measurement reads what it wrote."""

import json

from click.testing import CliRunner

from emulator.bench import trace as bench
from emulator.traces.readers.read import read
from emulator.traces.summary import summary
from switchml.cli.main import cli


def test_generated_traces_are_traces(tmp_path):
    for name in ("rank-0.json", "rank-0.json.gz"):
        size = bench.write(tmp_path / name, 1_500_000)
        assert 1_500_000 <= size < 1_510_000
        told = summary(read(tmp_path / name)[0])
        assert told["missing"] == []
        assert told["collectives"][0]["bytes"] == 4 << 20


def test_bench_trace_prints_figures():
    ran = CliRunner().invoke(cli, ["bench", "trace", "--megabytes", "1", "--compare", "--json"])
    told = json.loads(ran.stdout)
    assert told["json_bytes"] >= 1_000_000
    assert told["events"] > 3000
    assert told["peak_bytes"] > told["start_bytes"]
    assert told["plain_peak_bytes"] > 0
