"""What is not a regular file is refused by every reader, before it is read; headers of arrays."""

import io
import os
from pathlib import Path

import numpy as np
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
from switchml.errors import LONGEST_MESSAGE, SwitchMLError, TraceError

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


@pytest.mark.parametrize(
    "shape",
    ["((" * 1000, "(-1,)", "(2**62,)", "(4611686018427387904, 8)", "('a',)", "(10000000000000000000000,)", "None"],
)
def test_headers_of_arrays(shape):
    """Whatever a header says, nothing is allocated for it, and one error says what is wrong."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    data = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(16)
    with pytest.raises(ValueError, match="not in NumPy's format|not as long as its header says: [0-9]+ bytes"):
        files.array_header(io.BytesIO(data), len(data))


def test_the_header_of_an_array_that_is_right():
    file = io.BytesIO()
    np.save(file, np.zeros((3, 5), np.float32))
    size_bytes = file.tell()
    file.seek(0)
    assert files.array_header(file, size_bytes) == ((3, 5), False, np.dtype(np.float32))
    assert size_bytes - file.tell() == 60


@pytest.mark.parametrize(("at", "damage"), [(6, b"\x79"), (8, b"\x00\x08\x00\x00")])
def test_zip_files_that_python_can_not_open(tmp_path, at, damage):
    """One needs a later version of zip, the other says that a name is UTF-8 which is not."""
    path = tmp_path / "rank-0.npz"
    np.savez(path, **{"h\xe9ad": np.zeros(3)})
    data = bytearray(path.read_bytes().replace("\xe9".encode(), b"\xff\xff"))
    directory = data.index(b"PK\x01\x02")
    data[directory + at : directory + at + len(damage)] = damage
    path.write_bytes(data)
    assert files.array_names(path) == []
    for reader in (read, lambda path: files.read_arrays(path, TraceError)):
        with pytest.raises(TraceError, match="rank-0.npz"):
            reader(path)


def test_encrypted_arrays_are_refused(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, a=np.arange(4))
    data = bytearray(path.read_bytes())
    for start, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(start) + flags] |= 1
    path.write_bytes(data)
    with pytest.raises(TraceError, match="x.npz is a broken .npz file: .*encrypted"):
        files.read_arrays(path, TraceError)


def test_messages_that_quote_much_leave_the_middle_out():
    text = str(TraceError("x.json, line 1: " + "7" * 100_000 + ": expected a name"))
    assert len(text) <= LONGEST_MESSAGE and text.startswith("x.json, line 1: 777") and text.endswith("expected a name")
    assert str(SwitchMLError("short")) == "short"
