"""`open_source`: open a source by file name."""

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
    """Open a source of samples in files: paths or URLs supported by fsspec (http, s3, …); several .npy or .tar files,
    or a pattern with * of local ones, are concatenated. `x.h5:images` is a data set of an HDF5 file.

    `options` are passed to the reader: `gap_bytes` (largest gap between two samples that are read in one range),
    `options` (fsspec's: headers, credentials), `check_every_s` (interval between checks of a remote file for changes),
    `decode` (.tar). Raises ConfigError if the file type is unknown, a package is missing, or the file is not of the
    type that its name indicates; OSError if it is missing."""
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
    """Split a URL into (file, data set in it)."""
    for ending in (".h5:", ".hdf5:", ".zarr:"):
        path, found, name = url.rpartition(ending)
        if found:
            return path + ending[:-1], name
    return url, ""
