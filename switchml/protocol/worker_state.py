"""The records of one worker (docs/protocol.md, sections 4 to 6): what its kernels read and write.

Kernels take a `State`, one tuple of all arrays. `state.scalars[0]` holds what a worker has one of, in records by
subject. Times are int64 nanoseconds of any monotonic clock.
"""

from typing import Any, NamedTuple

import numpy as np

from switchml.runtime.jit import kernel
from switchml.runtime.memory import record

OK, ERROR_MIXED, ERROR_OVERFLOW, ERROR_AHEAD, ERROR_STREAM, ERROR_BEHIND = range(6)
"""Why a worker stopped: `failure.code`. ERROR_AHEAD, ERROR_STREAM: a peer's exponents, or its blocks, contradict what
was agreed. ERROR_BEHIND: the others went on, and the aggregator no longer has this rank's results."""

SPECULATE, EXACT, CLASSIFY, FURTHER = range(4)
"""Modes of a round (docs/protocol.md, section 4)."""

RUNNING, DONE = 1, 2
"""Task states; 0 is a free record."""

REDO, REDO_THEN_SEND = 1, 2
"""What a slot does after its last round has been repeated at another aggregator: nothing, or its present round."""

TASKS = 1024
"""All-reduces that may be under way at once (a power of two); more wait in the agent."""


IDENTITY = record(
    "i8 rank workers slots payload large job_tag isn padded least_timeout room deadline", "3i8 headroom spread"
)
"""What joining decided. `payload`: bytes of data in a packet, `large`: at most in a large one (0: there are none);
`padded`: the switch wants sparse packets without data padded;
`least_timeout`: lower bound of a retransmission timeout, not 0 if nothing can be lost. `room`: bytes behind a packet
that something else needs (tags). `deadline`: how long a round of dense sums waits for ranks (0: without end; section
13). `headroom`, `spread`: by lane
type, those of fixedpoint.py."""

QUEUES = 2
"""Of a worker whose aggregator takes other collectives than sums: SUMS and BYTES. Others have the first alone."""
SUMS, BYTES = range(QUEUES)
"""Queues: of what ranks add up or otherwise combine, and barriers; and of bytes that one rank sends to the others
(section 11)."""

WINDOW = record("i8 size first_task next_task in_flight limit limited credit counted counted_at moved")
"""What may be sent. `first_task` … `next_task`: tasks under way (modulo TASKS). `in_flight`: rounds sent and not
answered, at most `limit` (at most `size`) of a queue; `limited`: that, or the slots, held something back since
`counted_at`, when `counted` results had come. `credit`: how many rounds may be taken for lost before more results are
here. `moved`: 1 if another aggregator is to get the packets of all rounds under way."""

QUEUE = record("i8 first_slot slots base next total late in_flight progress_at heard_at newest")
"""Tasks that follow each other, in `slots` slots of their own from `first_slot` on. `base`: lowest chunk without a
result, `next`: from here on none has been started, `total`: chunks of all its tasks so far. `late`: slots that could
start a chunk below `next`, passed over while the slot was in use. `in_flight`: of its rounds. `progress_at`:
when a chunk was last finished. `heard_at`: when it last showed that results come without retransmissions of ours.
`newest`: latest sending time of a packet that got its result."""

RTT = record("i8 srtt rttvar rto backoff backed_off_at samples least base")
"""Round-trip times (retransmission.py). `backoff`: factor of the RTO in sixteenths, `backed_off_at`: when it last grew.
`least`: of the current SAMPLES, `base`: of all."""

SILENCE = record("i8 longest suspicion suspected probed_at unprompted answered_at flight_at")
"""Times without a result (retransmission.py). `longest`: what the RTO must outlast. `suspicion`: NONE, PROBED or
WAITED, since `answered_at`, the last expected result. `probed_at`: when the clock last made us resend, `suspected`: the
silence that this ended, which counts if `unprompted` rounds say so. `flight_at`: when rounds were last sent with none
in flight."""

TIMERS = record("i8 earliest reordering")
"""`earliest`: when `timeouts` has something to do; any result may bring that forward. `reordering`: by how much results
were overtaken lately."""

COUNTERS = record(
    "i8 sent received retransmitted refused waits spurious repeats streamed completed refused_auth",
    "i8 expired partial late",
)
"""Packets sent (retransmissions included) and results received; wait packets; needless retransmissions; repeated
rounds; rounds of sparse streams after their first; tasks done; packets without the right tag of authentication;
expiries sent, results without some ranks, and chunks that this rank is not in (section 13)."""

