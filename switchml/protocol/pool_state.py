"""The records of one job's slots at an aggregator (docs/protocol.md, sections 1 and 3), on which the kernels work.

Kernels take a `State` or `StateV1`, one tuple of all arrays. A result packet is stored, ready to send, at the end of
the row in which its sums were computed. Rows have no gaps, and one version of all slots precedes the other, so that the
results of consecutive slots are adjacent and can be sent as one piece.
"""

from typing import NamedTuple

import numpy as np

from switchml.protocol import packet as wire_format
from switchml.runtime.jit import kernel
from switchml.runtime.memory import record

CONSUME, MULTICAST, UNICAST, WAITING, DROP = range(5)
ACTIONS = ("consume", "multicast", "unicast", "wait", "drop")
"""Actions of the aggregator after a packet; the reply of UNICAST and WAITING is in the caller's reply buffer, that of
MULTICAST in the row."""

JOB = record("i8 workers slots payload large wire job_tag isn", "4u8 absent")
"""Properties of a job. `payload`, `large`: data bytes of its packets, and maximum data bytes of large ones (0: no large
packets). `absent`: bitmap of the ranks that rounds do not wait for (docs/protocol.md, section 13)."""

SLOT = record("i8 seq", "i4 count data", "i2 need ahead used flags form")
"""One version of one v2 slot; version v of slot i is row v*S + i. `seq`: its round's number, which does not wrap at 32
bits. `form`: wire + 16 * words (0: dense) + 256 if it is addressed + 512 * op + 8192 if it is large. `data`: bytes of
lanes in a packet with data; 0 if no rank has sent any."""

SLOT_V1 = record("u4 bitmap", "i4 count", "i2 e0 e1")
"""One set of one v1 slot, numbered like the versions of v2."""


class State(NamedTuple):
    """The arrays of one v2 job, with packets of up to k bytes of data: JOB[1], SLOT[2S], uint64[2S, 4] of the ranks
    seen, uint8[2S, 10 + k or more], uint8[2S, 42 + k or more] for sparse rounds (may be `rows`), int64[n,
    len(COUNTERS)].

    `parts` uint8[2S n + 2, k], or uint8[0, k] if unconverted half precision is not supported: each rank's contribution
    to a row, and a buffer for one packet's sums in float32."""

    job: np.ndarray
    slots: np.ndarray
    seen: np.ndarray
    rows: np.ndarray
    wide: np.ndarray
    counters: np.ndarray
    parts: np.ndarray


class StateV1(NamedTuple):
    """The arrays of one v1 session: JOB[1], SLOT_V1[16384], uint8[16384, 1034], int64[n, len(COUNTERS)]."""

    job: np.ndarray
    slots: np.ndarray
    rows: np.ndarray
    counters: np.ndarray


MAX_PARTS_BYTES = 256 << 20
"""Maximum memory of `parts`; pages are allocated only as rounds of half precision need them."""


def parts_of(workers: int, slots: int, data: int) -> int:
    """Number of rows of `State.parts`, for packets of up to `data` bytes; 0 if that would be too much memory: the job
    then sums half precision in lanes."""
    rows = 2 * slots * workers + 2
    return rows if rows * data <= MAX_PARTS_BYTES else 0


@kernel(inline=True)
def result_at(rows: np.ndarray, row: int, data: int) -> np.uint64:
    """Address of the result packet at the end of a row, if it has `data` bytes after its header."""
    return rows.ctypes.data + np.uint64((row + 1) * rows.shape[1] - wire_format.HEADER_BYTES - data)
