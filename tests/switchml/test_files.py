"""What is no regular file is refused by every reader, before it is read."""

import os
from pathlib import Path

import pytest

from emulator.cluster import cluster
from emulator.jobs.workload import models
from emulator.lab.bench.codecs.tensors import _from_file
from emulator.lab.validation.campaigns import kind
from emulator.p4switch.ports.pcap import PcapReader
from emulator.p4switch.program.loader.loader import load
from emulator.traces.readers.read import read, read_workload
from emulator.traces.whatif import codec_costs
from switchml import files
from switchml.control.channel import read_pem
from switchml.control.p4.tree import read_tree
from switchml.errors import SwitchMLError, TraceError

ENDLESS = Path("/dev/zero")
READERS = {
    "traces": read,
    "workloads": read_workload,
    "models": models.read_dnn_benchmark,
    "programs": load,
    "captures": PcapReader,
    "arrays": lambda path: files.read_arrays(path, TraceError),
    "TOML": files.read_toml,
    "JSON": files.read_json,
    "tensors": _from_file,
    "costs of codecs": codec_costs.load,
    "trees": read_tree,
    "PEM": lambda path: read_pem(path, "certificate"),
}


@pytest.mark.parametrize("what", READERS)
def test_a_device_is_refused(what):
    with pytest.raises(SwitchMLError, match=r"can't read .*/dev/zero: expected a regular file, which has an end"):
        READERS[what](ENDLESS)


@pytest.mark.parametrize("reader", [read, read_workload, lambda path: files.read_arrays(path, TraceError)])
def test_a_pipe_without_a_writer_is_refused(tmp_path, reader):
    pipe = tmp_path / "trace.json"
    os.mkfifo(pipe)
    with pytest.raises(TraceError, match="expected a regular file"):
        reader(pipe)


def test_what_is_looked_at_only_is_passed_over(tmp_path):
    assert kind(ENDLESS) == ""
    with pytest.raises(SwitchMLError, match="no cluster file"):
        cluster.load(f"{tmp_path}/none.toml")


def test_a_pipe_with_an_end_is_read():
    reading, writing = os.pipe()
    os.write(writing, b'{"a": 1}')
    os.close(writing)
    assert files.read_json(f"/dev/fd/{reading}") == {"a": 1}
    os.close(reading)
