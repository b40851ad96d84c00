"""Sources of rows of sliceable arrays: HDF5, Zarr, or any other with a length, a dtype and slices. Nearby rows are read
as one slice.
"""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from host_agent.loading.sources.base import Traffic, joined
from host_agent.loading.sources.files import Files, is_local
from host_agent.loading.sources.records import GAP_BYTES, MAX_BYTES
from switchml.errors import ConfigError


class Rows:
    """Source whose sample i is array[i]. `files`: files behind the array, to detect changes. Rows in the same chunk are
    read together, as are those separated by at most `gap_bytes`."""

    def __init__(
        self, array: Any, name: str = "", *, files: Files | None = None, gap_bytes: int = GAP_BYTES, chunk: int = 1
    ):
        if len(array.shape) < 1:
            raise ConfigError(f"{name}: expected an array of at least one dimension")
        self._array, self._name, self._files = array, name, files
        self.sample_bytes = int(array.dtype.itemsize * np.prod(array.shape[1:], dtype=np.int64))
        self._gap = max(gap_bytes // max(self.sample_bytes, 1), chunk - 1)
        self._most = max(MAX_BYTES // max(self.sample_bytes, 1), chunk)
        self._lock = threading.Lock()  # h5py's files are not safe for concurrent use
        self.traffic = Traffic()

    def __len__(self) -> int:
        return int(self._array.shape[0])

    def __repr__(self) -> str:
        return self._name or type(self._array).__name__

    def read(self, indices: Sequence[int]) -> list[Any]:
        """Rows, or exceptions in place of rows that could not be read (`Source.read`)."""
        wanted = np.asarray(indices, np.int64)
        order = np.unique(wanted)
        changed = self._files.changed(0) if self._files is not None else None
        if changed is not None:
            return [changed] * len(wanted)
        found: dict[int, Any] = {}
        for first, end in joined(order, order + 1, self._gap, self._most):
            members = order[first:end].tolist()
            start, stop = members[0], members[-1] + 1
            try:
                with self._lock:
                    rows = self._array[start:stop]
            except Exception as error:  # reported with the samples' numbers
                found |= dict.fromkeys(members, error)
                continue
            if len(rows) != stop - start:
                short = EOFError(f"{self!r}: {len(rows)} rows from {start}; expected {stop - start}")
                found |= dict.fromkeys(members, short)
                continue
            self.traffic.add(1, (stop - start) * self.sample_bytes)
            found |= {member: rows[member - start] for member in members}
        return [found[index] for index in wanted.tolist()]


def hdf5(url: str, name: str, *, gap_bytes: int = GAP_BYTES, **options: Any) -> Rows:
    """Rows of data set `name` of an HDF5 file (h5py). `options`: those of `Files`. Raises ConfigError if there is no
    such data set, with the names of the existing ones."""
    try:
        import h5py
    except ImportError:
        raise ConfigError(f"{url}: HDF5 needs h5py (pip install 'switchml[loading]')") from None
    files = Files([url], **options)
    try:
        file = h5py.File(files.open(0), "r")
    except OSError as error:
        raise ConfigError(f"{url}: not an HDF5 file ({error})") from None
    if not isinstance(file.get(name), h5py.Dataset):
        names: list[str] = []
        file.visititems(lambda each, item: names.append(each) if isinstance(item, h5py.Dataset) else None)
        raise ConfigError(f"{url} has no data set {name!r}; expected one of {', '.join(names) or 'none'}")
    array = file[name]
    chunk = array.chunks[0] if array.chunks else 1
    return Rows(array, f"{url}:{name}", files=files, gap_bytes=gap_bytes, chunk=chunk)


def zarr(url: str, name: str = "", *, gap_bytes: int = GAP_BYTES, options: dict[str, Any] | None = None) -> Rows:
    """Rows of a Zarr array, or of array `name` of a group. `options`: fsspec's. Raises ConfigError if there is no such
    array."""
    try:
        import zarr as zarr_package
    except ImportError:
        raise ConfigError(f"{url}: Zarr needs zarr (pip install 'switchml[loading-all]')") from None
    try:
        found: Any = zarr_package.open(url, mode="r", **({} if is_local(url) else {"storage_options": options or {}}))
        array = found[name] if name else found
        return Rows(array, url + (f":{name}" if name else ""), gap_bytes=gap_bytes, chunk=array.chunks[0])
    except (KeyError, FileNotFoundError, AttributeError, ValueError) as error:
        raise ConfigError(f"{url}: no Zarr array {name!r} ({type(error).__name__}: {error})") from None
