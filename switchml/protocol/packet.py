"""The wire format: SwitchML packets as constants, headers, pack and unpack.

Two protocols share the first ten bytes (docs/protocol.md): v1 is p4lang/p4app-switchML's SwitchML-UDP (headers.p4,
types.p4 and dpdk_backend.h there), v2 is this project's. This module handles bytes only: their effect on a slot is
implemented in `pool.py`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from switchml.errors import ConfigError, PacketError

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

_V1_HEADER = struct.Struct(">BBIHbb")
"""Message type and size code, job number, tsi, pool index, e0, e1."""
_V2_HEADER = struct.Struct(">BbIHbb")
"""Message type, R and size code in one byte; ahead, seq, tag, need, used."""
assert _V1_HEADER.size == _V2_HEADER.size == HEADER_BYTES

WIRE_DTYPES: dict[int, np.dtype[Any]] = {
    WIRE_INT32: np.dtype(">i4"),
    WIRE_INT16: np.dtype(">i2"),
    WIRE_INT8: np.dtype("i1"),
}


def _payload(values: npt.ArrayLike, wire: int) -> tuple[int, bytes]:
    """(size code, bytes) of `values`; raises PacketError if they don't fill a packet of 256 or 1024 bytes."""
    data = np.ascontiguousarray(values, dtype=WIRE_DTYPES[wire]).tobytes()
    if len(data) not in SIZE_CODE_OF:
        raise PacketError(f"payload of {len(data)} bytes: expected one of {sorted(SIZE_CODE_OF)}")
    return SIZE_CODE_OF[len(data)], data


@dataclass(frozen=True)
class V1Packet:
    """One SwitchML-UDP v1 packet. `tsi` holds the four bytes read as big-endian; `values` is int32[64] or
    int32[256]."""

    job_number: int
    tsi: int
    slot: int
    set: int
    e0: int
    e1: int
    values: npt.NDArray[Any]

    def pack(self) -> bytes:
        size, data = _payload(self.values, WIRE_INT32)
        index = (self.set << 15) | (self.slot & V1_SLOT_MASK)
        return _V1_HEADER.pack((V1_TYPE << 4) | size, self.job_number, self.tsi, index, self.e0, self.e1) + data

    @classmethod
    def unpack(cls, data: bytes) -> V1Packet:
        """Raises PacketError if `data` is not a v1 packet whose length matches its size code."""
        _check_length(data)
        first, job_number, tsi, index, e0, e1 = _V1_HEADER.unpack_from(data)
        if first >> 4 != V1_TYPE:
            raise PacketError(f"message type {first >> 4}: expected {V1_TYPE} (v1)")
        return cls(job_number, tsi, index & V1_SLOT_MASK, index >> 15, e0, e1, _values(data, HEADER_BYTES, WIRE_INT32))


@dataclass(frozen=True)
class V2Packet:
    """One v2 contribution or result. In a result, `used` contains the flags; `values` are int32, int16 or int8 lanes
    according to `wire`."""

    kind: int
    seq: int
    job_tag: int
    need: int
    used: int
    ahead: int
    values: npt.NDArray[Any]
    wire: int = WIRE_INT32
    r: bool = False

    def pack(self) -> bytes:
        size, data = _payload(self.values, self.wire)
        kind = self.kind | self.wire
        return pack_v2_header(kind, size, self.r, self.ahead, self.seq, self.job_tag, self.need, self.used) + data

    @classmethod
    def unpack(cls, data: bytes) -> V2Packet:
        """Raises PacketError if `data` is not a contribution or result whose length matches its size code."""
        _check_length(data)
        first, ahead, seq, job_tag, need, used = _V2_HEADER.unpack_from(data)
        kind, wire = (first >> 4) & 0xC, (first >> 4) & 0x3
        if kind not in (CONTRIBUTION, RESULT) or wire not in WIRE_DTYPES:
            raise PacketError(f"message type {first >> 4}: expected a v2 contribution (8-10) or result (12-14)")
        return cls(kind, seq, job_tag, need, used, ahead, _values(data, HEADER_BYTES, wire), wire, bool(first & R_FLAG))


