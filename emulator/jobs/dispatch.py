"""Expert dispatch of tokens: an all-to-all, or DeepEP and HybridEP (`dispatch` in cluster/collectives.py)."""

from __future__ import annotations

from dataclasses import dataclass

from emulator.cluster import collectives
from emulator.cluster.cluster import Cluster
from emulator.cluster.cost import Cost
from emulator.cluster.topology import GroupLayout, place
from emulator.jobs.workload.implementations import implementations
from emulator.jobs.workload.job import Job
from emulator.jobs.workload.models import Transformer
from emulator.jobs.workload.transformer import Segment

NODE = 8
"""Largest node, in accelerators, inside which an all-to-all is used; on larger ones (NVL72), Megatron Bridge's recipes
of 2025 use HybridEP."""


@dataclass(frozen=True)
class Dispatch:
    """Expert dispatch of a job."""

    where: GroupLayout
    """The ranks of an expert-parallel group."""
    is_flex: bool
    """Whether a token is sent once to each node instead of once to each of its experts."""
    most_nodes: int = 0
    """Largest number of nodes with a token's experts (0: unlimited), as restricted by the model's router."""
    is_hidden: bool = False
    """Whether dispatch overlaps with the compute of another micro-batch."""

    @classmethod
    def of(cls, model: Transformer, job: Job, cluster: Cluster) -> Dispatch:
        """Return the job's dispatcher, or its implementation's default."""
        where = place(job.ep, job.expert_tp, cluster.accelerators_per_node)
        is_far = where.nodes > 1 or cluster.accelerators_per_node > NODE
        is_flex = implementations()[job.implemented_by(model)].dispatches and is_far
        return cls(
            where, job.dispatcher == "flex" if job.dispatcher else is_flex, model.expert_nodes, job.overlap_experts
        )

    def cost(self, cluster: Cluster, part: Segment) -> Cost:
        """Return the exposed cost of all tokens of a micro-batch, in one direction."""
        if self.is_flex:
            whole = collectives.dispatch(cluster, part.exchange_bytes, self.where, part.copies, self.most_nodes)
        else:
            whole = collectives.cost(cluster, "all_to_all", part.exchange_bytes, self.where)
        return Cost(whole.seconds * (1 - cluster.software.expert_overlap)) if self.is_hidden else whole

    def title(self, job: Job) -> str:
        """Describe expert placement and the dispatcher."""
        name = "flex (a copy for each node)" if self.is_flex else "all-to-all (a copy for each expert)"
        name += ", beside another micro-batch" if self.is_hidden else ""
        return f"each on {job.expert_tp} of {job.tp} tensor-parallel ranks; dispatcher: {name}"
