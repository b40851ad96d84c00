"""The process group for torchft's Manager: training continues when a replica dies, and readmits it when it returns.

    manager = torchft.Manager(pg=ProcessGroupSwitchML(), min_replica_size=1, …)

The ranks of such a group are the replicas of one rank; within a replica, groups are torch's own. Whenever the replicas
change, the Manager calls `configure` with a new part of a store: this group then leaves its job at the aggregator, and
joins a new one. When a replica dies, calls in progress fail at once with PeerLost; the Manager discards that step.

Collectives are routed as in the backend (pytorch/process_group.py), so checkpoints may be transferred through Gloo. A
single replica joins no job.

    SWITCHML_AGGREGATOR   as for the backend. Unset: the first replica starts an aggregator, and each change of the
                          replicas starts another
"""

import os
from datetime import timedelta

from torch.distributed import BarrierOptions, Store
from torch.distributed import ProcessGroup as TorchProcessGroup
from torch.distributed.distributed_c10d import Work
from torchft.process_group import ProcessGroupWrapper

from host_agent.pytorch.process_group import SwitchMLProcessGroup
from switchml.errors import JobError


class ProcessGroupSwitchML(ProcessGroupWrapper):
    """Like torchft's ProcessGroupGloo. `timeout` limits forming a group (whose ranks may die meanwhile) and each
    collective; a step that it ends is repeated with the replicas that remain."""

    _pg: SwitchMLProcessGroup | None

    def __init__(self, timeout: timedelta = timedelta(seconds=60)):
        super().__init__(timeout)
        self._aborted: JobError | None = None

    def _create_pg(self, store: Store, rank: int, world_size: int) -> TorchProcessGroup:
        """Join a job named after SWITCHML_JOB, the quorum and the rank within the replica."""
        self._aborted = None
        name = os.environ.get("SWITCHML_JOB") or "torchft"
        job = f"{name}-{self._quorum_id or 0}.{self._group_rank or 0}"
        return SwitchMLProcessGroup(store, rank, world_size, self._timeout, job=job)

    def errored(self) -> Exception | None:
        """The error that ended the job of this quorum, if any."""
        group = self._pg
        return self._aborted if group is None else group.error

    def abort(self, errored: bool = True) -> None:
        """Fail calls in progress, and leave the job."""
        if errored:
            self._aborted = JobError("the process group was aborted")
        super().abort(errored)

    def shutdown(self) -> None:
        """Leave the job when all replicas are done."""
        group, self._pg = self._pg, None
        if group is not None:
            group.shutdown()

    def barrier(self, opts: BarrierOptions | None = None) -> Work:
        work: Work = super().barrier(opts or BarrierOptions())
        return work

    def getBackendName(self) -> str:
        return "torchft-switchml"
