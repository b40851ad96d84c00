"""A running switch: a program, its state, and the engine that moves packets; everything in one process, no threads.

`receive` takes a frame in and returns those that leave. With a clock that only a test advances, its behaviour is
deterministic.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import RLock
from typing import Protocol

from emulator.p4switch.interpreter.path import Waiting
from emulator.p4switch.interpreter.psa import reference
from emulator.p4switch.program import ir
from emulator.p4switch.program.loader import loader
from emulator.p4switch.state.state import State

DROP_PORT = 511


class Engine(Protocol):
    """What moves packets through a program; `interpreter.path.Interpreter` is one. Made from (state, drop_port,
    n_priorities, seed). The switch's lock is held during all calls."""

    def receive(self, port: int, data: bytes) -> list[tuple[int, bytes]]:
        """Take a frame in; returns (port, frame) for all that leave now, in order."""

    def poll(self) -> list[tuple[int, bytes]]:
        """The frames that leave now without anything coming in."""

    def next_us(self) -> float | None:
        """When `poll` will next return something, on the switch's clock; None if nothing waits."""

    waiting: Waiting
    """Packets in queues, for another engine of the same state to take over."""


def running_clock() -> Callable[[], int]:
    """A clock that returns µs from now on."""
    start = time.monotonic_ns()
    return lambda: (time.monotonic_ns() - start) // 1000


class Switch:
    """A switch that runs `program`. `clock` gives µs since the switch started. `drop_port` and `n_priorities` are
    simple_switch's --drop-port and --priority-queues; `seed` makes random() repeatable; `engine` makes the Engine.

    `state` is what the control plane works on, under `lock`; `on_load` is called with each further program's.
    Raises ProgramError for a program that is for neither simple_switch nor psa_switch."""

    def __init__(
        self,
        program: ir.Program,
        *,
        clock: Callable[[], int] | None = None,
        drop_port: int = DROP_PORT,
        n_priorities: int = 1,
        seed: int | None = None,
        engine: Callable[[State, int, int, int | None], Engine] = reference,
    ) -> None:
        self.clock = clock or running_clock()
        self.drop_port = drop_port
        self.n_priorities = n_priorities
        self.seed = seed
        self.make_engine = engine
        self.on_load: Callable[[State], None] = lambda state: None
        self.lock = RLock()
        self.load(program)

    def load(self, program: ir.Program) -> None:
        """Run another program from now on, with fresh state."""
        loader.check_runnable(program)
        self.run(State(program, self.clock, self.lock))

    def run(self, state: State) -> None:
        """Run a state's program from now on. It has this switch's clock and lock."""
        engine = self.make_engine(state, self.drop_port, self.n_priorities, self.seed)
        with self.lock:
            self.program, self.state, self.engine = state.program, state, engine
        self.on_load(state)

    def receive(self, port: int, data: bytes) -> list[tuple[int, bytes]]:
        """Take a frame in at a port; returns (port, frame) for all that leave now, in order."""
        with self.lock:
            return self.engine.receive(port, data)

    def poll(self) -> list[tuple[int, bytes]]:
        """The frames that leave queues with a rate because time has passed. Also sends digests that are due."""
        with self.lock:
            for digest in self.state.digests:
                digest.poll()
            return self.engine.poll()

    def next_us(self) -> float | None:
        """When a packet may leave a queue or a digest is due, on the switch's clock; None if nothing waits."""
        with self.lock:
            digests = [digest.started_us + digest.timeout_us for digest in self.state.digests if digest.is_waiting]
            queued = self.engine.next_us()
            return min([*digests, *([] if queued is None else [queued])], default=None)
