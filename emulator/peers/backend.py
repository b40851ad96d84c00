"""The PyTorch backend `switchml-emulated`. torch calls `autoload` at `import torch` (entry point group
`torch.backends`), so a script needs only the name, and torchrun as many processes as there are real ranks:

    SWITCHML_EMULATED_WORLD=64 torchrun --nproc-per-node 1 script.py

`settings.py` lists the other variables. Slow imports are deferred until a group is created.
"""

from typing import Any

BACKEND_NAME = "switchml-emulated"


def autoload() -> None:
    """Register the backend with torch. Cheap and idempotent."""
    # Not at module level: torch would call `autoload` before it is defined if this module is imported first.
    import torch.distributed as dist

    if dist.is_available() and BACKEND_NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(BACKEND_NAME, _create, extended_api=True, devices=["cpu"])


def _create(options: Any, pg_options: object) -> Any:
    """Create a group from torch's _DistributedBackendOptions; called by torch."""
    from emulator.peers.process_group import create

    return create(options)
