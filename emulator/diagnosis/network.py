"""Iterations that wait for the network: what another all-reduce or a codec would gain."""

from __future__ import annotations

import numpy as np

from emulator.diagnosis.compression import ratios
from emulator.diagnosis.situation import Finding, Situation
from emulator.replay.parts import COMMUNICATION
from emulator.report.tables import time_text
from emulator.whatif import changes
from emulator.whatif.transfers import all_reduces
from emulator.workload.graph import Kind
from switchml.errors import ConfigError, GraphError

LEAST_EXPOSED = 0.03
"""Share of the iteration from which on communication that nothing hides is looked into."""


def find(seen: Situation) -> list[Finding]:
    """One finding: all that helps, what gains most first."""
    exposed_s = float(np.average(seen.causes.parts.by_rank[:, COMMUNICATION], weights=seen.causes.parts.weight))
    if exposed_s < LEAST_EXPOSED * seen.iteration_s or not len(all_reduces(seen.joined)):
        return []
    try:
        joined = changes.with_network(seen.joined)
    except (ConfigError, GraphError):
        return []  # no all-reduce that says what the network carries
    network = joined.network
    candidates: list[tuple[float, str, str]] = []
    if network.algorithm != "switchml":
        faster = changes.allreduce(joined, "switchml")
        candidates.append(
            (
                seen.lasts_s(faster),
                "all-reduces summed in the network (switchml)",
                'init_process_group("switchml"), or switchml train: gradients are summed on their way',
            )
        )
    if not np.any(seen.kind == Kind.CODEC) and not np.any(ratios(seen) > 1):
        for name, cost in seen.codecs().items():
            setting = f"codec {name}: switchml train --codec {name}, or its communication hook for DDP (docs/codecs.md)"
            candidates.append((seen.lasts_s(changes.codec(joined, cost, name)), f"codec {name}", setting))
    candidates = sorted(row for row in candidates if seen.is_worth_it(seen.iteration_s - row[0]))
    if not candidates:
        return []
    lasts_s, replayed, _ = candidates[0]
    evidence = [
        f"nothing hides {time_text(exposed_s)} of communication on an average rank; "
        f"{time_text(seen.causes.parts.hidden_communication_s())} is hidden",
        f"all-reduces ({network.algorithm}) take {time_text(network.latency_s)} a step, as fitted to the trace; "
        f"{network.link_text}",
    ]
    evidence += [f"replayed with {what}: {time_text(s)}" for s, what, _ in candidates]
    reduces = np.isin(seen.graph.ops.transfer, all_reduces(seen.joined))
    return seen.report(
        "network bound",
        f"{time_text(exposed_s)} of each iteration is communication that nothing hides",
        gain_s=seen.iteration_s - lasts_s,
        evidence=evidence,
        settings=[setting for _, _, setting in candidates],
        replayed=replayed,
        sightings=seen.sightings(np.flatnonzero(reduces)),
    )
