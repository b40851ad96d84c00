"""Measurement of `switchml bench switch --start`: time from the start of a switch process until the first frame leaves
a port, and until all its compiled code runs; on a machine's first start (cold) and on later ones (warm). Ports are UDP
sockets, so it needs no root."""

import contextlib
import select
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from emulator.lab.bench.switch import engines as bench
from emulator.lab.bench.switch import wire as bench_wire
from emulator.lab.bench.switch.figures import Figures
from emulator.p4switch.program.loader import loader
from emulator.p4switch.state.state import State
from switchml.errors import ConfigError
from switchml.net.ports import free_port

TIMEOUT_S = 300.0


@dataclass
class Starts(Figures):
    """Seconds from the start of the process. `…_full_s`: until the engine and the ports run compiled code."""

    program: str
    warm_first_packet_s: float
    warm_full_s: float
    cold_first_packet_s: float
    cold_full_s: float


def largest() -> Path:
    """The largest of the programs that `bench switch` measures by default."""
    return max(bench.default_programs(), key=lambda path: path.stat().st_size)


def measure(path: Path, stf_path: Path | None = None) -> Starts:
    """Start the switch with a program and an STF file's entries, without and with compiled code on disk. Raises
    ConfigError if no frame is forwarded."""
    with tempfile.TemporaryDirectory() as cache:
        cold = _start(path, stf_path, {"SWITCHML_CACHE_DIR": cache})
        warm = _start(path, stf_path, {"SWITCHML_CACHE_DIR": cache})
    return Starts(path.stem, *warm, *cold)


def _start(path: Path, stf_path: Path | None, environment: dict[str, str]) -> tuple[float, float]:
    """(seconds to the first frame, seconds until compiled code runs)."""
    program = loader.load(path)
    loader.check_runnable(program)
    state = State(program)
    frames = [bench.alone(path.stem, data) for _, data in bench.workload(path, stf_path)(state)]
    entries = bench_wire.calls(state)
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(_socket()) for _ in range(bench_wire.PORTS)]
        inputs = [free_port(socket.SOCK_DGRAM) for _ in sockets]
        ports = [
            f"udp:127.0.0.1:{port},127.0.0.1:{sock.getsockname()[1]}"
            for sock, port in zip(sockets, inputs, strict=True)
        ]
        began_s = time.perf_counter()
        process, log = stack.enter_context(bench_wire.running(bench_wire.OURS, path, ports, entries, environment))
        first_s = _first_frame(sockets, inputs[0], frames[0], process) - began_s
        bench_wire.await_compiled(process, log)
        return first_s, time.perf_counter() - began_s


def _socket() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    return sock


def _first_frame(sockets: list[socket.socket], port: int, frame: bytes, process: subprocess.Popen[bytes]) -> float:
    """Time at which the first frame was received. The first socket, connected to `port`, resends
    until the port exists."""
    deadline = time.perf_counter() + TIMEOUT_S
    sender = sockets[0]
    sender.connect(("127.0.0.1", port))
    sender.send(frame)
    while time.perf_counter() < deadline:
        if process.poll() is not None:
            raise ConfigError(f"the switch ended with exit code {process.returncode}")
        has_come = select.select(sockets, [], [], bench_wire.PAUSE_S)[0]
        if sender.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):  # refused: the port did not exist yet
            sender.send(frame)
        elif has_come:
            return time.perf_counter()
    raise ConfigError(f"the switch sent no packets in {TIMEOUT_S:.0f} s")
