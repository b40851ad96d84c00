"""A program's memory in the compiled engine: the frame with its constants, the VM's context, and the plan of the packet
path, initialized from the lowered program."""

import random
from collections.abc import Mapping, Sequence

import numpy as np

from emulator.p4switch.engine.code import Unsupported
from emulator.p4switch.engine.layout import CELL, CONTEXT, DESCRIPTOR, HASH_BUFFER_BYTES, Layout, record
from emulator.p4switch.engine.lower import Lowered
from emulator.p4switch.engine.plan import BLOCK_WORDS, PLAN_WORDS
from emulator.p4switch.engine.raw import address_of
from emulator.p4switch.engine.records import KeepAlive
from emulator.p4switch.engine.vm.vm import run
from emulator.p4switch.packet_path.engine import SLACK, Record
from emulator.p4switch.packet_path.fields import FIELDS
from emulator.p4switch.program.expr import VALID
from emulator.p4switch.values import mask

OUT_BYTES = 8 << 20
"""Capacity for the outgoing frames of a batch, in bytes."""
RESERVE = 2 << 20
"""Free space required before another frame is processed."""
MAX_RECORDS = 1 << 18
RING_SIZE = 4096
"""Capacity in packets of the ring between ingress and egress, and of the ring of packets that return to ingress."""


def block(n_bytes: int) -> np.ndarray:
    """Zeroed memory of at least `n_bytes`."""
    return np.zeros((n_bytes + SLACK + 7) // 8, dtype=np.int64)


def directory(lists: Mapping[int, Sequence[tuple[int, ...]]], keep: KeepAlive) -> np.ndarray:
    """Directory of lists of rows, by number: (highest number + 2, 2) int64 with address and length of each list."""
    lists = {number: rows for number, rows in lists.items() if 0 <= number < 1 << 16}
    table = np.zeros((max(lists, default=-1) + 2, 2), dtype=np.int64)
    for number, rows in lists.items():
        table[number] = keep(rows), len(rows)
    return table


class Memory:
    """Memory of one program. `plan` and `context` are arrays of one record; `frame` is an address.
    Raises Unsupported."""

    def __init__(self, lowered: Lowered, seed: int | None, stale_fields: bool) -> None:
        self.lowered, self.layout, self.program = lowered, lowered.layout, lowered.program
        self.keep = KeepAlive()
        self._make_frame()
        self._make_context(random.Random(seed))
        self.out = np.empty(OUT_BYTES + SLACK, dtype=np.uint8)
        self.records = np.zeros((MAX_RECORDS, len(Record._fields)), dtype=np.int64)
        self.plan = record(PLAN_WORDS)
        self._describe_program(stale_fields)
        self._make_room(stale_fields)

    def _make_frame(self) -> None:
        code = self.lowered.code
        n_constants = len(code.constants)
        self._frame_block = block(8 * n_constants + code.frame_end + 4096)
        self._frame_block[:n_constants] = np.array(code.constants[::-1], dtype=np.uint64).view(np.int64)
        self.frame = self._frame_block.ctypes.data + 8 * n_constants
        self._cells = self._frame_block[n_constants:]

    def _make_context(self, source: random.Random) -> None:
        self.context = record(CONTEXT)
        self._cells[CELL.context // 8] = self.keep(self.context)
        self.event_ring = block(8 << 16)
        for name, value in {
            "code": self.keep(self.lowered.rows), "headers": self.keep(self._header_table()),
            "hash_buffer": self.keep(block(HASH_BUFFER_BYTES + (1 << 16))), "events": self.keep(self.event_ring),
            "event_end": len(self.event_ring), "random": self.keep(np.array(source.getstate()[1], dtype=np.uint32)),
        }.items():  # fmt: skip
            self.context[name] = value

    def _header_table(self) -> np.ndarray:
        layout, headers = self.layout, self.program.headers
        table = np.zeros(max(len(headers), 1), dtype=record(DESCRIPTOR).dtype)
        for header, row in zip(headers, table, strict=False):
            i, kind = header.index, header.type
            varbit_at, varbit_max = 0, 0
            if kind.varbit is not None and not header.is_metadata:
                varbit_at, varbit_max = layout.wire_bit(kind, kind.varbit) // 8, Layout.varbit_max(kind)
            for name, value in {
                "valid": layout.valid[i], "data": layout.data[i], "n_bytes": layout.n_bytes[i],
                "total": layout.total[i], "siblings": self.keep(header.union) - self.frame,
                "n_siblings": len(header.union), "varbit": layout.varbit[i], "varbit_at": varbit_at,
                "varbit_max": varbit_max, "flags": layout.flags[i], "type": kind.id,
            }.items():  # fmt: skip
                row[name] = value
        return table

    def _describe_program(self, stale_fields: bool) -> None:
        lowered, layout = self.lowered, self.layout
        for name in FIELDS:
            self.plan[f"{name} offset"], self.plan[f"{name} mask"] = self.field(name)
        for name, pc in zip(BLOCK_WORDS, lowered.blocks, strict=True):
            self.plan[name] = pc
        metadata_headers = [layout.valid[header.index] for header in self.program.headers if header.is_metadata]
        field_lists = directory(lowered.field_lists, self.keep)
        loses_fields = stale_fields or self.program.sets_valid
        for name, value in {
            "frame": self.frame, "phv_end": layout.phv_end, "metadata": layout.metadata[0],
            "metadata_end": layout.metadata[1], "metadata_headers": self.keep(metadata_headers),
            "n_metadata_headers": len(metadata_headers), "no_error": self.program.errors["NoError"],
            "header_bytes": lowered.header_bytes + SLACK, "vm": address_of(run, 2),
            "digests": self.keep(lowered.digests), "n_digests": len(lowered.digests),
            "field_lists": self.keep(field_lists), "n_field_lists": len(field_lists),
            "n_headers": len(self.program.headers) if loses_fields else 0,
        }.items():  # fmt: skip
            self.plan[name] = value

    def field(self, name: str) -> tuple[int, int]:
        """(offset in the frame, mask) of a metadata field."""
        ref = self.program.field(name)
        if ref is None:
            return -1, 0
        location = self.layout.locations.get(ref)
        if ref.field == VALID or location is None or location.is_wire or location.signed or location.width > 64:
            raise Unsupported(f"{name} is no plain metadata")
        return location.offset, mask(location.width) if location.width < 64 else -1

    def _make_room(self, stale_fields: bool) -> None:
        """Allocate memory for waiting packets and outgoing frames."""
        layout, stride, pool = self.layout, self.layout.phv_end + SLACK, 0
        if stale_fields:  # one per ring slot, the one in the frame, and the saved one
            pool = self.keep(block((2 * RING_SIZE + 2) * (layout.phv_end - layout.metadata[0])))
        for name, value in {
            "saved": self.keep(block(stride)), "returned": self.keep(block(RING_SIZE * stride)),
            "queued": self.keep(block(RING_SIZE * stride)), "ring_size": RING_SIZE, "ring_stride": stride, "pool": pool,
            "out_end": self.out.ctypes.data + OUT_BYTES, "reserve": RESERVE, "records": self.records.ctypes.data,
            "max_records": MAX_RECORDS, "max_events": len(self.event_ring) // 2,
        }.items():  # fmt: skip
            self.plan[name] = value
