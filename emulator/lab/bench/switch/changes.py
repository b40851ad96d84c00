"""Measurement of `switchml bench switch --changes`: the cost of an insert, a change and a delete in tables of 100 to
100,000 entries, and the longest interruption of traffic by them.

The table is changed through the state, as the control interfaces do; first between packets, then by one thread while
another sends packets through the engine."""

from __future__ import annotations

import gc
import json
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from emulator.lab.bench.switch.figures import Figures
from emulator.p4switch.engine.engine import CompiledEngine
from emulator.p4switch.interpreter.interpreter import Interpreter
from emulator.p4switch.pauses import avoid_pauses
from emulator.p4switch.program import ir
from emulator.p4switch.program.loader import loader
from emulator.p4switch.state.action_profiles import RunAction
from emulator.p4switch.state.tables import MatchTable
from emulator.p4switch.switch import Switch
from switchml.errors import ConfigError, ControlError

Step = Callable[[], Any]
_Key = tuple[list[ir.MatchParam], int]
ENGINES: dict[str, Any] = {"compiled": CompiledEngine, "interpreted": Interpreter}
SIZES = (100, 1_000, 10_000, 100_000)
N_CHANGES = 500
"""Number of inserts, changes and deletes measured, each."""
PAUSE_S = 0.0005
"""Pause between two changes: a control plane waits for its replies."""
ARRIVAL_S = 0.0001
"""Time between packet arrivals, during which the sending thread sleeps as a port's thread does."""
N_ROWS = len(ENGINES) * len(SIZES)
FRAME = bytes(14) + bytes([0x45]) + bytes(45)


@dataclass
class Costs(Figures):
    """Median times in µs, including the extra time that a change adds to the next packet; and the longest time in ms
    between two packets while another thread changes the table."""

    program: str
    table: str
    engine: str
    entries: int
    insert_us: float
    change_us: float
    delete_us: float
    read_us: float
    gap_ms: float


def measure(path: Path, sizes: tuple[int, ...] = SIZES) -> Iterator[Costs]:
    """Measure the first keyed table of a program. Raises ConfigError if there is no suitable table."""
    for engine in ENGINES:
        for size in sizes:
            yield _measure(path, engine, size)


def _roomy(path: Path, size: int) -> ir.Program:
    """The program with all tables' max_size raised to at least `size` entries."""
    root = json.loads(loader.load(path).text)
    for table in (table for pipeline in root["pipelines"] for table in pipeline["tables"]):
        table["max_size"] = max(table.get("max_size", 0), size)
    return loader.loads(json.dumps(root))


def _measure(path: Path, engine: str, size: int) -> Costs:
    switch = Switch(_roomy(path, size + 2 * N_CHANGES), engine=ENGINES[engine])
    tables = [table for table in switch.state.tables if table.table.key and not table.is_immutable]
    tables = [table for table in tables if table.table.type == ir.SIMPLE]
    if not tables:
        raise ConfigError(f"{path.name} has no table of actions to which entries can be added")
    table, source = tables[0], random.Random(1)
    run = _run(table)
    handles = _fill(table, run, size, source)
    more = [_key(table, source) for _ in range(2 * N_CHANGES)]
    avoid_pauses(switch)
    packet_us = _each([partial(switch.receive, 0, FRAME)] * N_CHANGES)
    kinds = _steps(table, handles, more, run, source)
    costs = [_each([partial(_with_packet, switch, step) for step in steps]) - packet_us for steps in kinds]
    insert_us, change_us, delete_us, read_us = (max(cost, 0.0) for cost in costs)
    with _Traffic(switch) as traffic:
        for steps in _steps(table, handles, more, run, source):
            _each(steps, PAUSE_S)
    gc.unfreeze()
    return Costs(path.stem, table.name, engine, size, insert_us, change_us, delete_us, read_us, traffic.gap_s * 1e3)


def _with_packet(switch: Switch, step: Step) -> None:
    """Apply a change, then process a packet."""
    step()
    switch.receive(0, FRAME)


def _steps(
    table: MatchTable, handles: list[int], keys: list[_Key], run: RunAction, source: random.Random
) -> Iterator[list[Step]]:
    """Steps of each kind: inserts, changes, deletes and reads."""
    yield [partial(_add_to, handles, table, key, run) for key in keys]
    chosen = source.sample(handles, min(N_CHANGES, len(handles) // 2))
    yield [partial(table.modify, handle, run) for handle in chosen]
    yield [partial(table.delete, handle) for handle in chosen]
    gone = set(chosen)
    handles[:] = [handle for handle in handles if handle not in gone]
    yield [partial(_read, table, handle) for handle in source.sample(handles, min(N_CHANGES, len(handles)))]


def _run(table: MatchTable) -> RunAction:
    action = table.table.actions[0]
    return RunAction(action, tuple(0 for _ in table.program.actions[action].params))


def _key(table: MatchTable, source: random.Random) -> _Key:
    """A random key with few distinct masks and many prefixes, and a priority."""
    fields = []
    for field, width in zip(table.table.key, table.widths, strict=True):
        value, top = source.getrandbits(width), (1 << width) - 1
        extra = {
            "lpm": source.randint(max(width - 8, 0), width),
            "ternary": source.choice((top, top >> 8 << 8)),
            "range": source.randint(value, top),
        }.get(field.kind, 0)
        fields.append(ir.MatchParam(field.kind, value & 1 if field.kind == "valid" else value, extra))
    return fields, source.randrange(1 << 16)


def _add_to(handles: list[int], table: MatchTable, key: _Key, run: RunAction) -> None:
    handles.append(table.add(key[0], run, key[1]))


def _fill(table: MatchTable, run: RunAction, size: int, source: random.Random) -> list[int]:
    handles: list[int] = []
    for _ in range(3 * size):
        if len(handles) == size:
            return handles
        try:
            _add_to(handles, table, _key(table, source), run)
        except ControlError as error:
            if error.code != "DUPLICATE_ENTRY":
                raise
    raise ConfigError(f"table {table.name}: its key is too narrow for {size} entries")


def _read(table: MatchTable, handle: int) -> None:
    entry = table.entry(handle)
    table.entry_from_key(entry.match, entry.priority)


def _each(steps: list[Step], pause_s: float = 0.0) -> float:
    """Median time of a step, in µs; duplicate keys are skipped."""
    times = []
    for step in steps:
        start = time.perf_counter()
        try:
            step()
        except ControlError as error:
            if error.code != "DUPLICATE_ENTRY":
                raise
            continue
        times.append(time.perf_counter() - start)
        if len(times) == N_CHANGES:
            break
        if pause_s:
            time.sleep(pause_s)
    return 1e6 * statistics.median(times)


class _Traffic:
    """A context manager whose thread sends frames. `gap_s`: the longest time between two frames."""

    def __init__(self, switch: Switch) -> None:
        self._switch, self.gap_s, self._is_over = switch, 0.0, False
        self._thread = threading.Thread(target=self._send, name="traffic", daemon=True)

    def _send(self) -> None:
        last = time.perf_counter()
        while not self._is_over:
            time.sleep(ARRIVAL_S)
            self._switch.receive(0, FRAME)
            now = time.perf_counter()
            self.gap_s, last = max(self.gap_s, now - last), now

    def __enter__(self) -> _Traffic:
        self._switch.receive(0, FRAME)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join()
