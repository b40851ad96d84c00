"""The records of one worker (docs/protocol.md, sections 4 to 6), on which its kernels work.

Kernels take a `State`, one tuple of all arrays. `state.scalars[0]` has the single-valued state of a worker, in records
by subject. Times are int64 nanoseconds of any monotonic clock.
"""

from typing import Any, NamedTuple

import numpy as np

from switchml.runtime.jit import kernel
from switchml.runtime.memory import record

OK, ERROR_MIXED, ERROR_OVERFLOW, ERROR_AHEAD, ERROR_STREAM, ERROR_BEHIND = range(6)
"""Reasons why a worker stopped: `failure.code`. ERROR_AHEAD, ERROR_STREAM: a peer's exponents, or its blocks,
contradict what was agreed. ERROR_BEHIND: the others continued, and the aggregator no longer has this rank's results."""

SPECULATE, EXACT, CLASSIFY, FURTHER = range(4)
"""Modes of a round (docs/protocol.md, section 4)."""

RUNNING, DONE = 1, 2
"""Task states; 0 is a free record."""

REDO, REDO_THEN_SEND = 1, 2
"""Action of a slot after its last round has been repeated at another aggregator: none, or sending its current round."""

TASKS = 1024
"""Maximum number of all-reduces in progress (a power of two); more wait in the agent."""


IDENTITY = record(
    "i8 rank workers slots payload large job_tag isn padded least_timeout trailer deadline", "3i8 headroom spread"
)
"""Parameters from joining. `payload`: data bytes of a packet, `large`: maximum of a large one (0: no large packets);
`padded`: the switch requires padding of sparse packets without data; `least_timeout`: lower bound of a retransmission
timeout, nonzero if the transport is lossless. `trailer`: bytes reserved after a packet (for tags). `deadline`: time
that a round of dense sums waits for ranks (0: no limit; section 13). `headroom`, `spread`: by lane type, those of
fixedpoint.py."""

QUEUES = 2
"""Number of queues if the aggregator supports collectives other than sums: SUMS and BYTES. Otherwise only the first
exists."""
SUMS, BYTES = range(QUEUES)
"""Queues: SUMS for data that ranks sum or otherwise combine, and barriers; BYTES for bytes that one rank sends to the
others (section 11)."""

WINDOW = record("i8 size first_task next_task in_flight limit limited credit counted counted_at moved")
"""Send window. `first_task` … `next_task`: tasks in progress (modulo TASKS). `in_flight`: rounds sent and not answered,
at most `limit` (at most `size`) per queue; `limited`: whether that, or the slots, delayed a round since `counted_at`,
when `counted` results had arrived. `credit`: number of rounds that may be considered lost before further results
arrive. `moved`: 1 if the packets of all rounds in flight are to be sent to another aggregator."""

QUEUE = record("i8 first_slot slots base next total late in_flight progress_at heard_at newest")
"""Consecutive tasks, in `slots` slots of their own from `first_slot` on. `base`: lowest chunk without a result, `next`:
lowest chunk never started, `total`: chunks of all its tasks so far. `late`: number of slots that could start a chunk
below `next`, passed over while the slot was in use. `in_flight`: number of its rounds in flight. `progress_at`: when a
chunk was last finished. `heard_at`: when results last arrived without retransmissions of this rank. `newest`: latest
sending time of a packet that has its result."""

RTT = record("i8 srtt rttvar rto backoff backed_off_at samples least base")
"""Round-trip times (retransmission.py). `backoff`: factor of the RTO in sixteenths, `backed_off_at`: when it last grew.
`least`: minimum of the current SAMPLES, `base`: minimum of all."""

SILENCE = record("i8 longest suspicion suspected probed_at unprompted answered_at flight_at")
"""Times without a result (retransmission.py). `longest`: silence that the RTO must exceed. `suspicion`: NONE, PROBED or
WAITED, since `answered_at`, the last expected result. `probed_at`: time of the last retransmission by timeout,
`suspected`: the silence that it ended, which counts if `unprompted` rounds confirm it. `flight_at`: when rounds were
last sent with none in flight."""

TIMERS = record("i8 earliest reordering")
"""`earliest`: when `timeouts` has something to do; any result may bring that forward. `reordering`: recent time by
which results were overtaken."""

COUNTERS = record(
    "i8 sent received retransmitted refused waits spurious repeats streamed completed refused_auth",
    "i8 expired partial late",
)
"""Packets sent (including retransmissions) and results received; wait packets; needless retransmissions; repeated
rounds; rounds of sparse streams after their first; completed tasks; packets without a valid authentication tag;
expiries sent, results without some ranks, and chunks without this rank's contribution (section 13)."""

FAILURE = record("i8 code chunk")
"""`code`: OK or an ERROR_…; `chunk`: the chunk at which it occurred."""

SCALARS = np.dtype(
    {
        "names": ["identity", "window", "rtt", "silence", "timers", "counters", "failure"],
        "formats": [IDENTITY, WINDOW, RTT, SILENCE, TIMERS, COUNTERS, FAILURE],
    },
    align=True,
)