FAILURE = record("i8 code chunk")
"""`code`: OK or an ERROR_…; `chunk`: where."""

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
    "i4 length kept_length room kept_room top open",
)
"""One slot. `round`: how many of its rounds have their results, which is the number of the present one. `start`: the
sequence number that its round 0 would have at this aggregator. `words`, `codes`, `length` and `room`: of its packet,
which has `codes` bytes of blocks' codes, and `room` bytes of data at most; `kept_words` and so on: of the packet of the
round before. `redo`: REDO or REDO_THEN_SEND while that is sent once more (handover.py). `resent`: the last round
retransmitted, `probed`: because of the clock (-1: none). `agreed`: `ahead` of its last result; `next_need`, valid if
`scanned`: what the chunk after this one needs. `classed`: a CLASSIFY round has been answered. `columns`: of a sparse
stream, else 0; `addressed`: 1 if the packets are (collectives.py), else 0; `unbuilt`: NEXT_ROUND or FIRST_ROUND of
sparse.py while the packet for it is still to be written. `expires`: when an expiry is due, `late`: 1 if the sums are
without this rank's values (section 13). Of exact sums (exact.py), `top`: where the digits of the first round begin,
`open`: how many sums are listed for further rounds; of integers (digits.py), how many digits there are, and the number
of the one under way."""

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
    "i8 least late past_caches room codes per_block",
)
"""One all-reduce. `source`, `target`: addresses of its elements (may be equal); `item`: their bytes; `half`: their kind
of half precision (halves.py). `per_chunk`: elements of a chunk; `first`, `chunks`, `done`: its chunks. `history`:
address of int8 exponent codes by chunk, what each needed last time. `columns`: blocks in a packet if the tensor is
sparse, else 0; its chunks are then streams of positions, and `per_chunk` the elements of a position. `non_zero`:
address of uint8[blocks], which of them are not zero, known of the first `scanned` entries of all streams. `group`: G,
if behind each G chunks comes one for what they leave open (exact sums), else 0. `queue`: SUMS or BYTES. `addressed`: 1
for a collective of collectives.py, whose fields follow: its `shares` have `share_chunks` chunks each and take turns of
`run`. `memory`: address where the elements go that came too late for their sums, 0 if these wait for all ranks (section
13); `least`: the fewest ranks in a chunk so far, `late`: how many chunks are without this one. `past_caches`: 1 if its
target is too large for caches, and is written past them. `room`: bytes of data that its packets have at most; `codes`:
bytes of the codes of their blocks (0: a packet is one block, whose codes are in its header), each of `per_block`
elements; `history` is by block."""


NEED, USED, AGREED, NEXT = range(4)
"""Rows of `codes`."""


class State(NamedTuple):
    """The arrays of one worker: SCALARS[1], QUEUE[1 or 2], SLOT[S], TASK[TASKS], uint8[2S, k], uint8[2S, k], int64[S,
    5, 8] (sparse.py), uint32[S, payload or large / 2], SUM[2S, payload / 4] (exact.py), int64[2S], int64[S, 4,
    MOST_BLOCKS], uint32[payload / 4], uint8[32], float32[payload or large / 4]. `packets`: the packets of even rounds,
    then those of odd ones, so that a round's stays until the next one has its result. `wide` has room for sparse
    packets, and may be `packets`. `sums`, by chunk modulo 2S: what it left open; of a group's last chunk, what the
    others did, `reported` of them so far. `codes`: of the blocks of a slot's packet, NEED, USED, AGREED and NEXT, as
    the slot has them of others. `marks` is scratch, and `floats` for a chunk of half precision."""

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
    """The slot where a chunk of a queue lives."""
    return queue.first_slot + (chunk & (queue.slots - 1))


@kernel(inline=True)
def is_free(slot: Any) -> Any:
    """Whether a slot may take its next chunk."""
    return slot.done != 0 and slot.redo == 0


@kernel(inline=True)
def row_of(w: State, chunk: int) -> Any:
    """Where `sums` and `reported` have a chunk."""
    return chunk & (2 * w.scalars[0].identity.slots - 1)


@kernel(inline=True)
def seq_of(w: State, index: int) -> Any:
    """Sequence number of a slot's present round, not yet modulo 2^32."""
    return w.slots[index].start + w.slots[index].round * w.scalars[0].identity.slots


@kernel(inline=True)
def next_round(slot: Any) -> None:
    """The present round has its result; its packet is kept."""
    slot.kept_words, slot.kept_codes = slot.words, slot.codes
    slot.kept_length, slot.kept_room = slot.length, slot.room
    slot.round += 1
