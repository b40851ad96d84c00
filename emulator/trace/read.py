"""Traces from files, whichever program wrote them: the format is told by the content, not by the name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from emulator.trace.events import RankTrace
from switchml.errors import TraceError


def read(path: Path | str, *, rank: int | None = None, salvage: bool = False) -> list[RankTrace]:
    """The traces in `path`, a file or a directory of files, in the order of ranks.

    rank: whose the trace is, for a single file that does not say.
    salvage: of files that break off, take what is there; `about["broken"]` then says so.
    Raises TraceError where nothing is found, a file can't be read, or two are of one rank.
    """
    path = Path(path)
    if not path.exists():
        raise TraceError(f"no trace at {path}: no such file or directory")
    files = sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else [path]
    if rank is not None and path.is_dir():
        raise TraceError(f"--rank names the rank of one file, but {path} is a directory")
    traces: list[RankTrace] = []
    for file in files:
        reader = _reader(file)
        if reader is not None:
            traces.append(reader(file, rank=rank, salvage=salvage))
        elif not path.is_dir():
            raise TraceError(f"{path} is no trace that is known here: expected {KNOWN}")
    if not traces:
        raise TraceError(f"no trace in {path}: expected {KNOWN}")
    traces.sort(key=lambda trace: trace.rank)
    for one, other in zip(traces, traces[1:], strict=False):
        if one.rank == other.rank:
            raise TraceError(
                f"{one.source} and {other.source} are both of rank {one.rank}; one trace a rank is expected"
            )
    return traces


KNOWN = "a trace of PyTorch's profiler (JSON, may be gzipped), a Chakra execution trace, or one of our own (.npz)"


def _reader(path: Path) -> Callable[..., RankTrace] | None:
    """Which reader understands `path`, or None."""
    from emulator.trace import chakra, chakra_file, chrome, kineto, native

    if native.is_native(path):
        return native.read
    with chrome.open_plain(path) as file:
        try:
            start = file.read(4096)
        except (EOFError, OSError):
            start = b"{"  # broken gzip: its reader says where
    if start.lstrip()[:1] in (b"{", b"["):
        return kineto.read
    return chakra.read if chakra_file.is_chakra(start) else None