SLOT = record(
    "i8 chunk task round start resent probed sent_at deadline expires",
    "i4 retries",
    "i2 mode used need agreed next_need",
    "u1 busy scanned waited classed done unbuilt queue redo late",
    "i2 columns addressed words kept_words codes kept_codes",
    "i4 length kept_length capacity kept_capacity top open",
)
"""One slot. `round`: number of its rounds that have their results, which is the number of the current one. `start`: the
sequence number that its round 0 would have at this aggregator. `words`, `codes`, `length` and `capacity`: of its
packet, which has `codes` bytes of blocks' codes, and at most `capacity` bytes of data; `kept_words` and so on: of the
previous round's packet. `redo`: REDO or REDO_THEN_SEND while that is sent again (handover.py). `resent`: the last round
retransmitted, `probed`: the last one retransmitted by timeout (-1: none). `agreed`: `ahead` of its last result;
`next_need`, valid if `scanned`: exponent needed by the chunk after this one. `classed`: a CLASSIFY round has been
answered. `columns`: those of a sparse stream, else 0; `addressed`: 1 if the packets are addressed (collectives.py),
else 0; `unbuilt`: NEXT_ROUND or FIRST_ROUND of sparse.py while the packet for it is still to be written. `expires`:
when an expiry is due, `late`: 1 if the sums exclude this rank's values (section 13). For exact sums (exact.py), `top`:
exponent at which the digits of the first round begin, `open`: number of sums listed for further rounds; for integers
(digits.py), the number of digits, and the index of the current one."""

TASK = record(
    "u8 source target",
    "i8 numel fmt divisor per_chunk first chunks done item half",
    "u8 history",
    "i8 history_length misfits state columns",
    "f8 threshold",
    "u8 non_zero",
    "i8 scanned group",
    "i8 queue addressed reach root op shares share_chunks run source_step target_step mark",
    "u8 memory",
    "i8 least late past_caches capacity codes per_block",
)
"""One all-reduce. `source`, `target`: addresses of its elements (may be equal); `item`: bytes of an element; `half`:
kind of half precision (halves.py). `per_chunk`: elements of a chunk; `first`, `chunks`, `done`: first chunk, number of
chunks, and number of finished ones. `history`: address of int8 exponent codes by chunk, needed last time. `columns`:
blocks in a packet if the tensor is sparse, else 0; its chunks are then streams of positions, and `per_chunk` the
elements of a position. `non_zero`: address of uint8[blocks], flags of nonzero blocks, known for the first `scanned`
entries of all streams. `group`: G, if each G chunks are followed by one for their undecided sums (exact sums), else 0.
`queue`: SUMS or BYTES. `addressed`: 1 for a collective of collectives.py, whose fields follow: its `shares` have
`share_chunks` chunks each and alternate in runs of `run`. `memory`: address for the elements that came too late for
their sums, 0 if these wait for all ranks (section 13); `least`: the smallest number of ranks in a chunk so far, `late`:
number of chunks without this rank. `past_caches`: 1 if its target is too large for caches, and is written past them.
`capacity`: maximum data bytes of its packets; `codes`: bytes of the codes of their blocks (0: a packet is one block,
whose codes are in its header), each of `per_block` elements; `history` is by block."""


NEED, USED, AGREED, NEXT = range(4)
"""Rows of `codes`."""


class State(NamedTuple):
    """The arrays of one worker: SCALARS[1], QUEUE[1 or 2], SLOT[S], TASK[TASKS], uint8[2S, k], uint8[2S, k], int64[S,
    5, 8] (sparse.py), uint32[S, payload or large / 2], SUM[2S, payload / 4] (exact.py), int64[2S], int64[S, 4,
    MAX_BLOCKS], uint32[payload / 4], uint8[32], float32[payload or large / 4]. `packets`: the packets of even rounds,
    then those of odd ones, so that a round's packet is kept until the next one has its result. `wide` has room for
    sparse packets, and may be `packets`. `sums`, by chunk modulo 2S: its undecided sums; for a group's last chunk,
    those of the other chunks, of which `reported` have finished. `codes`: exponent codes of the blocks of a slot's
    packet, NEED, USED, AGREED and NEXT, for which a slot has fields otherwise. `marks` is scratch, and `floats` for a
    chunk of half precision."""

    scalars: np.ndarray
    queues: np.ndarray
    slots: np.ndarray
    tasks: np.ndarray
    packets: np.ndarray
    wide: np.ndarray
    streams: np.ndarray
    classes: np.ndarray
    sums: np.ndarray
    reported: np.ndarray
    codes: np.ndarray
    marks: np.ndarray
    missing: np.ndarray
    floats: np.ndarray


@kernel(inline=True)
def task_at(w: State, number: int) -> Any:
    """The record of a task."""
    return w.tasks[number & (TASKS - 1)]


@kernel(inline=True)
def slot_of(queue: Any, chunk: int) -> Any:
    """The slot of a chunk of a queue."""
    return queue.first_slot + (chunk & (queue.slots - 1))


@kernel(inline=True)
def is_free(slot: Any) -> Any:
    """Whether a slot may start its next chunk."""
    return slot.done != 0 and slot.redo == 0


@kernel(inline=True)
def row_of(w: State, chunk: int) -> Any:
    """Row of a chunk in `sums` and `reported`."""
    return chunk & (2 * w.scalars[0].identity.slots - 1)


@kernel(inline=True)
def seq_of(w: State, index: int) -> Any:
    """Sequence number of a slot's current round, not yet modulo 2^32."""
    return w.slots[index].start + w.slots[index].round * w.scalars[0].identity.slots


@kernel(inline=True)
def next_round(slot: Any) -> None:
    """Advance to the next round after the current one has its result; its packet is kept."""
    slot.kept_words, slot.kept_codes = slot.words, slot.codes
    slot.kept_length, slot.kept_capacity = slot.length, slot.capacity
    slot.round += 1
