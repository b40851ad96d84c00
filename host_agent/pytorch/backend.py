"""The PyTorch backend `switchml`: all-reduces use an aggregator, and other collectives Gloo if the aggregator does not
support them.

torch calls `autoload` at `import torch` (entry point group `torch.backends`), so a script needs only the name:
`dist.init_process_group("switchml")`. Slow imports are deferred until then.

    SWITCHML_AGGREGATOR   HOST:PORT of an aggregator's control port. Unset: rank 0 starts one, which ends with the job
    SWITCHML_SECRET       the job's secret, the same on all ranks; SWITCHML_SECRET_FILE: a file with it. Unset: a random
                          one, stored in torch's store, where everybody who can connect to it can read it
    SWITCHML_JOB          the job's name in `switchml status`. Unset: torch, or torchrun's run id, and six digits
    SWITCHML_JOIN_TIMEOUT limit for rank 0 to wait for an aggregator that has not started yet: 30s unless set
    SWITCHML_TLS_CA       PEM file with the certificate authority of the aggregator's control port. Unset: no TLS
    SWITCHML_WIRE         int32, int16 or int8: lanes of floats, in fixed point with one exponent per block, where small
                          values next to large ones are lost (docs/protocol.md, section 5). auto (the default): int32,
                          and unconverted half precision if the aggregator can add that. exact: sums within a unit in
                          the last place, in further rounds
    SWITCHML_COLLECTIVES  0: only sums and averages use the aggregator (collectives.py)
    SWITCHML_HIERARCHY    node: the ranks of a host sum in shared memory, and one communicates with the aggregator

Rank 0 of a group reads the first and sends it to the other ranks through the group's store; each rank reads the others
itself, and further settings of `HostAgent.join` from the environment.
"""

import os
from typing import Any

import torch.distributed as dist

from host_agent.pytorch.torch_patches import BACKEND_NAME, install

DEVICES = ["cpu", "cuda"]


def autoload() -> None:
    """Register the backend with torch. Takes almost no time; may be called again."""
    if dist.is_available() and BACKEND_NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(BACKEND_NAME, _create, extended_api=True, devices=DEVICES)
        install()
        if os.environ.get("SWITCHML_SETTINGS") or os.environ.get("SWITCHML_STEP_TIMES"):
            from host_agent.pytorch import settings_autoload

            settings_autoload.apply_environment()
        if os.environ.get("SWITCHML_TRACE_DIR"):
            from host_agent.profile.autostart import start_profile

            start_profile()


def _create(options: Any, pg_options: object) -> dist.ProcessGroup:
    """Create a process group; called by torch for each group, with its _DistributedBackendOptions. `pg_options` are not
    used."""
    from host_agent.pytorch.process_group import SwitchMLProcessGroup

    return SwitchMLProcessGroup(
        options.store,
        options.group_rank,
        options.group_size,
        options.timeout,
        group_name=options.group_id,
        global_ranks=tuple(options.global_ranks_in_group),
    )
