"""What-if analysis: a traced iteration with one change. Every function takes a `Joined` and returns another; they can
be combined in any order. Durations that a change does not affect remain as traced.

    faster = changes.bandwidth(joined, factor=2)
    replay(faster.graph, faster.costs).makespan_s
"""

from emulator.traces.whatif.accelerator import accelerator, accelerator_of, half_precision
from emulator.traces.whatif.batch import accumulate, batch
from emulator.traces.whatif.buckets import buckets
from emulator.traces.whatif.codec import codec
from emulator.traces.whatif.fusion import fuse
from emulator.traces.whatif.links import allreduce, bandwidth, cluster, latency, ranks
from emulator.traces.whatif.network import with_network
from emulator.traces.whatif.priority import urgent_first
from emulator.traces.whatif.recompute import recompute
from emulator.traces.whatif.stragglers import slow, without_straggler

__all__ = [
    "accelerator", "accelerator_of", "accumulate", "allreduce", "bandwidth", "batch", "buckets", "cluster", "codec",
    "fuse", "half_precision", "latency", "ranks", "recompute", "slow", "urgent_first", "with_network",
    "without_straggler",
]  # fmt: skip
