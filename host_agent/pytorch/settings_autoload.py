"""Settings and step times for unmodified scripts: the package's entry point, which torch calls at `import torch`,
applies these variables in every process that has one of them in its environment.

    SWITCHML_SETTINGS     a settings file, applied to init_process_group and DistributedDataParallel
    SWITCHML_STEP_TIMES   a folder: each rank writes rank-N.json, the times at which its optimizer completed a step
"""

import atexit
import functools
import json
import os
import time
from pathlib import Path
from typing import Any

from host_agent.pytorch.settings import BackendSettings, apply, ddp_arguments, load, set_environment

SETTINGS, STEP_TIMES = "SWITCHML_SETTINGS", "SWITCHML_STEP_TIMES"


def apply_environment() -> None:
    """Apply the environment's variables. An invalid settings file ends the process with an error."""
    if path := os.environ.get(SETTINGS):
        _apply_settings(load(path))
    if folder := os.environ.get(STEP_TIMES):
        _record_steps(Path(folder))


def _apply_settings(settings: BackendSettings) -> None:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    set_environment(settings)
    init_process_group, init_ddp = dist.init_process_group, DistributedDataParallel.__init__

    @functools.wraps(init_process_group)
    def init_group(backend: str | None = None, *args: Any, **kwargs: Any) -> Any:
        return init_process_group(settings.backend or backend, *args, **kwargs)

    @functools.wraps(init_ddp)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        init_ddp(self, *args, **kwargs | ddp_arguments(settings))
        apply(self, settings)

    dist.init_process_group = dist.distributed_c10d.init_process_group = init_group
    DistributedDataParallel.__init__ = init  # type: ignore[method-assign]  # replaced


def _record_steps(folder: Path) -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    stepped_s: list[float] = []
    first: list[int] = []
    rank: list[int] = []

    def record(optimizer: Any, args: Any, kwargs: Any) -> None:
        now_s = time.perf_counter()
        if not first:
            first.append(id(optimizer))
            rank.append(_rank())
        if id(optimizer) == first[0]:
            stepped_s.append(now_s)

    def write() -> None:
        if stepped_s:
            (folder / f"rank-{rank[0]}.json").write_text(json.dumps(stepped_s))

    register_optimizer_step_post_hook(record)
    atexit.register(write)


def _rank() -> int:
    import torch.distributed as dist

    return dist.get_rank() if dist.is_initialized() else 0
