"""Which format a file has, by its content."""

from __future__ import annotations

import re
from pathlib import Path

from emulator.traces.readers import captured, native
from emulator.traces.readers.chakra import file as chakra_file
from emulator.traces.readers.chrome import open_plain

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
"""What only PyTorch's Chrome traces have."""
_DPRO_PLACE = re.compile(rb'"pid"\s*:\s*"[^"]*host\d+\.rank\d+"')
_TORCH_ET = re.compile(rb'"schema"\s*:\s*"[^"]*chakra[^"]*"')


def detect(path: Path) -> str:
    """One of the names above, or "" for what is no trace."""
    if captured.about_of(path) == path:
        return CAPTURE
    if native.is_native(path):
        return OURS
    with open_plain(path) as file:
        try:
            start = file.read(_LOOK_BYTES)
        except (EOFError, OSError):
            # Broken right at the beginning: by its name; the reader then says where it breaks.
            return KINETO if ".json" in path.name else ""
    text = start.lstrip()
    if text[:1] in (b"{", b"["):
        if _DPRO_PLACE.search(text):
            return DPRO
        if b'"workload_graph"' in text[:4096]:
            return CHAKRA
        if _TORCH_ET.search(text[:4096]) and b'"nodes"' in text:
            return EXECUTION_TRACE
        return KINETO if _KINETO.search(text) else ""
    if re.match(rb"[A-Z_]+\s+model_parallel_NPU_group:", text):
        return SIMAI
    return CHAKRA if chakra_file.is_chakra(start) else ""
