"""Combines the results of ranks that differ: a pipeline's stages."""

from typing import Any

WAITING = "waiting for other ranks"
"""Part of an iteration: waiting for a transfer whose other ranks are not ready. In a pipeline, its bubble."""


def together(results: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Return one `ScriptResult` in JSON: that of the rank with the least waiting. If several ran, it has an entry for
    each under `stages`: iteration seconds, share of it spent waiting for others, bytes at the peak."""
    stages = [
        {
            "rank": rank,
            "iteration_s": one["iteration_s"],
            "bubble_share": one["parts"].get(WAITING, 0.0) / one["iteration_s"],
            "allocated_bytes": one["allocated_bytes"],
            "reserved_bytes": one["reserved_bytes"],
            "weights_bytes": one["memory"].get("weights", 0),
        }
        for rank, one in results.items()
    ]
    busiest = min(stages, key=lambda stage: stage["bubble_share"])
    found = results[busiest["rank"]]
    return found if len(stages) == 1 else found | {"stages": stages}
