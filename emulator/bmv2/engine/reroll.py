"""Re-rolling: runs of primitives that do the same to neighbouring fields and registers become instructions on lanes."""

from __future__ import annotations


def lanes_at(actions, calls, at: int) -> int | None:
    """Lower the run that begins at primitive `at`; how many primitives it takes up, or None if there is no run."""
    return None
