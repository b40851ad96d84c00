"""`open_source`: a source by the name of its file."""

import glob
from typing import Any

from host_agent.loading.sources.arrays import hdf5, zarr
from host_agent.loading.sources.base import Source
from host_agent.loading.sources.files import is_local, local_path
from host_agent.loading.sources.records import npy
from host_agent.loading.sources.tar import webdataset
from switchml.errors import ConfigError

EXPECTED = "x.npy, x.tar, x.h5:DATASET, x.zarr or x.zarr:ARRAY"


def open_source(url: str | list[str], **options: Any) -> Source:
    """A source of samples in files: paths or URLs that fsspec knows (http, s3, …); several .npy or .tar files, or a
    pattern with * of local ones, follow each other. `x.h5:images` is a data set of an HDF5 file.

    `options` go to the reader: `gap_bytes` (up to how much between two samples is read along), `options` (fsspec's:
    headers, credentials), `check_every_s` (how often a remote file is checked for changes), `decode` (.tar). Raises
    ConfigError where the kind is unknown, a package is missing, or the file is not what its name says; OSError where
    it is not there."""
    urls = [url] if isinstance(url, str) else list(url)
    if len(urls) == 1 and is_local(urls[0]) and "*" in urls[0]:
        urls = sorted(glob.glob(local_path(urls[0])))
    if not urls:
        raise ConfigError(f"{url}: no such file; expected {EXPECTED}")
    first = urls[0]
    if first.endswith(".npy"):
        return npy(urls, **options)
    if first.endswith(".tar"):
        return webdataset(urls, **options)
    path, name = _split(first)
    if len(urls) == 1 and path.endswith((".h5", ".hdf5")) and name:
        return hdf5(path, name, **options)
    if len(urls) == 1 and path.rstrip("/").endswith(".zarr"):
        return zarr(path, name, **options)
    raise ConfigError(f"{first}: unknown kind of data set; expected {EXPECTED}")


def _split(url: str) -> tuple[str, str]:
    """(file, data set in it)."""
    for ending in (".h5:", ".hdf5:", ".zarr:"):
        path, found, name = url.rpartition(ending)
        if found:
            return path + ending[:-1], name
    return url, ""
