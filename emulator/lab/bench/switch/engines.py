"""Measurement of `switchml bench switch`: packets per second through the compiled engine alone (one core, frames and
results in memory), through the reference interpreter, and on the wire, compared with simple_switch.

The programs of WORKLOADS have table entries and frames that exercise them; any other program uses those of an STF file,
or else small frames of zeros and its own const entries."""

import random
import shutil
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from emulator.lab.bench.switch.figures import Figures
from emulator.p4switch.engine.code import Unsupported
from emulator.p4switch.engine.engine import CompiledEngine
from emulator.p4switch.hashes import csum16
from emulator.p4switch.interpreter.interpreter import Interpreter
from emulator.p4switch.program import ir
from emulator.p4switch.program.loader import loader
from emulator.p4switch.state.action_profiles import RunAction
from emulator.p4switch.state.state import State
from emulator.p4switch.stf import stf
from switchml.errors import ConfigError
from switchml.files import read_text, reading

Frames = list[tuple[int, bytes]]
PROGRAMS = Path(__file__).with_name("programs")
"""The programs of WORKLOADS as compiled by p4c; their sources are in tests/programs/."""
N_ROUTES = 1000
N_SLOTS = 256
N_SENDERS = 4
BATCH = 64
"""Frames passed to the engine at once, as by the ports."""
ROUNDS = 5
"""Rounds of a measurement; the fastest is used, as other load only slows the rest."""
WIRE_ROUNDS = 3
"""Rounds of a measurement with switch processes."""
ETHERNET = bytes.fromhex("00aa0000000100aa00000002")


@dataclass
class Result(Figures):
    """Rates in packets/s; None if not measured. `ratio`: wire over simple_switch, else engine over reference."""

    digits = 1

    program: str
    engine_pps: float | None = None
    reference_pps: float | None = None
    wire_pps: float | None = None
    simple_switch_pps: float | None = None
    ratio: float | None = None


# Workloads


def forwarding(state: State) -> Frames:
    """Add a thousand routes with prefixes of 16 to 32 bits to the program's lpm table. Returns 60-byte UDP packets to
    addresses within them."""
    source = random.Random(1)
    table = next(table for table in state.tables if table.table.match_type == "lpm")
    route = next(action for action in table.table.actions if len(state.program.actions[action].params) == 2)
    prefixes: dict[tuple[int, int], None] = {}
    while len(prefixes) < N_ROUTES:
        length = source.choice((16, 20, 22, 24, 24, 24, 24, 28, 32))
        prefixes[source.getrandbits(length) << (32 - length), length] = None
    frames = []
    for number, (prefix, length) in enumerate(prefixes):
        next_hop = source.getrandbits(48) & ~(1 << 40), source.randrange(8)
        table.add([ir.MatchParam("lpm", prefix, length)], RunAction(route, next_hop))
        address = prefix | source.getrandbits(32) >> length
        header = struct.pack(">BBHHHBBHII", 0x45, 0, 46, number, 0, 64, 17, 0, 0x0A000001, address)
        header = header[:10] + struct.pack(">H", csum16(header)) + header[12:]
        frames.append((source.randrange(8), ETHERNET + b"\x08\x00" + header + bytes(26)))
    source.shuffle(frames)
    return frames


def aggregation(lanes: int) -> Callable[[State], Frames]:
    """Frames of `lanes` 32-bit lanes; four senders fill one slot after the other, and the fourth receives the sum."""

    def frames(state: State) -> Frames:
        source, all_senders = random.Random(1), (1 << N_SENDERS) - 1
        return [
            (
                sender,
                ETHERNET
                + b"\x88\xb5"
                + struct.pack(">HHHH", slot, 1 << sender, all_senders, 0)
                + source.randbytes(4 * lanes),
            )
            for slot in range(N_SLOTS)
            for sender in range(N_SENDERS)
        ]

    return frames


def zeros(state: State) -> Frames:
    """Small frames of zeros, for an unknown program."""
    return [(0, bytes(60))] * N_SLOTS


WORKLOADS: dict[str, Callable[[State], Frames]] = {
    "l3": forwarding,
    "agg_wide_64": aggregation(64),
    "agg_wide_256": aggregation(256),
    "agg_unrolled_64": aggregation(64),
    "agg_unrolled_256": aggregation(256),
}
"""Programs measured by default, and their workloads."""


