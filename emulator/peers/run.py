"""Runs a script as one real rank: `python -m emulator.peers.run SCRIPT ARGUMENTS`, or `-m MODULE ARGUMENTS`. The script
is the same as for torchrun, unchanged: the emulated backend replaces whichever backend it requests.
"""

import functools
import inspect
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from emulator.peers.backend import BACKEND_NAME, autoload

T = TypeVar("T")


def main(arguments: list[str]) -> None:
    """Run a script as `__main__` with the emulated backend."""
    autoload()
    take_over(BACKEND_NAME)
    run(arguments)


def run(arguments: list[str]) -> None:
    """Run a script, or "-m" and a module, with its arguments, in this process."""
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, "")
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
        runpy.run_path(arguments[0], run_name="__main__")


def take_over(backend: str, requested: Callable[[Any, Any], None] = lambda *_: None, **initial: Any) -> None:
    """Make all process groups created from now on use `backend`; `initial` are arguments of `init_process_group`.
    `requested`: called with each group (None: the default one) and the backend that the script requests."""
    import torch.distributed as dist
    from torch.distributed import device_mesh, distributed_c10d

    def ours(function: Callable[..., T], **given: Any) -> Callable[..., T]:
        """Wrap `function` with `backend` as its argument."""
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> T:
            bound = signature.bind(*args, **kwargs)
            wanted = bound.arguments.get("backend")
            bound.arguments |= {"backend": backend, **given}
            bound.arguments.pop("device_id", None)
            made = function(*bound.args, **bound.kwargs)
            requested(made, wanted)
            return made

        return call

    for name in ("init_process_group", "new_group"):
        changed = ours(getattr(distributed_c10d, name), **(initial if name == "init_process_group" else {}))
        for module in (dist, distributed_c10d, device_mesh):
            if hasattr(module, name):
                setattr(module, name, changed)


if __name__ == "__main__":
    main(sys.argv[1:])
