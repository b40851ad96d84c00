"""Sources: the same samples whatever the file, near-by ones read at once, and faults of storage by HTTP."""

import io
import json
import os
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from host_agent.loading.fetch import Fetcher, Retries
from host_agent.loading.sources.base import SourceChanged, joined
from host_agent.loading.sources.opening import open_source
from host_agent.loading.sources.others import Columns, Items
from switchml.errors import ConfigError, LoadingError

ROWS = np.arange(60, dtype=np.float32).reshape(20, 3)
WANTED = [0, 1, 2, 9, 19]
FAST = Retries(attempts=3, back_off_s=0)


def values(samples):
    return [np.asarray(each).tolist() for each in samples]


@pytest.fixture
def npy(tmp_path):
    path = tmp_path / "rows.npy"
    np.save(path, ROWS)
    return path


@pytest.fixture
def tar(tmp_path):
    path = tmp_path / "shard.tar"
    with tarfile.open(path, "w") as archive:
        for number in range(6):
            row = io.BytesIO()
            np.save(row, ROWS[number])
            files = {"row.npy": row.getvalue(), "cls": str(number).encode(), "json": json.dumps([number]).encode()}
            for name, data in files.items():
                member = tarfile.TarInfo(f"a/{number:03}.{name}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return path


# Kinds


def test_npy(npy, tmp_path):
    source = open_source(str(npy), gap_bytes=12)
    assert (len(source), source.sample_bytes) == (20, 12)
    assert values(source.read(WANTED)) == ROWS[WANTED].tolist()
    assert source.traffic.reads == 3 and source.traffic.bytes == 5 * 12
    np.save(tmp_path / "rows2.npy", ROWS + 100)
    both = open_source(f"{tmp_path}/rows*.npy")
    assert values(both.read([19, 20])) == [ROWS[19].tolist(), (ROWS[0] + 100).tolist()]


def test_webdataset(tar):
    source = open_source(str(tar))
    (sample,) = source.read([4])
    assert (sample["__key__"], sample["cls"], sample["json"]) == ("a/004", 4, [4])
    assert sample["row.npy"].tolist() == ROWS[4].tolist()
    labels = open_source([str(tar), str(tar)], decode=lambda sample: sample["cls"])
    assert labels.read([1, 7, 11]) == [1, 1, 5]


def test_hdf5(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("in/rows", data=ROWS, chunks=(4, 3))
    source = open_source(f"{tmp_path}/x.h5:in/rows", gap_bytes=0)
    assert values(source.read(WANTED)) == ROWS[WANTED].tolist()
    assert source.traffic.reads == 3
    with pytest.raises(ConfigError, match="no data set 'rows'; expected one of in/rows"):
        open_source(f"{tmp_path}/x.h5:rows")


def test_zarr(tmp_path):
    zarr = pytest.importorskip("zarr", exc_type=Exception)  # its numcodecs cannot read every zfpy's version
    array = zarr.create_array(store=str(tmp_path / "x.zarr"), shape=ROWS.shape, chunks=(4, 3), dtype="float32")
    array[:] = ROWS
    source = open_source(f"{tmp_path}/x.zarr")
    assert values(source.read(WANTED)) == ROWS[WANTED].tolist()
    with pytest.raises(ConfigError, match="no Zarr array"):
        open_source(f"{tmp_path}/y.zarr")


def test_columns_and_items(npy):
    columns = Columns(open_source(str(npy)), Items(list(range(20))))
    assert [(row.tolist(), label) for row, label in columns.read([3])] == [(ROWS[3].tolist(), 3)]
    assert len(columns.traffics) == 2 and columns.sample_bytes == 12 + 8
    with pytest.raises(ConfigError, match=r"of \[20, 3\] samples"):
        Columns(open_source(str(npy)), Items([1, 2, 3]))


def test_joined_by_hand():
    starts = np.array([0, 10, 25, 90])
    assert joined(starts, starts + 10, 5, 100) == [(0, 3), (3, 4)]
    assert joined(starts, starts + 10, 0, 100) == [(0, 2), (2, 3), (3, 4)]
    assert joined(starts, starts + 10, 99, 40) == [(0, 3), (3, 4)]
    assert joined(starts[:0], starts[:0], 0, 1) == []


@pytest.mark.parametrize(("name", "content", "what"), [
    ("x.bin", b"", "unknown kind of data set; expected x.npy"), ("x.npy", b"nothing", "not in NumPy's format"),
    ("x.tar", b"not a tar file at all" * 100, "not an uncompressed tar file"), ("x.tar", bytes(10240), "no samples"),
])  # fmt: skip
def test_files_that_are_something_else(tmp_path, name, content, what):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=what):
        open_source(str(tmp_path / name))


def test_a_file_that_was_cut(npy):
    os.truncate(npy, 300)
    with pytest.raises(ConfigError, match="300 bytes, expected 368"):
        open_source(str(npy))


def test_a_missing_package_names_its_extra(npy):
    with pytest.raises(ConfigError, match=r"switchml\[loading\]"):
        open_source("nosuchscheme://host/x.npy")


# Faults of local files


def test_a_changed_file_is_an_error_at_once(npy):
    source = open_source(str(npy))
    fetcher = Fetcher(source, FAST)
    assert values(fetcher.fetch([1]).values()) == [ROWS[1].tolist()]
    np.save(npy, ROWS + 1)
    os.utime(npy, ns=(1, 1))  # whatever the clock's resolution
    error = fetcher.fetch([1])[1]
    assert isinstance(error, LoadingError) and isinstance(error.__cause__, SourceChanged)
    assert (
        "sample 1 of" in str(error) and "has changed since it was opened" in str(error) and "tried once" in str(error)
    )


# HTTP


class Server(ThreadingHTTPServer):
    """Serves `content` by ranges. `faults`: what to do with the next requests of data: "500", "short", "close"."""

    daemon_threads = True

    def __init__(self, content):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.faults, self.ranges, self.etag = content, [], [], '"1"'
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/rows.npy"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self._answer(200, b"", len(self.server.content))

    def do_GET(self):
        start, end = 0, len(self.server.content)
        if wanted := self.headers.get("Range"):
            first, last = wanted.removeprefix("bytes=").split("-")
            start, end = int(first), min(int(last) + 1, end)
        self.server.ranges.append((start, end))
        fault = self.server.faults.pop(0) if self.server.faults else ""
        if fault == "close":
            self.close_connection = True
            return
        if fault == "500":
            self._answer(500, b"", 0)
            return
        data = self.server.content[start : end - (fault == "short")]
        self._answer(206 if wanted else 200, data, len(data), f"bytes {start}-{end - 1}/{len(self.server.content)}")

    def _answer(self, status, data, length, content_range=""):
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.send_header("ETag", self.server.etag)
        self.send_header("Accept-Ranges", "bytes")
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def server(npy):
    pytest.importorskip("aiohttp")
    server = Server(npy.read_bytes())
    yield server
    server.shutdown()
    server.server_close()


def test_http(server):
    source = open_source(server.url, gap_bytes=12)
    server.ranges.clear()
    assert values(source.read(WANTED)) == ROWS[WANTED].tolist()
    assert sorted(server.ranges) == [(128, 164), (236, 248), (356, 368)]
    assert source.traffic.reads == 3 and source.traffic.bytes == 60


@pytest.mark.parametrize("fault", ["500", "short", "close"])
def test_http_faults_are_retried(server, fault):
    """Only the range that failed is read again."""
    source = open_source(server.url, gap_bytes=0)
    server.ranges.clear()
    server.faults = [fault]
    fetcher = Fetcher(source, FAST)
    found = fetcher.fetch(WANTED)
    assert values(found[each] for each in WANTED) == ROWS[WANTED].tolist()
    # After a closed connection the HTTP client itself may have asked again.
    assert fetcher.retried <= 3 and (fault == "close" or fetcher.retried > 0)
    assert len(server.ranges) == 4


def test_http_storage_that_goes_away(server):
    source = open_source(server.url)
    server.faults = ["500"] * 50
    found = Fetcher(source, FAST).fetch([4])
    assert isinstance(found[4], LoadingError) and found[4].samples == (4,)
    assert "sample 4 of http://127.0.0.1" in str(found[4]) and "tried 3 times" in str(found[4])


def test_http_file_that_changes(server):
    source = open_source(server.url, check_every_s=0)
    server.etag = '"2"'
    found = Fetcher(source, FAST).fetch([4])
    assert 'ETag "1" → "2"' in str(found[4])


def test_http_server_without_ranges(server):
    source = open_source(server.url)
    whole = server.content
    server.ranges.clear()
    answer = Handler.do_GET

    def without_ranges(self):
        self._answer(200, whole, len(whole))

    Handler.do_GET = without_ranges
    try:
        found = Fetcher(source, FAST).fetch([4])
    finally:
        Handler.do_GET = answer
    assert "does the server ignore Range headers?" in str(found[4])
