"""The compiled engine: puts a program's code, its state and the compiled packet path together.

It takes the place of interpreter.path.Interpreter: `receive` and `poll` mean the same; `process` takes a whole batch.
The control plane may change the state in between: what the VM reads in another form (entries, value sets, hash
parameters, multicast groups, mirroring sessions) is rewritten when its version has changed; registers, counters and
meters are shared."""

from __future__ import annotations

import ctypes
import logging
import random
from collections.abc import Mapping, Sequence

import numpy as np

from emulator.p4switch.engine import opcodes as o
from emulator.p4switch.engine import traffic as t
from emulator.p4switch.engine.code import Unsupported
from emulator.p4switch.engine.events import Events
from emulator.p4switch.engine.layout import (  # fmt: skip
    CELL,
    CONTEXT,
    CTX,
    DESCRIPTOR,
    DESCRIPTOR_BYTES,
    HASH_BUFFER_BYTES,
    Layout,
)
from emulator.p4switch.engine.lookup import Kept, TableImage
from emulator.p4switch.engine.lower import Lowered
from emulator.p4switch.engine.plan import FIELDS, PLAN_WORDS, P
from emulator.p4switch.engine.raw import address_of
from emulator.p4switch.engine.vm.hash import run_hash
from emulator.p4switch.engine.vm.headers import run_headers
from emulator.p4switch.engine.vm.tables import TABLE_BYTES
from emulator.p4switch.engine.vm.vm import run
from emulator.p4switch.engine.vm.wide import run_wide
from emulator.p4switch.interpreter.path import Interpreter, Waiting
from emulator.p4switch.program.expr import VALID
from emulator.p4switch.state.state import State
from emulator.p4switch.values import mask
from switchml.runtime.jit import compile_once

log = logging.getLogger("switchml.bmv2")

OUT_BYTES = 8 << 20
"""Room for the frames that leave in a batch."""
RESERVE = 2 << 20
"""Room that must be free before another frame is processed."""
MAX_RECORDS = 1 << 18
RING_SIZE = 4096
"""Packets that can wait between ingress and egress, or to pass ingress once more."""
SLACK = 64
"""Bytes behind each block of memory, for loads that reach beyond it."""


