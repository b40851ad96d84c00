"""The compiled engine: combines a program's code, its state and the packet path's kernels.

The control plane may change the state while packets are processed: data that the VM stores in its own format (entries,
value sets, multicast groups, mirroring sessions) are updated by observers of the state under the state's lock; hash
parameters are refreshed when their version has changed; registers, counters and meters are shared."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from emulator.p4switch.engine import opcodes as o
from emulator.p4switch.engine import psa_kernels, records, v1model_kernels
from emulator.p4switch.engine.code import Unsupported
from emulator.p4switch.engine.events import Events
from emulator.p4switch.engine.layout import views
from emulator.p4switch.engine.lookup import TableImage
from emulator.p4switch.engine.lower import Lowered
from emulator.p4switch.engine.memory import Memory
from emulator.p4switch.engine.pacing import Pacing
from emulator.p4switch.engine.raw import address_of
from emulator.p4switch.engine.replication import Groups, Sessions
from emulator.p4switch.engine.vm.hash import run_hash
from emulator.p4switch.engine.vm.headers import run_headers
from emulator.p4switch.engine.vm.tables import TABLE_WORDS
from emulator.p4switch.engine.vm.vm import run
from emulator.p4switch.engine.vm.wide import run_wide
from emulator.p4switch.packet_path.engine import Engine, Sent, as_records, frames_at
from emulator.p4switch.state.state import State
from switchml import logs
from switchml.runtime.jit import compile_once

log = logs.of("switchml.bmv2")

Send = Callable[[np.ndarray], None]


GROUPS = (
    ("run_wide", run_wide, 3, o.FIRST_WIDE, o.FIRST_HEADER),
    ("run_headers", run_headers, 4, o.FIRST_HEADER, o.FIRST_HASH),
    ("run_hash", run_hash, 3, o.FIRST_HASH, len(o.NAMES)),
)
"""Kernels of the instruction groups: name in the context, kernel, number of arguments, first opcode,
and last one + 1."""


def warm() -> None:
    """Compile all kernels of v1model."""
    for entry, n_args in ((v1model_kernels.process, 3), (run, 2), *(group[1:3] for group in GROUPS)):
        compile_once(entry, *[0] * n_args)
    records.warm()


class CompiledEngine(Engine):
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
        self.state = state
        self.program = state.program
        self.path = psa_kernels if state.program.is_psa else v1model_kernels
        compile_once(self.path.process, 0, 0, 0)
        compile_once(run, 0, 0)
        records.warm()
        with state.lock:  # the control plane may be running already
            self._lower(drop_port)
        groups = self._compile_groups()  # without the lock, so packets pass meanwhile
        with state.lock:
            self._set_up(seed, stale_fields, groups)
            self.plan["drop_port"][0], self.plan["n_priorities"][0] = drop_port, n_priorities

    def _lower(self, drop_port: int) -> None:
        try:
            self.lowered = Lowered(self.state, drop_port)
        except RecursionError:
            raise Unsupported("an expression nested too deep") from None
        except OverflowError:
            raise Unsupported("a number that does not fit an instruction") from None

    def _compile_groups(self) -> dict[str, int]:
        """Compile the instruction groups that the program uses. Returns the addresses of their kernels."""
        used = set(self.lowered.rows[:, 0].tolist())
        return {
            name: address_of(entry, n_args)
            for name, entry, n_args, first, end in GROUPS
            if not used.isdisjoint(range(first, end))
        }

    def _set_up(self, seed: int | None, stale_fields: bool, groups: dict[str, int]) -> None:
        self.memory = Memory(self.lowered, seed, stale_fields)
        self._address = self.memory.plan.ctypes.data
        self.plan, self.context = views(self.memory.plan), views(self.memory.context)
        rows = np.zeros((max(len(self.program.tables), 1), len(TABLE_WORDS)), dtype=np.int64)
        self.context["tables"][0] = self.memory.keep(rows)
        for name, address in groups.items():
            self.context[name][0] = address
        tables = self.lowered.tables.items()
        self.images = [TableImage(self.state, self.lowered, code, rows[i]) for i, code in tables]
        self.events = Events(self.program, self.state, self.lowered.actions.messages)
        self.pacing = Pacing(self.state, self.memory)
        self._groups, self._sessions = Groups(self.state.replication), Sessions(self.state.mirroring)
        for name, table in (("groups", self._groups.rows), ("sessions", self._sessions.rows)):
            self.plan[name][0], self.plan[f"n_{name}"][0] = table.ctypes.data, len(table)

    # State in the VM's format

    def _refresh(self) -> None:
        for part in self.lowered.hashes:
            part.refresh()
        self.plan["now"][0] = self.state.clock()

    # Packets

    def process(self, ports: np.ndarray, addresses: np.ndarray, lengths: np.ndarray, send: Send) -> None:
        """Implements packet_path.engine.Engine.process in one kernel call; frame by frame if packets may have to wait
        in queues."""
        self._refresh()
        plan, n, first = self.plan, len(ports), 0
        plan["in_port"][0], plan["in_address"][0], plan["in_length"][0] = (
            array.ctypes.data for array in (ports, addresses, lengths)
        )
        while first < n:
            is_paced = self.pacing.is_needed()
            first = self._step(send, self.path.process, first, first + 1 if is_paced else n)
            if is_paced:
                self._serve_queues(send)

    def _step(self, send: Send, kernel: Any, *frames: int) -> int:
        """Run a kernel, then pass on its outgoing frames and events."""
        self.plan["n_records"][0], self.plan["out"][0] = 0, self.memory.out.ctypes.data
        result: int = kernel(self._address, *frames)
        n_records = int(self.plan["n_records"][0])
        if n_records:
            send(self.memory.records[:n_records])
        self._report()
        return result

    def _serve_queues(self, send: Send) -> None:
        """Move packets into rate-limited queues, and process those that are due."""
        self.pacing.enqueue()
        while self.pacing.release():
            self._step(send, self.path.serve)
            self.pacing.enqueue()
        self.plan["queue_length"][0] = 0

    def _report(self) -> None:
        """Pass on the VM's events, and discard the remaining work of a packet whose program aborted."""
        self._log_losses()
        if self.plan["status"][0]:
            for name in ("status", "is_held", "returned_n", "queued_n"):
                self.plan[name][0] = 0
        n_words = int(self.context["event_at"][0])
        if n_words:
            self.context["event_at"][0] = 0
            self.events.report(self.memory.event_ring[:n_words])

    def _log_losses(self) -> None:
        for words, name, text in (
            (self.plan, "lost", "Dropped %d packets that would not end or had no room"),
            (self.plan, "bad_priority", "Priority out of range, dropping packet (%d times)"),
            (self.context, "events_lost", "%d log messages or digests were lost"),
        ):
            n = int(words[name][0])
            if n:
                words[name][0] = 0
                log.error(text, n)

    def receive_batch(self, frames: Sequence[tuple[int, bytes]]) -> list[Sent]:
        """Call `receive` for each (port, frame); returns the results in the same order."""
        results: list[Sent] = [[] for _ in frames]

        def send(records: np.ndarray) -> None:
            for source, frame in zip(records[:, 3].tolist(), frames_at(*records.T[:3]), strict=True):
                results[source].append(frame)

        _, incoming = data = as_records(list(frames))
        ports, addresses, lengths = (np.ascontiguousarray(column) for column in incoming.T[:3])
        self.process(ports, addresses, lengths, send)
        del data
        return results

    def receive(self, port: int, data: bytes) -> Sent:
        return self.receive_batch([(port, data)])[0]

    def poll(self) -> Sent:
        sent: Sent = []
        if self.pacing.is_needed():
            self._refresh()
            self._serve_queues(lambda records: sent.extend(frames_at(*records.T[:3])))
        return sent

    def next_us(self) -> float | None:
        return self.pacing.queues.next_us()
