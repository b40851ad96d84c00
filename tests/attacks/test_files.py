"""Files made to exhaust or to confuse whoever reads them: bombs, nesting, numbers out of range, code."""

import gzip
import io
import json
import zipfile

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from emulator.jobs.description import read_tables
from emulator.networks.netsim import config
from emulator.p4switch.program.loader import loader
from emulator.traces.readers import chrome, native
from emulator.traces.readers.read import read, read_workload
from switchml.cli.main import cli
from switchml.errors import ConfigError, ProgramError, TraceError
from tests.support.bounded import bounded
from tests.support.traced_jobs import Job, traced

KINETO = b'{"schemaVersion": 1, "distributedInfo": {"rank": 0}, "traceEvents": ['
DEEP = 200_000


def gz(path, *parts):
    """`path`, a gzip file: each part a member of its own: bytes, or bytes and how often they are repeated."""
    pairs = (part if isinstance(part, tuple) else (part, 1) for part in parts)
    path.write_bytes(b"".join(gzip.compress(data) * times for data, times in pairs))
    return path


def zeros(path, names, length):
    """An .npz file with arrays of zeros."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (length,)})
                for _ in range(length >> 20):
                    file.write(bytes(1 << 20))
    return path


MIB = 1 << 20
EVENT = b'{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 1}'
HEAD = b'{"schemaVersion": 1, "a": ['
CHAKRA = b"\x07\x0a\x051.0.0"
BOMBS = {
    "spaces": ("rank-0.json.gz", KINETO, (b" " * MIB, 800)),
    "one long name": ("rank-0.json.gz", KINETO, b'{"name": "', (b"a" * MIB, 800)),
    "boundaries in a name": ("rank-0.json.gz", KINETO, b'{"name": "', (b"}, {" * (MIB // 4), 800)),
    "a long header": ("rank-0.json.gz", HEAD, (b"[]," * (MIB // 3), 800)),
    "a long tail": ("rank-0.json.gz", KINETO, EVENT, b'], "a": [', (b"[]," * (MIB // 3), 800)),
    "many events": ("rank-0.json.gz", KINETO, (b"{}," * (MIB // 3), 800)),
    "empty nodes": ("chakra.0.et", CHAKRA, (bytes(MIB), 800)),
    "equal nodes": ("chakra.0.et", CHAKRA, (b"\x04\x08\x01\x18\x04" * 200_000, 800)),
}


@pytest.mark.parametrize("name", BOMBS)
def test_gzip_bombs(name, tmp_path, attempts):
    """A megabyte or less that becomes 800."""
    file = gz(tmp_path / BOMBS[name][0], *BOMBS[name][1:])
    with bounded(seconds=20), pytest.raises(TraceError) as refused:
        read(tmp_path)
    assert file.name in str(refused.value)
    assert any(why in str(refused.value) for why in ("the limit", "is empty", "same number"))
    attempts.record(f"gzip bomb: {name}", 1)


def test_npz_bombs(tmp_path, attempts):
    file = zeros(tmp_path / "rank-0.npz", ["head", "causes"], 1 << 28)
    with bounded(seconds=20), pytest.raises(TraceError, match="unpacks to more than .* bytes, the limit") as refused:
        read(tmp_path)
    assert file.name in str(refused.value)
    attempts.record("npz bomb", 1)


@pytest.mark.parametrize("mebibytes", [5, 15, 64])
def test_a_reader_is_linear(mebibytes, tmp_path, monkeypatch):
    """An event that never ends, with what looks like the ends of events in it: all that is decoded in vain is a few
    times the file."""
    decoded_bytes = []

    class Counting:
        def __init__(self, kind):
            self.decoder = msgspec.json.Decoder(kind)

        def decode(self, data):
            decoded_bytes.append(len(data))
            return self.decoder.decode(data)

    path = tmp_path / "rank-0.json"
    path.write_bytes(KINETO + b'{"name": "' + b"}, {" * (mebibytes * MIB // 4))
    with bounded(seconds=60), pytest.raises(TraceError):
        file = chrome.ChromeFile(path)
        monkeypatch.setattr(file, "_decoder", Counting(list[dict]))
        list(file.batches())
    assert 0 < sum(decoded_bytes) < 32 * path.stat().st_size


def test_real_traces_stay_below_the_limits(tmp_path):
    """A trace of a hundred megabytes, regular as none is, is read."""
    from emulator.lab.bench import trace as bench

    path = tmp_path / "rank-0.json.gz"
    assert bench.write(path, 40 * MIB) > 40 * MIB
    assert len(read(path)[0].events) > 50_000


@pytest.mark.parametrize("opening", ['{"a":', "["])
def test_nesting(opening, tmp_path, attempts):
    path = tmp_path / "rank-0.json"
    deep = opening * DEEP
    cases = [
        (lambda: read(path), '{"schemaVersion": 1, "a": ' + deep, TraceError),
        (lambda: read(path), '{"schemaVersion": 1, "traceEvents": [{"args": {"Input Dims": ' + deep, TraceError),
        (lambda: read(path), '{"schemaVersion": 1, "traceEvents": [{"name": ' + deep, TraceError),
        (lambda: loader.load(path), deep, ProgramError),
        (lambda: config.load(path), "a = " + "[" * DEEP, ConfigError),
        (lambda: config.load(path), "a = " + "{a = " * DEEP, ConfigError),
        (lambda: config.load(path), "[" + ".".join("a" * DEEP) + "]", ConfigError),
        (lambda: config.load(path), "x = {" + ".".join("a" * DEEP) + " = 1}", ConfigError),
    ]
    for reader, text, error in cases:
        path.write_text(text)
        with bounded(seconds=30), pytest.raises(error, match="rank-0|nested|JSON"):
            reader()
    attempts.record("nested JSON and TOML", len(cases))


def test_numbers_out_of_range_in_npz(tmp_path, attempts):
    """Every index array of our own files, with every kind of wrong number."""
    trace = traced(Job(ranks=2), iterations=2).traces[0]
    path = tmp_path / "rank-0.npz"
    native.write(trace, path)
    with np.load(path) as file:
        arrays = dict(file)
    tried = 0
    for name in ("event.name", "event.lane", "event.what", "event.collective", "event.group", "event.parent", "causes"):
        for value in (-2, 100, 1 << 30, -(1 << 31)):
            column = arrays[name].astype(np.int64)
            column.flat[len(column) // 2] = value
            np.savez_compressed(path, **(arrays | {name: column}))
            with pytest.raises(TraceError, match=r"rank-0\.npz"):
                read(path)
            tried += 1
    for name in ("event.start_s", "event.duration_s", "event.bytes", "steps"):
        for value in (np.nan, np.inf, -np.inf, 1e300):
            column = arrays[name].copy()
            column.flat[0] = value
            np.savez_compressed(path, **(arrays | {name: column}))
            with pytest.raises(TraceError, match=r"rank-0\.npz"):
                read(path)
            tried += 1
    for name in arrays:
        for column in (arrays[name][:-1], arrays[name].astype("U8"), np.array(5), np.array([None], object)):
            np.savez_compressed(path, **(arrays | {name: column}))
            with pytest.raises(TraceError, match=r"rank-0\.npz"):
                read(path)
                raise TraceError("rank-0.npz") if name in ("causes", "steps") and len(column) else AssertionError(name)
            tried += 1
    attempts.record("numbers out of range in .npz", tried)


def test_headers_of_arrays_that_lie(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (1 << 40,)})
    with zipfile.ZipFile(tmp_path / "rank-0.npz", "w") as archive:
        archive.writestr("head.npy", header.getvalue() + bytes(64))
    with bounded(seconds=30), pytest.raises(TraceError, match="not as long as its header says"):
        read(tmp_path)


def test_a_job_of_too_many_ranks(tmp_path):
    path = tmp_path / "rank-0.json"
    span = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 1, "pid": 1, "tid": 1}
    path.write_text(json.dumps({"distributedInfo": {"rank": 0, "world_size": 10**12}, "traceEvents": [span]}))
    with bounded(seconds=30), pytest.raises(TraceError, match="ranks; the limit is"):
        read(path)
    node = {"Id": 1, "Name": "x", "NodeType": 7, "world_size": 10**12, "comm_size": 1, "comm_type": 0}
    (tmp_path / "chakra.0.json").write_text(json.dumps({"workload_graph": [node]}))
    path.unlink()
    with bounded(seconds=30), pytest.raises(TraceError, match="ranks; the limit is"):
        read_workload(tmp_path)


def test_code_in_a_job_file_runs_only_on_request(tmp_path):
    """`model = "os:abort"` would end this process."""
    job = tmp_path / "job.toml"
    for text in (
        'model = "os:abort"\ninput_shape = "1"',
        'model = "gpt2-124m"\n[[jobs]]\nmodel = "os:abort"\n[[jobs]]\n',
    ):
        job.write_text(text)
        for command in (["emulate"], ["trace", "optimize", "--out", str(tmp_path / "out.toml")]):
            done = CliRunner().invoke(cli, [*command, str(job)])
            assert done.exit_code == 1 and "--trust" in done.output, done.output
    with pytest.raises(ConfigError, match="--trust"):
        read_tables(job)
    assert read_tables(job, is_trusted=True)["model"] == "gpt2-124m"
    torch = pytest.importorskip("torch", reason="needs torch")
    assert torch
    job.write_text('model = "torch.nn:Identity"\ninput_shape = "4"')
    assert "--trust" in CliRunner().invoke(cli, ["emulate", str(job)]).output
    assert "--trust" not in CliRunner().invoke(cli, ["emulate", "--trust", str(job)]).output
