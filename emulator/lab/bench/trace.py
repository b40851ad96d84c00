"""Speed and memory of trace reading: a generated Kineto trace of any size is read in its own process."""

import gzip
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from switchml.output_files import whole_file

_STEP = 2000
"""Operators per iteration."""


@dataclass(frozen=True)
class Measured:
    """Time and memory to read one file."""

    json_bytes: int
    file_bytes: int
    events: int
    read_s: float
    cpu_s: float
    """CPU seconds of the read; less than `read_s` where the process was descheduled."""
    peak_bytes: int
    """Peak resident memory of the reading process."""
    start_bytes: int
    """Peak resident memory before reading: the interpreter and its libraries."""
    plain_read_s: float | None = None
    """Time that json.load takes for the same file; the next two fields are its CPU time and peak memory."""
    plain_cpu_s: float | None = None
    plain_peak_bytes: int | None = None

    def to_json(self) -> dict[str, Any]:
        """All fields, and rates."""
        return asdict(self) | {
            "json_bytes_per_s": self.json_bytes / self.read_s,
            "json_bytes_per_cpu_s": self.json_bytes / self.cpu_s,
            "events_per_cpu_s": self.events / self.cpu_s,
        }

    def lines(self) -> list[str]:
        """The results as lines of text."""
        megabytes = self.json_bytes / 1e6
        lines = [
            f"{megabytes:,.0f} MB of JSON, {self.file_bytes / 1e6:,.0f} MB on disk",
            f"{self.events:,} events in {self.read_s:.2f} s: {megabytes / self.read_s:.0f} MB/s; "
            f"{self.cpu_s:.2f} s on the processor: {megabytes / self.cpu_s:.0f} MB/s",
            f"peak memory {self.peak_bytes / 1e6:,.0f} MB, of which {self.start_bytes / 1e6:,.0f} MB before reading",
        ]
        if self.plain_read_s and self.plain_peak_bytes:
            lines.append(
                f"json.load: {self.plain_read_s:.2f} s, {self.plain_cpu_s:.2f} s on the processor, "
                f"{self.plain_peak_bytes / 1e6:,.0f} MB"
            )
        return lines


def measure(size_bytes: int, *, compressed: bool, compare: bool = False, folder: Path | None = None) -> Measured:
    """Write a trace of about `size_bytes` of JSON, and read it in another process. `compare`: also read it with
    json.load."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        path = Path(place) / ("rank-0.json.gz" if compressed else "rank-0.json")
        json_bytes = write(path, size_bytes)
        figures = _run("ours", path)
        if compare:
            plain = _run("json", path)
            figures |= {f"plain_{name}": plain[name] for name in ("read_s", "cpu_s", "peak_bytes")}
        return Measured(json_bytes=json_bytes, file_bytes=path.stat().st_size, **figures)


def _run(reader: str, path: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", __name__, reader, str(path)]
    figures: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return figures


def write(path: Path, size_bytes: int) -> int:
    """Write a trace similar to that of a GPU job: iterations of operators that each launch a kernel, and an occasional
    all-reduce. Returns its size before compression."""
    written = 0
    with (
        whole_file(path) as part,
        gzip.open(part, "wb", compresslevel=3) if path.suffix == ".gz" else part.open("wb") as file,
    ):
        info = {"backend": "nccl", "rank": 0, "world_size": 2}
        written += file.write(f'{{"schemaVersion": 1, "distributedInfo": {json.dumps(info)}, "traceEvents": ['.encode())
        separator = b"\n"
        for event in _events():
            written += file.write(separator + json.dumps(event).encode())
            separator = b",\n"
            if written >= size_bytes:
                break
        written += file.write(b'\n], "traceName": "generated", "baseTimeNanoseconds": 1700000000000000000}\n')
    return written


def _events() -> Iterator[dict[str, Any]]:
    number, at_us = 0, 0.0
    while True:
        number += 1
        if number % _STEP == 1:
            yield _span("user_annotation", f"ProfilerStep#{number // _STEP}", 1, at_us, _STEP * 40.0, {})
        call = {"External id": number, "Record function id": number, "Ev Idx": number}
        shapes = {"Input Dims": [[4096, 4096], [4096, 1024]], "Input type": ["float", "float"], "Input Strides": [[1]]}
        yield _span("cpu_op", "aten::mm" if number % 3 else "aten::add_", 1, at_us, 35.5, call | shapes)
        yield _span("cuda_runtime", "cudaLaunchKernel", 1, at_us + 10, 6.25, {"cbid": 211, "correlation": number})
        launched = {"device": 0, "context": 1, "stream": 7, "correlation": number, "grid": [512, 1, 1], "block": [256]}
        if number % 50:
            yield _span("kernel", f"ampere_sgemm_{64 * (number % 5)}x64_nn", 7, at_us + 20, 30.125, launched, pid=0)
        else:
            reduced = {"Collective name": "allreduce", "In msg nelems": 1 << 20, "Group size": 2, "dtype": "Float"}
            more = launched | reduced | {"stream": 20, "Process Group Name": "0", "Process Group Ranks": "[0, 1]"}
            yield _span("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 20, at_us + 20, 300.0, more, pid=0)
        at_us += 40.0


def _span(
    category: str, name: str, tid: int, at_us: float, duration_us: float, args: dict[str, Any], pid: int = 9
) -> dict[str, Any]:
    where = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid}
    return where | {"ts": at_us, "dur": duration_us, "args": args}


def _peak_bytes() -> int:
    """Peak resident memory from /proc: getrusage may return the larger peak of the parent process."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) * 1024


def main(reader: str, path: str) -> None:
    """Read `path` and print time and memory as JSON; run in its own process."""
    if reader == "ours":
        from emulator.traces.readers.kineto import kineto

    start_bytes, began_s, cpu_began_s = _peak_bytes(), time.perf_counter(), time.process_time()
    if reader == "ours":
        events = sum(len(trace.events) for trace in kineto.read(Path(path)))
    else:
        with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as file:
            events = len(json.load(file)["traceEvents"])
    figures = {
        "events": events,
        "read_s": time.perf_counter() - began_s,
        "cpu_s": time.process_time() - cpu_began_s,
        "peak_bytes": _peak_bytes(),
        "start_bytes": start_bytes,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
