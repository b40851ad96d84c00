"""Sources on S3, served by moto: ranges, shards, and objects that change or go away."""

import numpy as np
import pytest

from host_agent.loading import PlannedLoader
from host_agent.loading.fetch import Fetcher, Retries
from host_agent.loading.sources.base import SourceChanged
from host_agent.loading.sources.opening import open_source
from switchml.errors import LoadingError

pytest.importorskip("s3fs", reason="needs s3fs (pip install 'switchml[loading-all]')")
moto = pytest.importorskip("moto.server", reason="needs moto's server (pip install 'moto[server]')")

ROWS = np.arange(60, dtype=np.float32).reshape(20, 3)


@pytest.fixture
def storage(tmp_path):
    """(s3fs's file system, options for a source), with ROWS in s3://bucket/rows.npy."""
    import fsspec

    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    client = {"endpoint_url": f"http://{host}:{port}"}
    options = {"key": "key", "secret": "secret", "client_kwargs": client, "skip_instance_cache": True}
    files = fsspec.filesystem("s3", **options)
    files.mkdir("bucket") if not files.exists("bucket") else None
    np.save(tmp_path / "rows.npy", ROWS)
    files.put(str(tmp_path / "rows.npy"), "bucket/rows.npy")
    yield files, options
    server.stop()


def test_ranges_of_an_object(storage):
    source = open_source("s3://bucket/rows.npy", options=storage[1], gap_bytes=12)
    assert [row.tolist() for row in source.read([0, 1, 2, 9, 19])] == ROWS[[0, 1, 2, 9, 19]].tolist()
    assert (source.traffic.reads, source.traffic.bytes) == (3, 5 * 12)


def test_epochs_of_a_planned_loader(storage):
    source = open_source("s3://bucket/rows.npy", options=storage[1])
    with PlannedLoader(source, 4, epochs=2, seed=3, buffer_bytes=10 * 12) as loader:
        for _ in range(2):
            assert sorted(np.concatenate(list(loader)).ravel().tolist()) == ROWS.ravel().tolist()
        assert loader.counters["buffer_hits"] > 0 and loader.counters["reads"] < 40


def test_an_object_that_changes_or_goes_away(storage):
    files, options = storage
    fetcher = Fetcher(open_source("s3://bucket/rows.npy", options=options, check_every_s=0), Retries(2, 0))
    files.pipe("bucket/rows.npy", b"another")
    error = fetcher.fetch([4])[4]
    assert isinstance(error.__cause__, SourceChanged) and "sample 4 of s3://bucket/rows.npy" in str(error)
    files.rm("bucket/rows.npy")
    gone = fetcher.fetch([5])[5]
    assert isinstance(gone, LoadingError) and "sample 5 of s3://bucket/rows.npy" in str(gone)
