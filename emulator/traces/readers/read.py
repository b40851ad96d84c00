"""Reads traces in any supported format. The format is detected from the content, not the name."""

import codecs
import re
import zlib
from pathlib import Path

from emulator.traces.collector import paused
from emulator.traces.consistency import check
from emulator.traces.events import RankTrace, one_a_rank
from emulator.traces.readers import captured, dpro, native, simai
from emulator.traces.readers.chakra import chakra, graph
from emulator.traces.readers.chakra.file import is_chakra
from emulator.traces.readers.chrome import open_plain
from emulator.traces.readers.kineto import kineto
from emulator.traces.workload import Workload, untimed
from switchml.errors import TraceError
from switchml.files import check_has_end, reading

CAPTURE, OURS = "capture", "switchml"
KINETO, EXECUTION_TRACE, CHAKRA, DPRO, SIMAI = "kineto", "execution trace", "chakra", "dpro", "simai"
DESCRIPTIONS = (
    "what switchml trace capture leaves",
    "a trace of PyTorch's profiler (JSON, may be gzipped)",
    "a Chakra execution trace",
    "dPRO's timeline",
    "SimAI's workload text",
    "a file of our own (.npz)",
)
_LOOK_BYTES = 1 << 20
_KINETO = re.compile(
    rb'"(deviceProperties|distributedInfo|schemaVersion)"\s*:'
    rb'|"cat"\s*:\s*"(cpu_op|user_annotation|python_function|kernel|gpu_\w+|\w+_runtime|\w+_driver|Operator|Runtime)"'
)
"""Text that occurs only in PyTorch's Chrome traces."""
_DPRO_PLACE = re.compile(rb'"pid"\s*:\s*"[^"]*host\d+\.rank\d+"')
_TORCH_ET = re.compile(rb'"schema"\s*:\s*"\d[^"]*"')
_NODES = re.compile(rb'"nodes"\s*:\s*\[')


@paused()
def read(path: Path | str, *, rank: int | None = None, salvage: bool = False) -> list[RankTrace]:
    """Read the traces in `path`, a file or directory, by rank. In a directory, torch's execution traces are joined to
    the profiler's of the same rank, and other files are skipped. `rank`: for a file that does not contain it.
    `salvage`: of damaged files, read as much as possible; `about["broken"]` then describes the fault. Raises TraceError
    if nothing is found, a file can't be read, or two are of one rank."""
    path = Path(path)
    present = files(path)
    if rank is not None and path.is_dir():
        raise TraceError(f"--rank names the rank of one file, but {path} is a directory")
    for file, kind in present:
        if kind == SIMAI:
            raise untimed(file)
    execution_traces = {_named_rank(file): file for file, kind in present if kind == EXECUTION_TRACE}
    traces = [
        trace
        for file, kind in present
        if kind != EXECUTION_TRACE
        for trace in _read_one(file, kind, rank, salvage, execution_traces)
    ]
    if not traces:
        raise _lone(present[0][0])
    return one_a_rank(traces)


def _lone(file: Path) -> TraceError:
    """Return the error for an execution trace without the profiler's trace."""
    return TraceError(
        f"{file} is PyTorch's execution trace (ExecutionTraceObserver), which says what was called on which tensors "
        "but not when: put the profiler's trace of the same run beside it, with the same rank-N in the names of both"
    )


def read_workload(path: Path | str, gpus: int | None = None) -> Workload:
    """Read the workload in `path`, a file or a directory. `gpus`: for SimAI's, if it does not contain it. Raises
    TraceError."""
    path = Path(path)
    present = files(path)
    texts = [file for file, kind in present if kind == SIMAI]
    execution_traces = [file for file, kind in present if kind == CHAKRA]
    if texts and len(present) > 1:
        raise TraceError(
            f"{path} has {len(present)} traces; SimAI's workload is one file, expected {texts[0].name} alone"
        )
    if texts:
        with reading(texts[0], TraceError):
            return simai.read_simai(texts[0], gpus)
    if all(kind == EXECUTION_TRACE for _, kind in present):
        raise _lone(present[0][0])
    if not execution_traces:
        raise TraceError(f"{path} is a trace of a job, not a workload: `switchml trace replay` replays it")
    if gpus is not None:
        raise TraceError(f"--gpus is for SimAI's workload, but {path} has Chakra's, with a file for each rank")
    with reading(path, TraceError):
        return graph.read_chakra(execution_traces)


def files(path: Path) -> list[tuple[Path, str]]:
    """Return the traces at `path`, each with its format. Raises TraceError if there is none."""
    if not path.exists():
        raise TraceError(f"no trace at {path}: no such file or directory")
    check_has_end(path, TraceError, pipes=False)
    inside = [path]
    if path.is_dir():  # hidden files are incomplete files of killed ranks
        inside = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
    if path.is_dir() and not any(detect(file) for file in inside):
        inside = sorted(file for file in path.rglob("*") if file.is_file())  # a directory for each rank
    inside = list(dict.fromkeys(captured.about_of(file) or file for file in inside))  # one entry per rank of a capture
    present = [(file, kind) for file in inside if (kind := detect(file))]
    if not present:
        expected = ", ".join(DESCRIPTIONS[:-1]) + f" or {DESCRIPTIONS[-1]}"
        what = f"no trace in {path}" if path.is_dir() else f"{path} is no trace that is known here"
        raise TraceError(f"{what}: expected {expected}")
    return present


def detect(path: Path) -> str:
    """Return the format, one of the names above, or "" if the file is no trace."""
    if captured.about_of(path) == path:
        return CAPTURE
    if native.is_native(path):
        return OURS
    with open_plain(path) as file:
        try:
            start = file.read(_LOOK_BYTES)
        except (EOFError, OSError, zlib.error):
            # Damaged at the beginning: decide by the name; the reader then reports the position.
            return KINETO if ".json" in path.name else ""
    text = start.removeprefix(codecs.BOM_UTF8).lstrip()
    if text[:1] in (b"{", b"["):
        if _DPRO_PLACE.search(text):
            return DPRO
        if b'"workload_graph"' in text[:4096]:
            return CHAKRA
        if _TORCH_ET.search(text[:4096]) and _NODES.search(text):
            return EXECUTION_TRACE
        return KINETO if _KINETO.search(text) else ""
    if re.match(rb"[A-Z_]+\s+model_parallel_NPU_group:", text):
        return SIMAI
    return CHAKRA if is_chakra(start) else ""


def _read_one(
    path: Path, kind: str, rank: int | None, salvage: bool, execution_traces: dict[int, Path]
) -> list[RankTrace]:
    with reading(path, TraceError):
        traces = _read_kind(path, kind, rank, salvage, execution_traces)
        for trace in traces:
            check(trace)
    return traces


def _read_kind(
    path: Path, kind: str, rank: int | None, salvage: bool, execution_traces: dict[int, Path]
) -> list[RankTrace]:
    if kind == DPRO:
        return dpro.read(path, salvage=salvage)
    if kind == KINETO:
        execution_trace = execution_traces.get(_named_rank(path))
        return kineto.read(path, rank=rank, salvage=salvage, execution_trace=execution_trace)
    reader = {CAPTURE: captured.read, CHAKRA: chakra.read, OURS: native.read}[kind]
    return [reader(path, rank=rank, salvage=salvage)]


def _named_rank(path: Path) -> int:
    """Return the rank in a file's name, or -1."""
    named = re.search(r"rank[-_]?(\d+)", path.name)
    return int(named[1]) if named else -1
