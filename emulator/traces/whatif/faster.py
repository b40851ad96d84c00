"""Sensitivity analysis: the same job replayed with one resource faster. A critical path only shows the present state; a
replay also shows what is hidden behind other work and what would become critical instead.
"""

import dataclasses

import numpy as np

from emulator.jobs.replay.engine import Replayed, replay
from emulator.jobs.replay.parts import PART_OF_KIND, PARTS
from emulator.jobs.workload.costs import Costs
from emulator.jobs.workload.graph import Graph, Kind
from switchml.errors import ConfigError

RESOURCES = ("compute", "compression", "exposed communication", "offload", "checkpoint", "host", "loading")
"""Resources that can be made faster; named like the parts of an iteration, but including hidden time."""


def faster(graph: Graph, costs: Costs, resource: str, factor: float) -> Costs:
    """Return `costs` with everything that belongs to `resource` taking 1/`factor` of its time, including the latency of
    transfers."""
    if resource not in RESOURCES:
        raise ConfigError(f"{resource!r} can't be made faster; expected one of {', '.join(RESOURCES)}")
    if not factor > 0:
        raise ConfigError(f"{factor} times as fast: expected a factor above 0")
    part = np.array([PART_OF_KIND[kind] for kind in Kind], np.int64)[graph.op_types.kind]
    is_it = part == PARTS.index(resource)
    meets = is_it[graph.transfers.op_type] if len(graph.transfers) else np.zeros(0, bool)
    slower = np.where(meets, 1.0 / factor, 1.0)
    return dataclasses.replace(
        costs,
        op_type_s=np.where(is_it, costs.op_type_s / factor, costs.op_type_s),
        transfer_fixed_s=costs.transfer_fixed_s * slower,
        transfer_bytes=costs.transfer_bytes * slower,
    )


def what_if(played: Replayed, factor: float = 2.0) -> dict[str, float]:
    """Return resource → makespan in seconds if it were `factor` times as fast, shortest first. One replay per
    resource."""
    graph = played.graph
    present = {PARTS[PART_OF_KIND[Kind(kind)]] for kind in np.unique(graph.op_types.kind[graph.ops.op_type])}
    makespans = {
        resource: replay(graph, faster(graph, played.costs, resource, factor), played.conditions).makespan_s
        for resource in RESOURCES
        if resource in present
    }
    return dict(sorted(makespans.items(), key=lambda item: item[1]))
