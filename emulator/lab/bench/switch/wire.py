"""Measurement of `switchml bench switch` on the wire: a switch process between two veth pairs, offered more frames than
it can forward; the kernel counts those that leave it. Needs root and `ip`."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from emulator.networks.testbed.namespaces import run
from emulator.p4switch.state.action_profiles import RunAction
from emulator.p4switch.state.state import State
from emulator.p4switch.thrift.tables import match_to_wire
from switchml.control.thrift.client import Client
from switchml.errors import ConfigError
from switchml.net import packet_io, sockets
from switchml.net.ports import free_port

OURS = [sys.executable, "-m", "switchml", "switch"]
START_TIMEOUT_S, COMPILE_TIMEOUT_S = 90.0, 300.0
PAUSE_S = 0.005
"""Polling interval while a switch starts."""
ENGINE_READY, PORT_READY = "through the compiled engine", "is served by compiled code"
"""Log messages of the switch once its engine and each port run compiled code."""
PORTS = 2
BATCH = 64


def can_measure() -> bool:
    """Whether this process may create interfaces."""
    return os.geteuid() == 0 and shutil.which("ip") is not None


def calls(state: State) -> list[dict[str, Any]]:
    """Arguments of bm_mt_add_entry for the entries of all tables without const entries; ports are
    taken modulo PORTS."""
    arguments = []
    for table in (table for table in state.tables if not table.is_immutable):
        for entry in table.all_entries():
            assert isinstance(entry.target, RunAction)  # the programs measured have no action profiles
            action = state.program.actions[entry.target.action]
            data = [
                _bytes(value % PORTS if param.width == 9 else value, param.width)
                for param, value in zip(action.params, entry.target.args, strict=True)
            ]
            match, options = match_to_wire(table.table, entry.match), SimpleNamespace(priority=max(entry.priority, 0))
            arguments.append(
                {"table": table.name, "match": match, "action": action.name, "data": data, "options": options}
            )
    return arguments


def _bytes(value: int, width: int) -> bytes:
    return value.to_bytes((width + 7) // 8, "big")


@contextlib.contextmanager
def _interfaces() -> Iterator[list[str]]:
    """Create two veth pairs, benchN and benchNp. Yields the names of the first ends."""
    names = [f"bench{os.getpid() % 10000}{number}" for number in range(PORTS)]
    try:
        for name in names:
            run(["ip", "link", "add", name, "type", "veth", "peer", "name", f"{name}p"])
            for end in (name, f"{name}p"):
                Path(f"/proc/sys/net/ipv6/conf/{end}/disable_ipv6").write_text("1")
                run(["ip", "link", "set", end, "up"])
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "link", "del", name], capture_output=True, check=False)


def pps(
    command: list[str], program: Path, entries: list[dict[str, Any]], frames: list[bytes], seconds: float = 2.0
) -> float:
    """Frames per second that leave a switch, `command` (OURS or simple_switch), with `entries` in its tables and
    `frames` sent repeatedly."""
    with _interfaces() as names, running(command, program, names, entries) as (process, log):
        if command == OURS:
            await_compiled(process, log)
        return _offer(names, frames, seconds)


@contextlib.contextmanager
def running(
    command: list[str],
    program: Path,
    ports: list[str],
    entries: list[dict[str, Any]],
    environment: dict[str, str] | None = None,
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Start the process of a switch on the interfaces `ports`, with `entries` in its tables. Yields the process and its
    log file. Raises ConfigError if it does not serve Thrift."""
    with tempfile.TemporaryDirectory() as folder:
        options = [word for number, port in enumerate(ports) for word in ("-i", f"{number}@{port}")]
        options += ["--notifications-addr", f"ipc://{folder}/notifications.ipc"]
        if command == OURS:
            thrift = f"{folder}/thrift", 0
            options += ["--thrift-socket", thrift[0], "--log-console", "-L", "info"]
        else:
            thrift = "127.0.0.1", free_port()
            options += ["--thrift-port", str(thrift[1])]
        command = [*command, *options, str(program.resolve())]
        log = Path(folder) / "log"
        with log.open("w") as output:
            variables = os.environ | (environment or {})
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL, env=variables)
        try:
            if entries:
                with _client(thrift, process) as client:
                    for entry in entries:
                        client.call("standard", "bm_mt_add_entry", cxt=0, **entry)
            yield process, log
        finally:
            process.terminate()
            process.wait(20)


def await_compiled(process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until switchml's switch runs compiled code; before that, it forwards slowly. Raises ConfigError."""
    deadline = time.monotonic() + COMPILE_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        lines = log.read_text()
        if ENGINE_READY in lines and lines.count(PORT_READY) >= PORTS:
            return
        time.sleep(PAUSE_S)
    raise ConfigError("the switch never ran on compiled code; see the log of switchml switch")


def _client(thrift: tuple[str, int], process: subprocess.Popen[bytes]) -> Client:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError):
            return Client(*thrift)
        time.sleep(0.02)
    raise ConfigError("the switch did not start")


def _left(names: list[str]) -> int:
    """Frames that have left the switch so far."""
    return sum(int(Path(f"/sys/class/net/{name}p/statistics/rx_packets").read_text()) for name in names)


def _offer(names: list[str], frames: list[bytes], seconds: float) -> float:
    io = packet_io.new_packet_io()
    data = np.frombuffer(b"".join(frames) + bytes(64), dtype=np.uint8)
    lengths = np.array([len(frame) for frame in frames], dtype=np.int64)
    addresses = data.ctypes.data + np.cumsum(lengths) - lengths
    with sockets.new_packet_socket(f"{names[0]}p") as sock:
        sockets.attach(sock, f"{names[0]}p", 0, promiscuous=True)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _left(names):  # the switch forwards once its kernels are loaded
            if time.monotonic() > deadline:
                raise ConfigError("the switch sent no packets")
            packet_io.send_frames(io, sock.fileno(), addresses[:BATCH], lengths[:BATCH], packet_io.APART)
            time.sleep(0.1)
        for warm_up in (True, False):
            before, start, at = _left(names), time.perf_counter(), 0
            while time.perf_counter() - start < (seconds / 4 if warm_up else seconds):
                part = slice(at, at + BATCH)
                packet_io.send_frames(io, sock.fileno(), addresses[part], lengths[part], packet_io.APART)
                at = (at + BATCH) % (len(frames) // BATCH * BATCH)
            spent = time.perf_counter() - start
        return (_left(names) - before) / spent
