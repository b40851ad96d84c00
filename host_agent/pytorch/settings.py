"""Settings files, as `switchml trace optimize` writes them: how a DDP job should reduce its gradients.

    [process_group]
    backend = "switchml"                  # for init_process_group
    [environment]
    SWITCHML_WIRE = "int16"               # set before it
    [ddp]                                 # arguments of DistributedDataParallel
    bucket_cap_mb_list = [1.5, 4.0]
    gradient_as_bucket_view = true
    [compression]
    codec = ["none", "fp16"]              # of each bucket, the last repeats; memory = "residual"

In a script:

    settings = load("settings.toml")
    dist.init_process_group(settings.backend or "gloo")
    model = DistributedDataParallel(model, **ddp_arguments(settings))
    apply(model, settings)

Or without touching it: SWITCHML_SETTINGS=settings.toml torchrun … script.py (host_agent/pytorch/settings_autoload.py).
"""

import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from switchml import codecs
from switchml.errors import ConfigError
from switchml.files import read_toml

TABLES: dict[str, dict[str, type | tuple[type, ...]]] = {
    "process_group": {"backend": str},
    "ddp": {
        "bucket_cap_mb": (int, float),
        "bucket_cap_mb_list": list,
        "gradient_as_bucket_view": bool,
        "static_graph": bool,
    },
    "compression": {"codec": list, "memory": str},
}
"""A file's tables and keys, except for `environment`, whose values are strings, and `predicted` and `advice`, which are
ignored."""
IGNORED = ("predicted", "advice")


@dataclass(frozen=True)
class BackendSettings:
    """A file's contents; empty fields change nothing. `ddp`: arguments by name, caps in MiB."""

    path: Path
    backend: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    ddp: dict[str, Any] = field(default_factory=dict)
    codec: tuple[str, ...] = ()
    memory: str | None = None


def load(path: str | Path) -> BackendSettings:
    """Read a settings file. Raises ConfigError if it can't be read, and for unknown or invalid keys."""
    path = Path(path)
    tables = read_toml(path)
    for name, table in tables.items():
        if name not in (*TABLES, *IGNORED, "environment") or not isinstance(table, Mapping):
            raise ConfigError(f"{path}: unknown table {name!r}; there are environment, {', '.join(TABLES)}")
        if name in TABLES:
            _check(path, name, table)
    ddp, compression = dict(tables.get("ddp", {})), tables.get("compression", {})
    environment = {name: str(value) for name, value in tables.get("environment", {}).items()}
    _check_caps(path, ddp)
    specs = tuple(compression.get("codec", ()))
    for spec in specs:
        if not isinstance(spec, str):
            raise ConfigError(f"{path}, [compression] codec: expected names of codecs, not {spec!r}")
        codecs.parse(spec)
    if (memory := compression.get("memory")) is not None:
        codecs.parse_error_feedback(memory)
    return BackendSettings(path, tables.get("process_group", {}).get("backend", ""), environment, ddp, specs, memory)


def _check(path: Path, name: str, table: Mapping[str, Any]) -> None:
    for key, value in table.items():
        kind = TABLES[name].get(key)
        if kind is None:
            raise ConfigError(f"{path}, [{name}]: unknown key {key!r}; expected one of {', '.join(TABLES[name])}")
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ConfigError(f"{path}, [{name}] {key}: {value!r} is of the wrong type")


def _check_caps(path: Path, ddp: Mapping[str, Any]) -> None:
    caps = [*ddp.get("bucket_cap_mb_list", []), *([ddp["bucket_cap_mb"]] if "bucket_cap_mb" in ddp else [])]
    if any(not isinstance(cap, int | float) or not cap > 0 for cap in caps) or ddp.get("bucket_cap_mb_list") == []:
        raise ConfigError(f"{path}, [ddp]: bucket caps {caps}: expected MiB above 0")
    if {"bucket_cap_mb", "bucket_cap_mb_list"} <= set(ddp):
        raise ConfigError(f"{path}, [ddp] has both bucket_cap_mb and bucket_cap_mb_list: expected one of them")


def _loaded(settings: BackendSettings | str | Path) -> BackendSettings:
    return settings if isinstance(settings, BackendSettings) else load(settings)


def ddp_arguments(settings: BackendSettings | str | Path) -> dict[str, Any]:
    """Arguments for DistributedDataParallel. Raises ConfigError if this version of torch does not support one
    of them."""
    from torch.nn.parallel import DistributedDataParallel

    settings = _loaded(settings)
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    for name in settings.ddp:
        if name not in known:
            raise ConfigError(
                f"{settings.path}: this torch's DistributedDataParallel has no {name}"
                + ("; rerun the optimizer with --uniform" if name == "bucket_cap_mb_list" else "")
            )
    return dict(settings.ddp)


def set_environment(settings: BackendSettings | str | Path) -> None:
    """Set the file's environment variables, before `init_process_group`; those that are set already stay."""
    settings = _loaded(settings)
    for name, value in settings.environment.items():
        os.environ.setdefault(name, value)


def apply(ddp: Any, settings: BackendSettings | str | Path) -> Any:
    """Register the codec's hook on a DistributedDataParallel; returns its state (comm_hooks.CodecState), or None if
    the file has no codec."""
    settings = _loaded(settings)
    if not settings.codec:
        return None
    from host_agent.compression.by_bucket import BucketCompressor
    from host_agent.pytorch.comm_hooks import CodecState, codec_hook

    if len(set(settings.codec)) == 1:
        state = CodecState(settings.codec[0], settings.memory, process_group=ddp.process_group)
    else:
        state = CodecState("none", process_group=ddp.process_group)
        try:
            state.compressor = BucketCompressor(state.reducer, settings.codec, settings.memory)
        except ConfigError as error:
            raise ConfigError(f"{settings.path}: {error}") from None
    ddp.register_comm_hook(state, codec_hook)
    return state
