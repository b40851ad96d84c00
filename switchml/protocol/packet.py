"""The wire format: what SwitchML packets consist of, as constants.

Two protocols share the first ten bytes (docs/protocol.md): v1 is p4lang/p4app-switchML's SwitchML-UDP (headers.p4,
types.p4 and dpdk_backend.h there), v2 is this project's. What packets do to a slot is in `pool.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from switchml.errors import ConfigError

UDP_PORT = 0xBEE0
"""UDP port of aggregators (p4app-switchML: udp dst port 0xBEE0 with mask 0xFFF0)."""
UDP_PORT_MASK = 0xFFF0
UDP_PORTS = range(UDP_PORT, UDP_PORT + 16)

HEADER_BYTES = 10
"""SwitchML header (8) and the two exponents (2)."""
BITMAP_BYTES = 32
"""Payload of a wait packet: one bit for each of up to 256 ranks."""

SIZE_CODES = {1: 256, 3: 1024}
"""Size code to payload bytes. Codes 0 (128 bytes) and 2 (512) exist in v1's enum, and its switch drops them."""
SIZE_CODE_OF = {payload: code for code, payload in SIZE_CODES.items()}
MAX_PACKET_BYTES = HEADER_BYTES + 1024

LARGE = 2
"""Size code of a large packet of v2: up to MAX_BLOCKS times the job's payload of data, so at most LARGE_BYTES, a
multiple of LARGE_STEP (docs/protocol.md, section 7)."""
MAX_BLOCKS = 8
LARGE_BYTES, LARGE_STEP = MAX_BLOCKS * max(SIZE_CODE_OF), 8
BLOCKS = 0
"""Size code of a large packet of floats. Each block of its data, which has the size of an ordinary packet's, has its
own exponent, and the data are preceded by the codes of all blocks that it may have: `ahead`, `need` and `used`, a byte
each."""
CODES_BYTES = 3 * MAX_BLOCKS
IN_BLOCKS = 0x80
"""Flag in the op of an addressed packet of this kind; its size code is that of large packets."""

SPARSE = 4
"""Bit of the size code: a packet of a sparse stream (docs/protocol.md, section 8). Alone: without data."""
PADDED = 6
"""Size code of a sparse packet with PADDING_BYTES in place of 1024 bytes of data; where packets may be large none is
padded, and this is the code of a large addressed one."""
PADDING_BYTES = 512
WORD_BYTES = 4
COLUMNS = (1, 2, 4, 8)
"""Possible numbers of blocks in a sparse packet, each with a word that announces its sender's next entry."""
MAX_COLUMNS = 8
NO_ENTRY = 0xFFFFFF
"""Entry of a word: no further block in this column."""
NO_WORD = 0xFFFFFFFF
MAX_SPARSE_BYTES = MAX_PACKET_BYTES + WORD_BYTES * MAX_COLUMNS

ADDRESSED = 0
"""In place of a sparse packet's columns: an addressed packet, with one word (docs/protocol.md, section 11)."""
REACH_ALL, REACH_ROOT, REACH_OTHERS = range(3)
"""`reach`: the ranks that get the data of a round's result: all, the root only, or all but the root."""
OP_SUM, OP_MAX32, OP_MAX64, OP_OR, OP_XOR = range(5)
"""`op`: the operation on the ranks' lanes. Maxima are of unsigned integers."""
OP_SUM_FLOAT16, OP_SUM_BFLOAT16, OP_MEAN_FLOAT16, OP_MEAN_BFLOAT16 = range(5, 9)
"""`op` for unconverted, little-endian half precision: summed in float32 and rounded once."""
ADDRESSED_BYTES = HEADER_BYTES + WORD_BYTES
"""Size of an addressed packet without data; a result is truncated to this for a rank that gets none."""

MAX_BEFORE_DATA = ADDRESSED_BYTES + CODES_BYTES
"""Maximum number of bytes before the data of a large packet."""

V1_TYPE = 1
V1_SLOT_MASK = 0x3FFF
V1_SLOTS = 8192
"""Slots of the reference switch: register_size 16384 = 8192 slots x 2 sets (configuration.p4)."""
V1_MAX_WORKERS = 32

CONTRIBUTION = 0x8
RESULT = 0xC
WAIT = 0xF
WIRE_INT32, WIRE_INT16, WIRE_INT8 = 0, 1, 2
"""Lane type; added to CONTRIBUTION or RESULT it gives the type nibble."""
EXPIRY = 0xB
"""Packet type of a rank whose deadline has passed: the round is to end with the ranks that have contributed
(docs/protocol.md, section 13)."""
R_FLAG = 0x08
"""Bit of byte 0: a contribution is a retransmission; a result answers one."""
FLAG_OVERFLOW = 1
FLAG_MIXED = 2
FLAG_PARTIAL = 8
"""The round ended without some ranks; `ahead` is the number of ranks in it."""
FLAG_LATE = 16
"""Flag in the answer to a rank that is not in the round."""
V2_MAX_WORKERS = 256
V2_MAX_SLOTS = 65536

CODE_ZERO = -128
"""Exponent code of a block of zeros; the identity of max."""
CODE_UNKNOWN = 127
"""`ahead`: not known yet. `need`: a value is not finite. `used`: a CLASSIFY round."""
CODE_INTEGER = 125
"""`used` of int32 tensors; no canonical code of floats is the same."""
CODE_INTEGER64 = 123
"""`used` of int64 tensors; no canonical code of floats is the same."""
CODE_FURTHER, CODE_FURTHER64 = -126, -122
"""`used` of the further rounds of exact sums, of float32 and float64; different from all canonical codes."""
CODE_BIAS = 2
"""Exponent code = exponent - CODE_BIAS."""

WIRE_DTYPES: dict[int, np.dtype[Any]] = {
    WIRE_INT32: np.dtype(">i4"),
    WIRE_INT16: np.dtype(">i2"),
    WIRE_INT8: np.dtype("i1"),
}


def for_rank(result: bytes, rank: int) -> bytes:
    """A result as sent to a rank: an addressed one is truncated for ranks that get no data."""
    is_addressed = result[0] & SPARSE and result[1] == ADDRESSED and result[0] >> 4 != WAIT
    if not is_addressed or reaches(result[HEADER_BYTES], result[HEADER_BYTES + 1], rank):
        return result
    in_blocks = result[HEADER_BYTES + 2] & IN_BLOCKS
    return result[: MAX_BEFORE_DATA if in_blocks else ADDRESSED_BYTES]


def reaches(reach: int, root: int, rank: int) -> bool:
    """Whether a rank gets the data of a result."""
    return reach == REACH_ALL or (reach == REACH_ROOT) == (root == rank)


def check_slots(slots: int) -> None:
    """Raises ConfigError unless `slots` is valid as the S of a v2 job."""
    if not 1 <= slots <= V2_MAX_SLOTS or slots & (slots - 1):
        raise ConfigError(f"{slots} slots: expected a power of two from 1 to {V2_MAX_SLOTS}")