@dataclass(frozen=True)
class SparsePacket:
    """A contribution or result of a sparse stream. `words` are 1, 2, 4 or 8 numbers of 32 bits (`sparse_word`); in a
    result, `mark` contains the flags; `values` are lanes according to `wire`, None without data. `padded`: 512 bytes in
    place of the data."""

    kind: int
    seq: int
    job_tag: int
    mark: int
    words: tuple[int, ...]
    values: npt.NDArray[Any] | None = None
    wire: int = WIRE_INT32
    r: bool = False
    padded: bool = False

    def pack(self) -> bytes:
        if len(self.words) not in COLUMNS:
            raise PacketError(f"{len(self.words)} words: expected one of {', '.join(map(str, COLUMNS))}")
        size, data = PADDED - SPARSE if self.padded else 0, bytes(PADDING_BYTES if self.padded else 0)
        if self.values is not None:
            size, data = _payload(self.values, self.wire)
        header = pack_v2_header(
            self.kind | self.wire, SPARSE | size, self.r, len(self.words), self.seq, self.job_tag, 0, self.mark
        )
        return header + np.array(self.words, ">u4").tobytes() + data

    @classmethod
    def unpack(cls, data: bytes) -> SparsePacket:
        """Raises PacketError if `data` is not a sparse contribution or result whose length matches its size and
        columns."""
        if len(data) < HEADER_BYTES or not data[0] & SPARSE or data[0] >> 4 == WAIT:
            raise PacketError(
                f"{len(data)} bytes starting with {bytes(data[:1]).hex() or 'nothing'}: not a sparse packet"
            )
        first, columns, seq, job_tag, _, mark = _V2_HEADER.unpack_from(data)
        kind, wire, size = (first >> 4) & 0xC, (first >> 4) & 0x3, first & 3
        if kind not in (CONTRIBUTION, RESULT) or wire not in WIRE_DTYPES or columns not in COLUMNS:
            raise PacketError(
                f"message type {first >> 4}, {columns} columns: expected 8-10 or 12-14, and 1, 2, 4 or 8 columns"
            )
        at = HEADER_BYTES + WORD_BYTES * columns
        expected = at + {0: 0, PADDED - SPARSE: PADDING_BYTES}.get(size, SIZE_CODES.get(size, 0))
        if len(data) != expected:
            raise PacketError(f"size code {SPARSE | size}, {columns} columns: {len(data)} bytes, expected {expected}")
        words = struct.unpack_from(f">{columns}I", data, HEADER_BYTES)
        values = _values(data, at, wire) if size in SIZE_CODES else None
        return cls(kind, seq, job_tag, mark, words, values, wire, bool(first & R_FLAG), size == PADDED - SPARSE)


@dataclass(frozen=True)
class AddressedPacket:
    """A contribution or result of an addressed round. In a result, `used` contains the flags; `values` are lanes
    according to `wire`, None without data. `padded`: 512 bytes in place of the data. `payload_bytes`: for a truncated
    result, which has no values, the payload of the whole one; else 0."""

    kind: int
    seq: int
    job_tag: int
    need: int
    used: int
    ahead: int
    reach: int
    root: int
    op: int = OP_SUM
    values: npt.NDArray[Any] | None = None
    wire: int = WIRE_INT32
    r: bool = False
    padded: bool = False
    payload_bytes: int = 0

    def pack(self) -> bytes:
        size, data = PADDED - SPARSE if self.padded else 0, bytes(PADDING_BYTES if self.padded else 0)
        if self.payload_bytes:
            size = SIZE_CODE_OF[self.payload_bytes]
        if self.values is not None:
            size, data = _payload(self.values, self.wire)
        kind = self.kind | self.wire
        header = pack_v2_header(kind, SPARSE | size, self.r, ADDRESSED, self.seq, self.job_tag, self.need, self.used)
        return header + bytes((self.reach, self.root, self.op, CODE_UNKNOWN - self.ahead)) + data

    @classmethod
    def unpack(cls, data: bytes) -> AddressedPacket:
        """Raises PacketError if `data` is not an addressed contribution or result whose length matches its size."""
        if len(data) < ADDRESSED_BYTES or not data[0] & SPARSE or data[0] >> 4 == WAIT or data[1] != ADDRESSED:
            raise PacketError(
                f"{len(data)} bytes starting with {bytes(data[:2]).hex() or 'nothing'}: not an addressed packet"
            )
        first, _, seq, job_tag, need, used = _V2_HEADER.unpack_from(data)
        kind, wire, size, rest = (first >> 4) & 0xC, (first >> 4) & 0x3, first & 3, len(data) - ADDRESSED_BYTES
        reach, root, op, ahead = data[HEADER_BYTES:ADDRESSED_BYTES]
        if (
            kind not in (CONTRIBUTION, RESULT)
            or wire not in WIRE_DTYPES
            or reach > REACH_OTHERS
            or op > OP_MEAN_BFLOAT16
        ):
            raise PacketError(
                f"message type {first >> 4}, reach {reach}, op {op}: expected 8-10 or 12-14, a reach of at most "
                f"{REACH_OTHERS} and an op of at most {OP_MEAN_BFLOAT16}"
            )
        padded, whole = size == PADDED - SPARSE, SIZE_CODES.get(size, 0)
        is_cut = kind == RESULT and whole > 0 and rest == 0
        if rest != (PADDING_BYTES if padded else whole) and not is_cut:
            raise PacketError(f"size code {SPARSE | size}: {len(data)} bytes, expected {ADDRESSED_BYTES + whole}")
        values = _values(data, ADDRESSED_BYTES, wire) if whole and rest else None
        code = CODE_UNKNOWN - ahead
        address, r = (reach, root, op), bool(first & R_FLAG)
        return cls(kind, seq, job_tag, need, used, code, *address, values, wire, r, padded, whole if is_cut else 0)


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


