"""The PyTorch backend `switchml-emulated`. torch calls `autoload` at `import torch` (entry point group
`torch.backends`), so a script needs nothing but the name, and torchrun as many processes as there are real ranks:

    SWITCHML_EMULATED_WORLD=64 torchrun --nproc-per-node 1 script.py

`settings.py` lists the other variables. What takes time to import waits until a group is made.
"""

from typing import Any

BACKEND_NAME = "switchml-emulated"


def autoload() -> None:
    """Register the backend with torch. Costs next to nothing; safe to call again."""
    # Not above: who imports this module first would have torch call for a function that is not there yet.
    import torch.distributed as dist

    if dist.is_available() and BACKEND_NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(BACKEND_NAME, _create, extended_api=True, devices=["cpu"])


def _create(options: Any, pg_options: object) -> Any:
    """What torch calls for each group, with its _DistributedBackendOptions."""
    from emulator.peers.process_group import create

    return create(options)
