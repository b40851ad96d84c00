"""A running switch: a program, its state, and the engine that processes packets, without threads.

`receive` takes a frame and returns the outgoing ones. With a clock that is advanced only by a test, its behavior is
deterministic.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import RLock
from typing import TYPE_CHECKING

from emulator.p4switch.interpreter.interpreter import Interpreter
from emulator.p4switch.packet_path.engine import Engine, Sent
from emulator.p4switch.program import ir
from emulator.p4switch.program.loader import loader
from emulator.p4switch.state.state import State

if TYPE_CHECKING:
    import numpy as np

DROP_PORT = 511


MakeEngine = Callable[[State, int, int, int | None], Engine]
"""Creates an engine from (state, drop_port, n_priorities, seed)."""


def running_clock() -> Callable[[], int]:
    """A clock that returns µs since its creation."""
    start = time.monotonic_ns()
    return lambda: (time.monotonic_ns() - start) // 1000


class Switch:
    """A switch that runs `program`. `clock` returns µs since the switch started. `drop_port` and `n_priorities` are
    simple_switch's --drop-port and --priority-queues; `seed` makes random() repeatable; `engine` creates the Engine.
    The control plane operates on `state`, under `lock`; the functions in `on_load` are called with the state of each
    program loaded later. Raises ProgramError for a program for neither simple_switch nor psa_switch."""

    def __init__(
        self,
        program: ir.Program,
        *,
        clock: Callable[[], int] | None = None,
        drop_port: int = DROP_PORT,
        n_priorities: int = 1,
        seed: int | None = None,
        engine: MakeEngine = Interpreter,
    ) -> None:
        self.clock = clock or running_clock()
        self.drop_port = drop_port
        self.n_priorities = n_priorities
        self.seed = seed
        self.make_engine = engine
        self.on_load: list[Callable[[State], None]] = []
        self.lock = RLock()
        self.load(program)

    def load(self, program: ir.Program) -> None:
        """Load and run another program, with fresh state."""
        loader.check_runnable(program)
        self.run(State(program, self.clock, self.lock))

    def run(self, state: State) -> None:
        """Run the program of a state, which must have this switch's clock and lock."""
        engine = self.make_engine(state, self.drop_port, self.n_priorities, self.seed)
        with self.lock:
            self.program, self.state, self.engine = state.program, state, engine
            self._next_engine: Engine | None = None
        for watch in self.on_load:
            watch(state)

    def change_engine(self, make: MakeEngine) -> Engine:
        """Switch this program, and those loaded later, to another kind of engine. It takes over the state once no
        packet waits in the old engine's queues; packets are processed while it is created."""
        self.make_engine = make
        state = self.state
        engine = make(state, self.drop_port, self.n_priorities, self.seed)
        with self.lock:
            if self.state is state:  # otherwise another program was loaded meanwhile, with this kind of engine
                self._next_engine = engine
                self._try_to_change()
        return engine

    def _try_to_change(self) -> None:
        if self._next_engine is not None and self.engine.next_us() is None:
            self.engine, self._next_engine = self._next_engine, None

    def receive(self, port: int, data: bytes) -> Sent:
        """Receive a frame at a port; returns (port, frame) of all frames that leave now, in order."""
        with self.lock:
            self._try_to_change()
            return self.engine.receive(port, data)

    def process(
        self, ports: np.ndarray, addresses: np.ndarray, lengths: np.ndarray, send: Callable[[np.ndarray], None]
    ) -> None:
        """Receive a batch of frames, as Engine.process does."""
        with self.lock:
            self._try_to_change()
            self.engine.process(ports, addresses, lengths, send)

    def poll(self) -> Sent:
        """Frames that leave rate-limited queues because time has passed. Also sends digests that are due."""
        with self.lock:
            self._try_to_change()
            for digest in self.state.digests:
                digest.poll()
            return self.engine.poll()

    def next_us(self) -> float | None:
        """Time at which a packet may leave a queue or a digest is due, on the switch's clock; None if nothing waits."""
        with self.lock:
            digests = [digest.started_us + digest.timeout_us for digest in self.state.digests if digest.is_waiting]
            queued = self.engine.next_us()
            return min([*digests, *([] if queued is None else [queued])], default=None)
