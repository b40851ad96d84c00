"""Files that begin with a byte-order mark are read: each kind that a command takes."""

import json

import pytest

from emulator import datafile
from emulator.jobs.workload import models
from emulator.lab.validation import campaigns, iterations
from emulator.p4switch.program.loader import loader
from emulator.traces.whatif import codec_costs
from switchml import files

MARK = b"\xef\xbb\xbf"


def marked(path, text: str):
    path.write_bytes(MARK + text.encode())
    return path


def test_tables_of_layers(tmp_path):
    text = "layer_index,numel,forward_pass_ns,backward_pass_ns\n0,1000,1000,2000\n"
    model = models.load(str(marked(tmp_path / "net.csv", text)))
    assert model.parameters == 1000


def test_toml_and_json(tmp_path):
    assert datafile.load(marked(tmp_path / "a.toml", 'model = "x"\n')) == {"model": "x"}
    assert files.read_text(marked(tmp_path / "a.txt", "x")) == "x"


def test_measured_iterations(tmp_path):
    row = "2,8,2,1024,16,8,512,2,1,1,99"
    path = marked(tmp_path / "rows", ",".join(iterations.COLUMNS) + f"\n{row}\n")
    assert campaigns.kind(path) == "iterations" and len(iterations.read(path)) == 1


def test_codecs(tmp_path):
    row = {"name": "none", "ratio": 2.0, "aggregation": "gather"}
    row |= {"compress_bytes_per_s": 1e9, "decompress_bytes_per_s": 1e9}
    (cost,) = codec_costs.load(marked(tmp_path / "a.json", json.dumps({"codecs": [row]}))).values()
    assert cost.wire_share == 0.5


def test_p4_programs():
    with pytest.raises(Exception, match="not a JSON object"):
        loader.loads("\ufeff[]")
