"""Source of records in files: each sample is a byte range of a file. Nearby ones are read as one range."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from host_agent.loading.sources.base import joined
from host_agent.loading.sources.files import Files
from switchml.errors import ConfigError
from switchml.files import array_header

GAP_BYTES = 32 << 10
"""Largest gap between two wanted records that is read along: at 25 MB/s it takes 1.3 ms, less than a request."""
MAX_BYTES = 8 << 20
"""Maximum size of a range of several records."""


class Records:
    """Source whose sample i is decode(bytes, i) of bytes starts[i] to ends[i] of file file_of[i]; int64 arrays
    (samples,)."""

    def __init__(
        self,
        files: Files,
        file_of: np.ndarray,
        starts: np.ndarray,
        ends: np.ndarray,
        decode: Callable[[memoryview, int], Any],
        *,
        gap_bytes: int = GAP_BYTES,
        most_bytes: int = MAX_BYTES,
    ):
        if gap_bytes < 0 or most_bytes < 1:
            raise ConfigError(f"gap_bytes {gap_bytes}, most_bytes {most_bytes}: expected at least 0 and 1")
        self.files, self.traffic = files, files.traffic
        self._file_of, self._starts, self._ends, self._decode = file_of, starts, ends, decode
        self._gap_bytes, self._most_bytes = gap_bytes, most_bytes
        self.sample_bytes = int((ends - starts).max()) if len(starts) else 0

    def __len__(self) -> int:
        return len(self._starts)

    def __repr__(self) -> str:
        more = f" and {len(self.files.urls) - 1} more" if len(self.files.urls) > 1 else ""
        return f"{self.files.urls[0]}{more}"

    def read(self, indices: Sequence[int]) -> list[Any]:
        """Samples, or exceptions in place of samples that could not be read (`Source.read`)."""
        wanted = np.asarray(indices, np.int64)
        ranges: list[tuple[int, int, int]] = []
        members: list[np.ndarray] = []
        for number in np.unique(self._file_of[wanted]).tolist():
            of_file = wanted[self._file_of[wanted] == number]
            of_file = of_file[np.argsort(self._starts[of_file], kind="stable")]
            for first, end in joined(self._starts[of_file], self._ends[of_file], self._gap_bytes, self._most_bytes):
                ranges.append((number, int(self._starts[of_file[first]]), int(self._ends[of_file[first:end]].max())))
                members.append(of_file[first:end])
        found: dict[int, Any] = {}
        for (_, start, _), data, samples in zip(ranges, self.files.read(ranges), members, strict=True):
            for sample in samples.tolist():
                found[sample] = data if isinstance(data, Exception) else self._one(memoryview(data), start, sample)
        return [found[sample] for sample in wanted.tolist()]

    def _one(self, data: memoryview, start: int, sample: int) -> Any:
        try:
            return self._decode(data[self._starts[sample] - start : self._ends[sample] - start], sample)
        except Exception as error:  # a corrupt sample counts as one that cannot be read
            return error


def npy(urls: Sequence[str], *, gap_bytes: int = GAP_BYTES, **options: Any) -> Records:
    """Rows of .npy files, concatenated. `options`: those of `Files`. Raises ConfigError if a file is of another format,
    has rows of another shape or dtype, or is shorter than its header indicates."""
    files = Files(urls, **options)
    layouts = [_npy_header(files, number) for number in range(len(urls))]
    offset, rows, shape, dtype = layouts[0]
    for url, other in zip(urls, layouts, strict=True):
        if other[2:] != (shape, dtype):
            raise ConfigError(f"{url}: rows of {other[2]} {other[3]}; expected {shape} {dtype}, as in {urls[0]}")
    size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    file_of = np.repeat(np.arange(len(urls)), [rows for _, rows, *_ in layouts])
    starts = np.concatenate([offset + size * np.arange(rows) for offset, rows, *_ in layouts])

    def decode(data: memoryview, sample: int) -> np.ndarray:
        return np.frombuffer(data, dtype).reshape(shape)

    return Records(files, file_of, starts, starts + size, decode, gap_bytes=gap_bytes)


def _npy_header(files: Files, number: int) -> tuple[int, int, tuple[int, ...], np.dtype[Any]]:
    """(offset of the data, rows, shape of a row, dtype) of a .npy file, format versions 1.0 and 2.0."""
    url = files.urls[number]
    with files.open(number) as file:
        try:
            shape, is_fortran, dtype = array_header(file, files.size(number))
        except ValueError as error:
            raise ConfigError(f"{url}: a .npy file that is {error}") from None
        offset = file.tell()
    if is_fortran or dtype.hasobject or not shape:
        raise ConfigError(f"{url}: expected an array in C order, of at least one dimension, without Python objects")
    return offset, shape[0], tuple(shape[1:]), dtype