def _block(n_bytes: int) -> np.ndarray:
    return np.zeros((n_bytes + SLACK + 7) // 8, dtype=np.int64)


def _directory(lists: Mapping[int, Sequence[tuple[int, ...]]], keep: Kept) -> np.ndarray:
    """Lists of rows, by number: (highest number + 2, 2) int64 of a list's address and the number of its rows."""
    lists = {number: rows for number, rows in lists.items() if 0 <= number < 1 << 16}
    table = np.zeros((max(lists, default=-1) + 2, 2), dtype=np.int64)
    for number, rows in lists.items():
        table[number] = keep(rows), len(rows)
    return table


GROUPS = (
    ("run_wide", run_wide, 3, o.FIRST_WIDE, o.FIRST_HEADER),
    ("run_headers", run_headers, 4, o.FIRST_HEADER, o.FIRST_HASH),
    ("run_hash", run_hash, 3, o.FIRST_HASH, len(o.NAMES)),
)
"""Kernels that run a group of instructions each: name in the context, kernel, arguments, first opcode, and last one +
1."""


def warm() -> None:
    """Compile all kernels."""
    for entry, n_args in ((t.process, 4), (run, 2), *(group[1:3] for group in GROUPS)):
        compile_once(entry, *[0] * n_args)


class Engine:
    """Runs `state`'s program. `drop_port`, `n_priorities`, `seed`, `stale_fields` as for the interpreter. Raises
    Unsupported for a program that can't be lowered."""

    def __init__(
        self,
        state: State,
        drop_port: int = 511,
        n_priorities: int = 1,
        seed: int | None = None,
        *,
        stale_fields: bool = False,
    ) -> None:
        if state.program.is_psa:
            raise Unsupported("a program for the Portable Switch Architecture")
        self.state = state
        self.program = state.program
        self.clock = state.clock
        self.drop_port = drop_port
        self.n_priorities = n_priorities
        self.slow = Interpreter(state, drop_port, n_priorities, seed, stale_fields=stale_fields)
        self._stale_fields = stale_fields
        self._queue_version = -1
        self._is_paced = False
        compile_once(t.process, 0, 0, 0, 0)
        compile_once(run, 0, 0)
        with state.lock:  # the control plane may be running already
            self._lower()
        self._compile_groups()  # packets pass meanwhile
        with state.lock:
            self._set_up(seed)

    def _lower(self) -> None:
        try:
            self.lowered = Lowered(self.state, self.drop_port)
        except RecursionError:
            raise Unsupported("an expression nested too deep") from None
        except OverflowError:
            raise Unsupported("a number that does not fit an instruction") from None

    def _compile_groups(self) -> None:
        """Compile the groups of instructions that the program uses."""
        used = set(self.lowered.rows[:, 0].tolist())
        self._groups_used = [group for group in GROUPS if not used.isdisjoint(range(*group[3:]))]
        for _, entry, n_args, _, _ in self._groups_used:
            compile_once(entry, *[0] * n_args)

    def _set_up(self, seed: int | None) -> None:
        self._keep = Kept()
        self._frame()
        self._context(random.Random(seed))
        self._plan()
        rows = np.zeros((max(len(self.program.tables), 1), TABLE_BYTES // 8), dtype=np.int64)
        self.context[CTX["tables"] // 8] = self._keep(rows)
        self.images = [TableImage(self.state, self.lowered, code, rows[i]) for i, code in self.lowered.tables.items()]
        self._versions: tuple | None = None
        self.events = Events(self.program, self.state, self.lowered.actions.messages)
        self._refresh()

    # Memory

    def _frame(self) -> None:
        code = self.lowered.code
        n_constants = len(code.constants)
        self._frame_block = _block(8 * n_constants + code.frame_end + 4096)
        self._frame_block[:n_constants] = np.array(code.constants[::-1], dtype=np.uint64).view(np.int64)
        self.frame = self._frame_block.ctypes.data + 8 * n_constants
        self._cells = self._frame_block[n_constants:]

    def _context(self, source: random.Random) -> None:
        self.context = np.zeros(len(CONTEXT), dtype=np.int64)
        self._cells[CELL["context"] // 8] = self._keep(self.context)
        self._event_ring = _block(8 << 16)
        for name, value in {
            "code": self._keep(self.lowered.rows), "headers": self._keep(self._header_table()),
            "hash_buffer": self._keep(_block(HASH_BUFFER_BYTES + (1 << 16))), "events": self._keep(self._event_ring),
            "event_end": len(self._event_ring), "random": self._keep(np.array(source.getstate()[1], dtype=np.uint32)),
            **{name: address_of(entry, n_args) for name, entry, n_args, _, _ in self._groups_used},
        }.items():  # fmt: skip
            self.context[CTX[name] // 8] = value

    def _header_table(self) -> np.ndarray:
        layout, program = self.lowered.layout, self.program
        table = np.zeros((max(len(program.headers), 1), DESCRIPTOR_BYTES // 8), dtype=np.int64)
        for header in program.headers:
            i, kind = header.index, header.type
            siblings = self._keep(header.union) - self.frame
            varbit_at, varbit_max = 0, 0
            if kind.varbit is not None and not header.is_metadata:
                varbit_at, varbit_max = layout.wire_bit(kind, kind.varbit) // 8, Layout.varbit_max(kind)
            table[i, : len(DESCRIPTOR)] = (
                layout.valid[i], layout.data[i], layout.n_bytes[i], layout.total[i], siblings, len(header.union),
                layout.varbit[i], varbit_at, varbit_max, layout.flags[i], kind.id,
            )  # fmt: skip
        return table

    def _plan(self) -> None:
        lowered, layout = self.lowered, self.lowered.layout
        self.plan = np.zeros(PLAN_WORDS, dtype=np.int64)
        for number, name in enumerate(FIELDS):
            self.plan[2 * number : 2 * number + 2] = self._field(name)
        metadata_headers = [layout.valid[header.index] for header in self.program.headers if header.is_metadata]
        stride = layout.phv_end + SLACK
        pool = 0
        if self._stale_fields:  # a packet in each ring, the one in the frame, and the one put aside
            pool = self._keep(_block((2 * RING_SIZE + 2) * (layout.phv_end - layout.metadata[0])))
        loses_fields = self._stale_fields or self.program.sets_valid
        self._out = np.empty(OUT_BYTES + SLACK, dtype=np.uint8)
        self._records = np.zeros((MAX_RECORDS, t.RECORD_WORDS), dtype=np.int64)
        field_lists = _directory(lowered.field_lists, self._keep)
        for name, value in {
            "frame": self.frame, "phv_end": layout.phv_end, "metadata": layout.metadata[0],
            "metadata_end": layout.metadata[1], "metadata_headers": self._keep(metadata_headers),
            "n_metadata_headers": len(metadata_headers), "saved": self._keep(_block(stride)),
            "no_error": self.program.errors["NoError"], "parser": lowered.parser,
            "ingress": lowered.ingress, "egress": lowered.egress, "deparser": lowered.deparser,
            "header_bytes": lowered.header_bytes + SLACK,
            "digests": self._keep(lowered.digests), "n_digests": len(lowered.digests),
            "field_lists": self._keep(field_lists), "n_field_lists": len(field_lists),
            "drop_port": self.drop_port, "n_priorities": self.n_priorities,
            "returned": self._keep(_block(RING_SIZE * stride)), "queued": self._keep(_block(RING_SIZE * stride)),
            "ring_size": RING_SIZE, "ring_stride": stride, "out_end": self._out.ctypes.data + OUT_BYTES,
            "records": self._records.ctypes.data, "max_records": MAX_RECORDS, "vm": address_of(run, 2),
            "pool": pool, "n_headers": len(self.program.headers) if loses_fields else 0,
            "reserve": RESERVE, "max_events": len(self._event_ring) // 2,
        }.items():  # fmt: skip
            self.plan[P[name] // 8] = value

    def _field(self, name: str) -> tuple[int, int]:
        ref = self.program.field(name)
        if ref is None:
            return -1, 0
        place = self.lowered.layout.places.get(ref)
        if ref.field == VALID or place is None or place.is_wire or place.signed or place.width > 64:
            raise Unsupported(f"{name} is no plain metadata")
        return place.offset, mask(place.width) if place.width < 64 else -1

    # State in the VM's form

    def _refresh(self) -> None:
        state = self.state
        for part in (*self.images, *self.lowered.hashes, *self.lowered.vsets):
            part.refresh()
        versions = state.replication.version, state.mirroring.version
        if versions != self._versions:
            self._versions = versions
            self._refresh_replication()

    def _refresh_replication(self) -> None:
        replication, keep = self.state.replication, Kept()
        groups = _directory({mgid: replication.copies(mgid) or [] for mgid in replication.groups}, keep)
        sessions = np.full((1 << 15, 3), -1, dtype=np.int64)
        sessions[:, 0] = 0
        for number, session in self.state.mirroring.sessions.items():
            port, group = (-1 if value is None else value for value in (session.port, session.mgid))
            sessions[number] = 1, port, group
        self._set("groups", keep(groups))
        self._set("n_groups", len(groups))
        self._set("sessions", keep(sessions))
        self._replication = keep

    def _set(self, name: str, value: int) -> None:
        self.plan[P[name] // 8] = value

    def _get(self, name: str) -> int:
        return int(self.plan[P[name] // 8])

    # Packets

    def process(self, ports: np.ndarray, addresses: np.ndarray, lengths: np.ndarray, take) -> None:
        """Process a batch of frames: int64 arrays of ports, addresses of the bytes, and lengths. `take(records)` is
        called with the frames that leave, in order: (n, 4) int64 of port, address, length, index of the frame that came
        in; the bytes stay there until it returns. Raises ProgramAbort."""
        if self.is_paced():
            self._process_slowly(ports, addresses, lengths, take)
            return
        self._refresh()
        n, first = len(ports), 0
        self._set("in_port", ports.ctypes.data)
        self._set("in_address", addresses.ctypes.data)
        self._set("in_length", lengths.ctypes.data)
        self._set("now", self.clock())
        while True:
            self._set("n_records", 0)
            first = t.process(self.plan.ctypes.data, first, n, self._out.ctypes.data)
            n_records = self._get("n_records")
            if n_records:
                take(self._records[:n_records])
            self._report()
            if first == n:
                return

    @property
    def waiting(self) -> Waiting:
        """Packets in queues, which another engine of the same state can take over."""
        return self.slow.waiting

    @waiting.setter
    def waiting(self, packets: Waiting) -> None:
        self.slow.waiting = packets

    def is_paced(self) -> bool:
        """Whether packets may have to wait in queues, which the interpreter does: a queue has a rate, or no room
        at all, or a packet waits."""
        queues = self.state.queues
        if queues.version != self._queue_version:
            self._queue_version = queues.version
            self._is_paced = queues.are_paced
        return self._is_paced or self.slow.next_us() is not None

    def _process_slowly(self, ports: np.ndarray, addresses: np.ndarray, lengths: np.ndarray, take) -> None:
        for number, (port, address, length) in enumerate(
            zip(ports.tolist(), addresses.tolist(), lengths.tolist(), strict=True)
        ):
            sent = self.slow.receive(port, ctypes.string_at(address, length))
            data = np.frombuffer(b"".join(frame for _, frame in sent), dtype=np.uint8)
            records, at = np.zeros((len(sent), t.RECORD_WORDS), dtype=np.int64), data.ctypes.data
            for record, (egress, frame) in zip(records, sent, strict=True):
                record[:] = egress, at, len(frame), number
                at += len(frame)
            if sent:
                take(records)

    def _report(self) -> None:
        """Pass on the VM's events, and drop the rest of a packet at which the program aborted."""
        self._log_losses()
        n_words = int(self.context[CTX["event_at"] // 8])
        aborted = self._get("status")
        if aborted:
            self._set("status", 0)
            self._set("returned_n", 0)
            self._set("queued_n", 0)
        if n_words:
            self.context[CTX["event_at"] // 8] = 0
            self.events.report(self._event_ring[:n_words])

    def _log_losses(self) -> None:
        for name, text in (("lost", "Dropped %d packets that would not end or had no room"),
                           ("bad_priority", "Priority out of range, dropping packet (%d times)")):  # fmt: skip
            n = self._get(name)
            if n:
                self._set(name, 0)
                log.error(text, n)
        n = int(self.context[CTX["events_lost"] // 8])
        if n:
            self.context[CTX["events_lost"] // 8] = 0
            log.error("%d log messages or digests were lost", n)

    def receive_batch(self, frames: Sequence[tuple[int, bytes]]) -> list[list[tuple[int, bytes]]]:
        """`receive` for each of (port, frame); the results in the same order."""
        results: list[list[tuple[int, bytes]]] = [[] for _ in frames]
        sizes = np.array([len(data) for _, data in frames], dtype=np.int64)
        self._incoming = np.frombuffer(b"".join(data for _, data in frames) + bytes(SLACK), dtype=np.uint8)
        starts = self._incoming.ctypes.data + np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(np.int64)

        def take(records: np.ndarray) -> None:
            for port, address, length, source in records.tolist():
                results[source].append((port, ctypes.string_at(address, length)))

        self.process(np.array([port for port, _ in frames], dtype=np.int64), starts, sizes, take)
        return results

    def receive(self, port: int, data: bytes) -> list[tuple[int, bytes]]:
        """Take a frame in; returns (port, frame) for all that leave, in order."""
        return self.receive_batch([(port, data)])[0]

    def poll(self) -> list[tuple[int, bytes]]:
        """The frames that leave queues with a rate now."""
        return self.slow.poll()

    def next_us(self) -> float | None:
        """When `poll` will return something; None if nothing waits."""
        return self.slow.next_us()
