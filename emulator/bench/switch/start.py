"""What `switchml bench switch --start` measures: how long a switch process takes from its start until the first frame
comes out of a port, and until all its compiled code runs; on this machine's first start ever (cold) and on any
later one (warm). Ports are UDP sockets, so it needs no root."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from emulator.bench.switch import engines as bench
from emulator.bench.switch import wire as bench_wire
from emulator.p4switch.program.loader import loader
from emulator.p4switch.state.state import State
from switchml.errors import ConfigError

TIMEOUT_S = 300.0
PAUSE_S = 0.005
"""Between two checks for a frame."""


@dataclass
class Starts:
    """Seconds from the start of the process. `…_full_s`: until the engine and the ports run compiled code."""

    program: str
    warm_first_packet_s: float
    warm_full_s: float
    cold_first_packet_s: float
    cold_full_s: float

    def to_json(self) -> dict:
        """As `--json` prints it."""
        return {key: round(value, 2) if isinstance(value, float) else value for key, value in asdict(self).items()}


def largest() -> Path:
    """The largest of the programs that `bench switch` measures."""
    return max(bench.default_programs(), key=lambda path: path.stat().st_size)


def measure(path: Path) -> Starts:
    """Start the switch with a program: without and with compiled code on disk. Raises ConfigError if it forwards
    nothing."""
    with tempfile.TemporaryDirectory() as cache:
        cold = _start(path, {"SWITCHML_CACHE_DIR": cache})
        warm = _start(path, {"SWITCHML_CACHE_DIR": cache})
    return Starts(path.stem, *warm, *cold)


def _start(path: Path, environment: dict[str, str]) -> tuple[float, float]:
    """(seconds to the first frame, seconds to full speed)."""
    program = loader.load(path)
    loader.check_runnable(program)
    state = State(program)
    frames = [bench.alone(path.stem, data) for _, data in bench.workload(path)(state)]
    entries = bench_wire.calls(state)
    sockets = [_socket() for _ in range(bench_wire.PORTS)]
    inputs = [_free_port(socket.SOCK_DGRAM) for _ in sockets]
    thrift_port = _free_port(socket.SOCK_STREAM)
    ports = [
        word
        for number, (sock, port) in enumerate(zip(sockets, inputs, strict=True))
        for word in ("-i", f"{number}@udp:127.0.0.1:{port},127.0.0.1:{sock.getsockname()[1]}")
    ]
    with tempfile.TemporaryDirectory() as folder:
        options = ["--thrift-port", str(thrift_port), "--notifications-addr", f"ipc://{folder}/notifications.ipc"]
        began = time.perf_counter()
        process = subprocess.Popen(
            [*bench_wire.OURS, *ports, *options, "--log-console", "-L", "info", str(path.resolve())],
            stdout=subprocess.PIPE, text=True, env={**os.environ, **environment},
        )  # fmt: skip
        ready: list[float] = []
        watcher = threading.Thread(target=_watch, args=(process, len(ports) // 2, began, ready))
        watcher.start()
        try:
            if entries:
                bench_wire.add_entries(entries, thrift_port, process)
            first = _first_frame(sockets, inputs[0], frames[0], process) - began
            watcher.join(TIMEOUT_S)
        finally:
            process.terminate()
            process.wait(20)
            watcher.join()
            for sock in sockets:
                sock.close()
    if not ready:
        raise ConfigError(f"{path.name} never ran on compiled code: the switch's log says why")
    return first, ready[0]


def _socket() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    return sock


def _free_port(kind: int) -> int:
    with socket.socket(socket.AF_INET, kind) as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def _watch(process: subprocess.Popen, n_ports: int, began: float, ready: list[float]) -> None:
    """Append the time to `ready` when the log has reported the engine and all ports."""
    missing = [bench_wire.ENGINE_READY, *[bench_wire.PORT_READY] * n_ports]
    for line in process.stdout:
        message = next((text for text in missing if text in line), None)
        if message is not None:
            missing.remove(message)
            if not missing:
                ready.append(time.perf_counter() - began)
                return


def _first_frame(sockets: list[socket.socket], port: int, frame: bytes, process: subprocess.Popen) -> float:
    """The time at which the first frame came out, sent as soon as the port existed."""
    deadline = time.perf_counter() + TIMEOUT_S
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.connect(("127.0.0.1", port))
        sender.send(frame)
        while time.perf_counter() < deadline:
            if process.poll() is not None:
                raise ConfigError(f"the switch ended with exit code {process.returncode}")
            if select.select(sockets, [], [], PAUSE_S)[0]:
                return time.perf_counter()
            if sender.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):  # refused: there was no port yet
                sender.send(frame)
    raise ConfigError(f"nothing came out of the switch in {TIMEOUT_S:.0f} s")
