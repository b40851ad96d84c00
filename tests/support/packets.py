"""Packets of the wire format as objects, which tests pack, unpack and compare (docs/protocol.md).

The package itself writes and reads packets in compiled code, field by field."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from switchml.errors import PacketError
from switchml.protocol.packet import (
    ADDRESSED,
    ADDRESSED_BYTES,
    BITMAP_BYTES,
    CODE_UNKNOWN,
    COLUMNS,
    CONTRIBUTION,
    HEADER_BYTES,
    NO_ENTRY,
    NO_WORD,
    OP_MEAN_BFLOAT16,
    OP_SUM,
    PADDED,
    PADDING_BYTES,
    R_FLAG,
    REACH_OTHERS,
    RESULT,
    SIZE_CODE_OF,
    SIZE_CODES,
    SPARSE,
    V1_SLOT_MASK,
    V1_TYPE,
    WAIT,
    WIRE_DTYPES,
    WIRE_INT32,
    WORD_BYTES,
)

_V1_HEADER = struct.Struct(">BBIHbb")
"""Message type and size code, job number, tsi, pool index, e0, e1."""
_V2_HEADER = struct.Struct(">BbIHbb")
"""Message type, R and size code in one byte; ahead, seq, tag, need, used."""


def _payload(values: npt.ArrayLike, wire: int) -> tuple[int, bytes]:
    """(size code, bytes) of `values`; raises PacketError if they don't fill a packet of 256 or 1024 bytes."""
    data = np.ascontiguousarray(values, dtype=WIRE_DTYPES[wire]).tobytes()
    if len(data) not in SIZE_CODE_OF:
        raise PacketError(f"payload of {len(data)} bytes: expected one of {sorted(SIZE_CODE_OF)}")
    return SIZE_CODE_OF[len(data)], data


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


def pack_v2_header(kind: int, size: int, r: bool, ahead: int, seq: int, job_tag: int, need: int, used: int) -> bytes:
    """Pack the ten-byte header; `kind` is the whole type nibble."""
    first = (kind << 4) | (R_FLAG if r else 0) | size
    return _V2_HEADER.pack(first, ahead, seq & 0xFFFFFFFF, job_tag, need, used)


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


def sparse_word(entry: int, code: int = CODE_UNKNOWN) -> int:
    """The word that a rank sends for a column: its next nonzero entry, and the exponent code that it needs."""
    return NO_WORD if entry == NO_ENTRY else entry << 8 | (CODE_UNKNOWN - code)


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