def from_stf(path: Path) -> Callable[[State], Frames]:
    """The entries and packets of an STF file."""

    def frames(state: State) -> Frames:
        with reading(path, ConfigError):
            packets = stf.load(state, read_text(path))
            if not packets:
                raise ConfigError("there is no packet in it")
        return packets * -(-N_SLOTS // len(packets))

    return frames


def workload(path: Path, stf_path: Path | None = None) -> Callable[[State], Frames]:
    """A program's workload: from an STF file, or else by its name."""
    return from_stf(stf_path) if stf_path else WORKLOADS.get(path.stem, zeros)


def default_programs() -> list[Path]:
    """The programs of WORKLOADS."""
    return [PROGRAMS / f"{name}.json" for name in WORKLOADS]


# Measurements


def engine_pps(program: ir.Program, work: Callable[[State], Frames], seconds: float = 1.0) -> float:
    """Packets per second of the compiled engine, in batches. Raises Unsupported."""
    state = State(program)
    frames = work(state)
    engine = CompiledEngine(state)
    ports = np.array([port for port, _ in frames], dtype=np.int64)
    lengths = np.array([len(data) for _, data in frames], dtype=np.int64)
    data = np.frombuffer(b"".join(data for _, data in frames) + bytes(64), dtype=np.uint8)
    addresses = data.ctypes.data + np.cumsum(lengths) - lengths
    n_batches = max(len(frames) // BATCH, 1)

    def once() -> int:
        for i in range(n_batches):
            part = slice(i * BATCH, (i + 1) * BATCH)
            engine.process(ports[part], addresses[part], lengths[part], lambda records: None)
        return min(n_batches * BATCH, len(frames))

    return _rate(once, seconds)


def reference_pps(program: ir.Program, work: Callable[[State], Frames], seconds: float = 1.0) -> float:
    """Packets per second of the interpreter, packet by packet."""
    state = State(program)
    frames = work(state)
    interpreter = Interpreter(state)
    position = 0

    def once() -> int:
        nonlocal position
        port, data = frames[position]
        position = (position + 1) % len(frames)
        interpreter.receive(port, data)
        return 1

    return _rate(once, seconds)


def _rate(once: Callable[[], int], seconds: float) -> float:
    """Operations per second: the best of ROUNDS rounds after a warm-up. `once` runs some operations and returns their
    number."""
    once()
    best = 0.0
    for _ in range(ROUNDS):
        n, start = 0, time.perf_counter()
        while (spent := time.perf_counter() - start) < seconds / ROUNDS:
            n += once()
        best = max(best, n / spent)
    return best


def measure(
    path: Path, *, seconds: float = 1.0, wire: bool = False, against: str | None = None, stf_path: Path | None = None
) -> Result:
    """Measure one program, with the entries and packets of `stf_path`, if given. `wire`: also through veth pairs;
    `against`: also this simple_switch, through veth pairs. On the wire, each frame of an aggregation completes its slot
    by itself, so that every forwarded frame can be counted."""
    program = loader.load(path)
    loader.check_runnable(program)
    work = workload(path, stf_path)
    result = Result(path.stem)
    try:
        result.engine_pps = engine_pps(program, work, seconds)
    except Unsupported as error:
        raise ConfigError(f"the compiled engine can't run {path.name}: {error}") from error
    result.reference_pps = reference_pps(program, work, seconds)
    result.ratio = result.engine_pps / result.reference_pps
    if wire or against:
        _on_the_wire(result, path, program, work, seconds, against)
    return result


def _on_the_wire(
    result: Result,
    path: Path,
    program: ir.Program,
    work: Callable[[State], Frames],
    seconds: float,
    against: str | None,
) -> None:
    from emulator.lab.bench.switch import wire as bench_wire  # a compiled module

    if not bench_wire.can_measure():
        raise ConfigError("measuring on the wire needs root and ip(8)")
    if against and shutil.which(against) is None:
        raise ConfigError(f"--against: there is no program {against!r} (looked for on PATH)")
    state = State(program)
    frames = [alone(path.stem, data) for _, data in work(state)]
    entries = bench_wire.calls(state)
    switches = {"wire_pps": bench_wire.OURS} | ({"simple_switch_pps": [against]} if against else {})
    rates: dict[str, list[float]] = {name: [] for name in switches}
    for _ in range(WIRE_ROUNDS):
        for name, command in switches.items():  # alternating, so that other load on the machine affects both
            rates[name].append(bench_wire.pps(command, path, entries, frames, seconds))
    result.wire_pps = max(rates["wire_pps"])
    if against:
        result.simple_switch_pps = max(rates["simple_switch_pps"])
        result.ratio = result.wire_pps / result.simple_switch_pps if result.simple_switch_pps else None


def alone(name: str, data: bytes) -> bytes:
    """An aggregation frame whose bitmap contains all senders, so that it completes its slot by itself."""
    return data[:18] + data[16:18] + data[20:] if name.startswith("agg_") else data
