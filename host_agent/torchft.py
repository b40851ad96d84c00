"""The process group for torchft's Manager: training goes on when a replica dies, and takes it back when it returns.

    manager = torchft.Manager(pg=ProcessGroupSwitchML(), min_replica_size=1, …)

The ranks of such a group are the replicas of one rank; within a replica, groups are torch's own. Whenever the replicas
change, the Manager calls `configure` with a new part of a store: this group then leaves its job at the aggregator, and
joins a new one. When a replica dies, what is under way fails at once with PeerLost; the Manager drops that step.
Collectives go where those of the backend go (pytorch/process_group.py), so that checkpoints may travel through Gloo.
With a single replica nothing is joined.

    SWITCHML_AGGREGATOR   as for the backend. Unset: the first replica starts an aggregator, and each change of the
                          replicas costs its start
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
    collective; a step that it ends is repeated with the replicas that are there then."""

    _pg: SwitchMLProcessGroup | None

    def __init__(self, timeout: timedelta = timedelta(seconds=60)):
        super().__init__(timeout)
        self._aborted: JobError | None = None

    def _create_pg(self, store: Store, rank: int, world_size: int) -> TorchProcessGroup:
        """Joins a job named after SWITCHML_JOB, the quorum and the rank within the replica."""
        self._aborted = None
        name = os.environ.get("SWITCHML_JOB") or "torchft"
        job = f"{name}-{self._quorum_id or 0}.{self._group_rank or 0}"
        return SwitchMLProcessGroup(store, rank, world_size, self._timeout, job=job)

    def errored(self) -> Exception | None:
        """What ended the job of this quorum, if anything did."""
        group = self._pg
        return self._aborted if group is None else group.error

    def abort(self, errored: bool = True) -> None:
        """Fail what is under way, and leave the job."""
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
