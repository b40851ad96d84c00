"""Byte ranges of files, through fsspec: local ones, HTTP, S3 and any other protocol it supports. Changes of a file
while it is in use are detected: in each read of a local file, at most `check_every_s` later for others.
"""

import asyncio
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

from host_agent.loading.sources.base import SourceChanged, Traffic
from host_agent.loading.sources.limit import ReadLimit
from switchml.errors import ConfigError

REMOTE_READS = 32
"""Maximum number of ranges in flight over all calls (`ReadLimit` sets the actual number); fsspec's own limit is 128 per
call, too many for four ranks and one server."""
IDENTITY = ("size", "ETag", "etag", "Last-Modified", "LastModified", "mtime", "Content-MD5", "Digest")
"""Fields of fsspec's `info` that distinguish versions of a file."""


def is_local(url: str) -> bool:
    """Whether a URL is a path on this machine."""
    return "://" not in url and "::" not in url or url.startswith("file://")


def local_path(url: str) -> str:
    """URL without the file scheme."""
    return url.removeprefix("file://")


def filesystem(url: str, options: dict[str, Any]) -> tuple[Any, str]:
    """fsspec's file system for `url`, and the path in it. Raises ConfigError if a package is missing."""
    try:
        import fsspec

        found: tuple[Any, str] = fsspec.core.url_to_fs(url, **options)
        return found
    except (ImportError, ValueError) as error:
        raise ConfigError(
            f"{url}: {error} (HTTP: pip install 'switchml[loading]'; S3: 'switchml[loading-all]')"
        ) from error


class Files:
    """Files of one file system, given by `urls`. `options`: fsspec's (headers, credentials, …). Raises OSError for
    missing files."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        options: dict[str, Any] | None = None,
        check_every_s: float = 10.0,
        reads_at_once: int = REMOTE_READS,
    ):
        if not urls:
            raise ConfigError("no files to read samples from; expected at least one")
        self.urls = list(urls)
        self.traffic = Traffic()
        self.is_local = all(is_local(url) for url in urls)
        self._check_every_s = check_every_s
        self._turns = ReadLimit(reads_at_once)
        self._lock = threading.Lock()
        self._descriptors: dict[int, int] = {}
        if not self.is_local:
            self._filesystem, _ = filesystem(self.urls[0], options or {})
            self._paths = [self._filesystem._strip_protocol(url) for url in self.urls]
        self._identities = [self._identity(number) for number in range(len(self.urls))]
        self._checked_at = [time.monotonic()] * len(self.urls)

    def size(self, number: int) -> int:
        """Size of a file in bytes at the time it was opened."""
        size = self._identities[number]["size"]
        if size is None:
            raise ConfigError(f"{self.urls[number]}: the server does not say how large it is; expected Content-Length")
        return int(size)

    def open(self, number: int) -> Any:
        """Open the file as an object with read and seek."""
        if self.is_local:
            return open(local_path(self.urls[number]), "rb")
        return self._filesystem.open(self._paths[number], "rb", cache_type="none")

    def read(self, ranges: Sequence[tuple[int, int, int]]) -> list[bytes | Exception]:
        """Read each range (file, start, end): its bytes, or an exception: EOFError for a short read, SourceChanged for
        a file that has changed."""
        found = [self._read_local(*each) for each in ranges] if self.is_local else self._read_remote(ranges)
        checked: list[bytes | Exception] = []
        for (number, start, end), data in zip(ranges, found, strict=True):
            if not isinstance(data, Exception) and len(data) != end - start:
                extra = "; does the server ignore Range headers?" if len(data) > end - start else ""
                data = EOFError(f"{self.urls[number]}: {len(data)} bytes from {start}; expected {end - start}{extra}")
            checked.append(data)
        whys = {number: self.changed(number) for number in {number for number, *_ in ranges}}
        for place, (number, *_) in enumerate(ranges):
            checked[place] = whys[number] or checked[place]
        good = [data for data in checked if not isinstance(data, Exception)]
        self.traffic.add(len(ranges), sum(len(data) for data in good))
        return checked

    def changed(self, number: int) -> SourceChanged | None:
        """SourceChanged if the file differs from the one that was opened, else None. For a remote file, storage is
        queried only if the last check is older than `check_every_s`."""
        now = time.monotonic()
        if not self.is_local and now < self._checked_at[number] + self._check_every_s:
            return None
        try:
            identity = self._identity(number)
        except Exception:  # currently not accessible: a read will report that itself
            return None
        self._checked_at[number] = now
        before = self._identities[number]
        if identity == before:
            return None
        what = ", ".join(f"{name} {before.get(name)} → {identity.get(name)}" for name in before | identity)
        return SourceChanged(
            f"{self.urls[number]} has changed since it was opened ({what}); plan again, with the new one"
        )

    def _identity(self, number: int) -> dict[str, Any]:
        if self.is_local:
            state = os.stat(local_path(self.urls[number]))
            return {"size": state.st_size, "inode": state.st_ino, "mtime_ns": state.st_mtime_ns}
        # Otherwise a cached listing of fsspec would hide changes.
        self._filesystem.invalidate_cache(self._paths[number])
        info = self._filesystem.info(self._paths[number])
        return {name: info[name] for name in IDENTITY if info.get(name) is not None} | {"size": info.get("size")}

    def _read_local(self, number: int, start: int, end: int) -> bytes | Exception:
        try:
            with self._lock:
                if number not in self._descriptors:
                    self._descriptors[number] = os.open(local_path(self.urls[number]), os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(self._descriptors[number], end - start, start)
        except OSError as error:
            return error

    def _read_remote(self, ranges: Sequence[tuple[int, int, int]]) -> list[bytes | Exception]:
        if self._filesystem.async_impl:
            from fsspec.asyn import sync

            found: list[bytes | Exception] = sync(self._filesystem.loop, self._gathered, ranges)
            return found
        found = self._filesystem.cat_ranges(
            [self._paths[number] for number, *_ in ranges],
            [start for _, start, _ in ranges],
            [end for *_, end in ranges],
            on_error="return",
        )
        return found

    async def _gathered(self, ranges: Sequence[tuple[int, int, int]]) -> list[Any]:
        """Ranges of a later call wait until all of an earlier one's are in flight: two windows that share storage
        evenly would end together, and leave it idle until the next ones have begun."""

        async def one(number: int, start: int, end: int) -> Any:
            await self._turns.take()
            started, size = time.perf_counter(), 0
            try:
                data = await self._filesystem._cat_file(self._paths[number], start=start, end=end)
                size = len(data)
                return data
            finally:
                self._turns.give_back(size, time.perf_counter() - started if size else 0.0)

        return await asyncio.gather(*(one(*each) for each in ranges), return_exceptions=True)

    def close(self) -> None:
        """Close descriptors of local files."""
        with self._lock:
            for descriptor in self._descriptors.values():
                os.close(descriptor)
            self._descriptors.clear()

    def __del__(self) -> None:
        if hasattr(self, "_descriptors"):
            self.close()
