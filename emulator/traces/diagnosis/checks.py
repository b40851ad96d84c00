"""The list of all checks, and the diagnosis that combines them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from emulator.traces.diagnosis import (
    agreement,
    compression,
    device,
    host,
    loading,
    messages,
    network,
    overlap,
    stragglers,
    wire,
)
from emulator.traces.diagnosis.context import MIN_SHARE, Codecs, DiagnosisContext, Finding
from emulator.traces.joined import Joined
from emulator.traces.whatif.faster import what_if

CHECKS: list[Callable[[DiagnosisContext], list[Finding]]] = [
    module.find for module in (stragglers, overlap, messages, network, device, host, loading, compression, wire)
]


@dataclass(frozen=True)
class Diagnosis:
    """Result of a job's diagnosis."""

    context: DiagnosisContext
    findings: list[Finding]
    """Findings, by falling gain; empty if there is nothing to change."""

    def __repr__(self) -> str:
        return f"<Diagnosis of {self.context.joined!r}: {len(self.findings)} findings>"

    @property
    def replay_error(self) -> float:
        """Replayed iteration time relative to the traced one, minus 1."""
        traced_s = self.context.joined.iteration_s
        return self.context.iteration_s / traced_s - 1 if traced_s else 0.0

    @property
    def assumptions(self) -> list[str]:
        """Assumptions to report: a warning if the replay is far off the trace, then those of the join."""
        return [*agreement.replay_warning(self.context), *self.context.joined.assumptions]

    def helps(self) -> dict[str, float]:
        """Return resource → seconds of the iteration if it were twice as fast, for the resources that the job uses."""
        return what_if(self.context.played)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        context = self.context
        graph, path = context.graph, context.path
        return {
            "iteration_s": context.joined.traced_s,
            "diagnosed_s": context.joined.iteration_s,
            "replayed_s": context.iteration_s,
            "replay_error": self.replay_error,
            "ranks": [
                {
                    "rank": trace.rank,
                    "host": trace.host,
                    "causes_s": charged,
                    "waiting_for_s": {
                        context.joined.traces[peer].rank: float(s) for peer, s in enumerate(waited_s) if s > 0
                    },
                }
                for trace, charged, waited_s in zip(
                    context.joined.traces, context.causes.by_rank(), context.causes.waiting_s, strict=True
                )
            ],
            "critical_path": {
                "by_part_s": path.by_part,
                "by_op_s": path.by_op_type,
                "by_stream_s": context.path_by_stream,
                "segments": [
                    {
                        "op": context.op_name(op),
                        "rank": int(context.rank[op]),
                        "stream": graph.streams.name[graph.ops.stream[op]],
                        "from_s": float(from_s),
                        "until_s": float(until_s),
                    }
                    for op, from_s, until_s in zip(path.op, path.from_s, path.until_s, strict=True)
                    if until_s > from_s
                ],
            },
            "twice_as_fast_s": self.helps(),
            "findings": [finding.to_json() for finding in self.findings],
            "assumptions": self.assumptions,
        }


def diagnose(joined: Joined, least_share: float = MIN_SHARE, codecs: Callable[[], Codecs] = dict) -> Diagnosis:
    """Replay a trace and run every check; findings below `least_share` are omitted. `codecs`: as in
    `DiagnosisContext`."""
    context = DiagnosisContext.of(joined, least_share=least_share, codecs=codecs)
    findings = sorted(
        (finding for find in CHECKS for finding in find(context)), key=lambda finding: finding.gain_s, reverse=True
    )
    agreement.check(context, findings)
    return Diagnosis(context, findings)
