"""What became of the ranks that ran, where they differ: a pipeline's stages."""

from typing import Any

WAITING = "waiting for other ranks"
"""A part of an iteration: a transfer that other ranks are not ready for. Of a pipeline, its bubble."""


def together(results: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """One `ScriptResult` in JSON: of the rank that waits least for others. Where several ran, with an entry for each
    under `stages`: seconds of its iteration, share of it that it waits for others, bytes at its peak."""
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
