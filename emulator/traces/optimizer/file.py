"""The settings file: the search result as arguments of DistributedDataParallel and `init_process_group` (read by
host_agent/pytorch/settings.py), the predicted times, and advice for changes that a file can't make.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from emulator.traces.optimizer.machine import BACKEND_OF, Machine
from emulator.traces.optimizer.passes import PASSES, TRACED, Setting
from emulator.traces.optimizer.search import SearchResult
from emulator.traces.whatif.buckets import MIB
from switchml import codecs
from switchml.output_files import toml_text, whole_file


def tables(result: SearchResult, machine: Machine, source: str) -> dict[str, dict[str, Any]]:
    """Return table → key → value."""
    setting = result.in_file.setting
    ddp: dict[str, Any] = {}
    caps = [cap / MIB for cap in setting.buckets]
    if len(caps) == 1:
        ddp["bucket_cap_mb"] = caps[0]
    elif caps:
        ddp["bucket_cap_mb_list"] = caps
    if setting.changed():
        ddp["gradient_as_bucket_view"] = True
    allreduce = setting.allreduce or machine.traced_allreduce
    backend = BACKEND_OF.get(setting.allreduce, "")
    environment = {}
    if allreduce == "switchml" and any(codecs.parse(spec).is_half for spec in setting.codec if spec):
        environment["SWITCHML_WIRE"] = "int16"  # only for values rounded by such a codec
    return {
        "predicted": {
            "source": source,
            "traced_s": result.traced.iteration_s,
            "iteration_s": result.in_file.iteration_s,
            "gain": result.gain_of(result.in_file),
        },
        "process_group": {"backend": backend} if backend else {},
        "environment": environment,
        "ddp": ddp,
        "compression": {"codec": [spec or "none" for spec in setting.codec]} if setting.codec else {},
        "advice": advice(result.best.setting),
    }


def advice(setting: Setting) -> dict[str, str]:
    """Return advice by pass, for changes that a file can't make."""
    changed = setting.changed()
    advised = {
        one.name: f"{one.title} ({changed[one.name]}): {one.advice}"
        for one in PASSES
        if one.name in changed and not one.in_file
    }
    if setting.allreduce == "ps":
        advised["allreduce"] = "a parameter server, such as BytePS's"
    return advised


def is_empty(result: SearchResult) -> bool:
    """Return whether the file would change nothing."""
    return result.in_file.setting == TRACED


def write(path: Path, result: SearchResult, machine: Machine, source: str) -> None:
    """Write the settings file. Raises ConfigError if it can't be written."""
    filled = {name: table for name, table in tables(result, machine, source).items() if table}
    write_toml(path, filled, "docs/optimizer.md says how to use it.")


def write_toml(path: Path, tables: Mapping[str, Any], use: str) -> None:
    """Write keys, then tables of keys, under a comment that ends with `use`. Raises ConfigError if the file can't be
    written."""
    with whole_file(path) as part:
        part.write_text(f"# Written by `switchml trace optimize`; {use}\n" + toml_text(tables))
