"""A switch with its ports, and the operations of its control interfaces on both."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TYPE_CHECKING

from emulator.p4switch import snapshot
from emulator.p4switch.packet_path.engine import frames_at
from emulator.p4switch.ports.port import Frames, Ports
from emulator.p4switch.program import ir
from emulator.p4switch.program.loader import loader
from emulator.p4switch.state.state import State
from emulator.p4switch.switch import Switch
from switchml import logs
from switchml.errors import ControlError, ProgramAbort
from switchml.files import read_text

if TYPE_CHECKING:
    import numpy as np

    from switchml.net.packet_io import Batch

log = logs.of("switchml.bmv2")

POLL_S = 0.05
"""Polling interval for queues with a rate, digests and timeouts when nothing is due sooner."""


@dataclass(eq=False)
class Device:
    """`switch` on `ports`. `device_id` and `notifications_address` are reported to clients; the Thrift server sets
    `thrift_port`. `can_swap`: whether another program may be loaded while running. `dump_bytes`: bytes of each frame
    that are logged. `on_abort` is called when the program aborts the switch, as by a failed assert.

    Locks are acquired in this order: P4RuntimeServer's and this class's `_order`; `switch.lock`, which is also the
    state's; those of P4Runtime's controllers and of notifications. Ports may be used while holding any of them."""

    switch: Switch
    ports: Ports
    _: KW_ONLY
    device_id: int = 0
    notifications_address: str = ""
    can_swap: bool = True
    dump_bytes: int = 0
    on_abort: Callable[[ProgramAbort], None] | None = None

    def __post_init__(self) -> None:
        self.thrift_port = 0
        self.started_us = time.time_ns() // 1000 - self.switch.clock()
        self._next_program: ir.Program | None = None
        self._listeners: dict[int, Callable[[bytes], None]] = {}
        self._closed = threading.Event()
        self._order = threading.Lock()

    @property
    def state(self) -> State:
        """State of the running program, which the control plane operates on."""
        return self.switch.state

    # Frames

    def start(self) -> None:
        """Accept frames from now on."""
        self.ports.start(self.take, self.take_batch)
        threading.Thread(target=self._run_timer, name="timer", daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        self.ports.close()

    def take(self, frames: Frames) -> None:
        """Process frames in the switch and send the resulting frames."""
        for port, data in frames:
            self._dump("Received", port, data)
            self._run(partial(self.switch.receive, port, data))

    def take_batch(self, batch: Batch, n: int, send: Callable[[np.ndarray], None]) -> None:
        """Process a batch's first n frames; `send` is called with Records of the outgoing frames."""
        ports, addresses, lengths = batch.port[:n], batch.address[:n], batch.length[:n]
        if self.dump_bytes:
            for port, data in frames_at(ports, addresses, lengths):
                self._dump("Received", port, data)

        def pass_on(records: np.ndarray) -> None:
            if self._listeners or self.dump_bytes:
                self._show(frames_at(*records.T[:3]))
            send(records)

        with self._guard():
            self.switch.process(ports, addresses, lengths, pass_on)

    def listen(self, port: int, receive: Callable[[bytes], None]) -> None:
        """Register `receive` to be called with each frame that leaves by a port, which need not be attached."""
        self._listeners[port] = receive

    def send(self, frames: Frames) -> None:
        frames = list(frames)
        self._show(frames)
        self.ports.send(frames)

    def _show(self, frames: Frames) -> None:
        """Pass outgoing frames to listeners and to the log."""
        for port, data in frames:
            if port in self._listeners:
                self._listeners[port](data)
            self._dump("Sending", port, data)

    def _run(self, step: Callable[[], list[tuple[int, bytes]]]) -> None:
        """Send the frames that a step of the switch returns."""
        with self._guard():
            self.send(step())

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Serialize senders, and catch all errors: only a program's own abort ends the switch."""
        try:
            with self._order:
                yield
        except ProgramAbort as error:
            log.critical("%s", error)
            if self.on_abort is not None:
                self.on_abort(error)
        except Exception:
            log.exception("Dropping a packet")

    def _dump(self, verb: str, port: int, data: bytes) -> None:
        if self.dump_bytes:
            start = data[: self.dump_bytes].hex()
            log.info("%s packet of length %d on port %d: %s", verb, len(data), port, start)

    def _run_timer(self) -> None:
        """Send packets of rate-limited queues, and digests that are due."""
        while not self._closed.wait(self._pause_s()):
            self._run(self.switch.poll)

    def _pause_s(self) -> float:
        due = self.switch.next_us()
        return POLL_S if due is None else min(max((due - self.switch.clock()) / 1e6, 0.0002), POLL_S)

    def ports_up(self) -> set[int]:
        return {port.number for port in self.ports.show() if port.is_up}

    # Programs

    def _check_swap(self) -> None:
        if not self.can_swap:
            raise ControlError("Swap", "CONFIG_SWAP_DISABLED", "the switch was started without --enable-swap")

    def load_later(self, text: str) -> None:
        """Store a program for `swap` to activate."""
        self._check_swap()
        if self._next_program is not None:
            raise ControlError("Swap", "ONGOING_SWAP", "a program is waiting to be swapped in already")
        program = loader.loads(text)
        loader.check_runnable(program)
        self._next_program = program

    def swap(self) -> None:
        """Activate the stored program, with fresh state."""
        self._check_swap()
        if self._next_program is None:
            raise ControlError("Swap", "NO_ONGOING_SWAP", "no program was loaded")
        program, self._next_program = self._next_program, None
        self.switch.load(program)

    def serialize(self) -> str:
        """The state as text that `restore` reads."""
        return snapshot.save(self.state)

    def restore(self, path: str) -> None:
        """Restore the state from a file written by `serialize`. Raises ConfigError."""
        snapshot.restore(self.state, read_text(path, limit=1 << 30))