def sparse_word(entry: int, code: int = CODE_UNKNOWN) -> int:
    """The word that a rank sends for a column: its next nonzero entry, and the exponent code that it needs."""
    return NO_WORD if entry == NO_ENTRY else entry << 8 | (CODE_UNKNOWN - code)


@dataclass(frozen=True)
class WaitPacket:
    """The aggregator has a rank's contribution and waits for `missing` (sorted ranks)."""

    seq: int
    job_tag: int
    missing: tuple[int, ...]

    def pack(self) -> bytes:
        bits = np.zeros(8 * BITMAP_BYTES, np.uint8)
        bits[list(self.missing)] = 1
        bitmap = np.packbits(bits, bitorder="little").tobytes()
        return pack_v2_header(WAIT, 0, False, 0, self.seq, self.job_tag, 0, 0) + bitmap

    @classmethod
    def unpack(cls, data: bytes) -> WaitPacket:
        """Raises PacketError if `data` is not a wait packet."""
        if len(data) != HEADER_BYTES + BITMAP_BYTES or data[0] != WAIT << 4:
            raise PacketError(
                f"{len(data)} bytes starting with {bytes(data[:1]).hex() or 'nothing'}: not a wait packet"
            )
        _, _, seq, job_tag, _, _ = _V2_HEADER.unpack_from(data)
        bits = np.unpackbits(np.frombuffer(data[HEADER_BYTES:], np.uint8), bitorder="little")
        return cls(seq, job_tag, tuple(np.flatnonzero(bits).tolist()))


def check_slots(slots: int) -> None:
    """Raises ConfigError unless `slots` is valid as the S of a v2 job."""
    if not 1 <= slots <= V2_MAX_SLOTS or slots & (slots - 1):
        raise ConfigError(f"{slots} slots: expected a power of two from 1 to {V2_MAX_SLOTS}")


def pack_v2_header(kind: int, size: int, r: bool, ahead: int, seq: int, job_tag: int, need: int, used: int) -> bytes:
    """Pack the ten-byte header; `kind` is the whole type nibble."""
    first = (kind << 4) | (R_FLAG if r else 0) | size
    return _V2_HEADER.pack(first, ahead, seq & 0xFFFFFFFF, job_tag, need, used)


def _check_length(data: bytes) -> None:
    """Raises PacketError unless the payload length matches the size code."""
    if len(data) < HEADER_BYTES:
        raise PacketError(f"{len(data)} bytes: shorter than the {HEADER_BYTES}-byte header")
    code, payload_bytes = data[0] & 7, len(data) - HEADER_BYTES
    if SIZE_CODES.get(code) != payload_bytes:
        raise PacketError(f"size code {code} with {payload_bytes} bytes of payload: expected 1 with 256 or 3 with 1024")


def _values(data: bytes, start: int, wire: int) -> npt.NDArray[Any]:
    """The lanes from `start` on, in native byte order."""
    values = np.frombuffer(data, WIRE_DTYPES[wire], offset=start)
    native: npt.NDArray[Any] = values.astype(values.dtype.newbyteorder("="))
    return native
