"""Runs the real simple_switch on a program: commands in through simple_switch_CLI, packets in and out through files.

simple_switch reads its input from named pipes (`--use-files`), in the order of the packets' times, as fast as it can.
It takes a packet only when it knows the next one of every pipe; so `_feed` holds back the packet that follows the last
one on its pipe. Packets are 15 ms apart: each has left before the next comes, and two runs give the same bytes.
"""

import os
import re
import socket
import struct
import subprocess
import tempfile
import time
from pathlib import Path

GAP_S = 0.015
START_TIMEOUT_S = 60.0
SETTLE_S = 1.0  # after the last packet: egress and the output file

PCAP_HEADER = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 1 << 16, 1)


class SwitchDied(Exception):
    """simple_switch ended by itself; `args[0]` is its exit status, negative for a signal."""


def run(
    switch: str, cli: str, program: Path, commands: list[str], packets: list[tuple[int, bytes]], ports: int, after=()
) -> tuple[dict[int, list[bytes]], str, str]:
    """Give `packets` to simple_switch, one at a time. `after` are commands for when all is done.

    Returns what left on each port in order, and the CLI's output on `commands` and on `after`.
    """
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        thrift_port = probe.getsockname()[1]
        probe.close()
        for port in range(ports):
            os.mkfifo(Path(folder, f"p{port}_in.pcap"))
        interfaces = [word for port in range(ports) for word in ("-i", f"{port}@p{port}")]
        process = subprocess.Popen(
            [switch, "--use-files", "0", "--thrift-port", str(thrift_port), "--device-id", str(thrift_port)]
            + ["--notifications-addr", f"ipc://{folder}/notifications.ipc", *interfaces, str(program.resolve())],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            pipes = [_open(Path(folder, f"p{port}_in.pcap"), process) for port in range(ports)]
            _await_thrift(thrift_port, process)
            transcript = command(cli, thrift_port, commands)
            _feed(pipes, packets, process)
            time.sleep(SETTLE_S)
            if process.poll() is not None:
                raise SwitchDied(process.returncode)
            ending = command(cli, thrift_port, after) if after else ""
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:  # it hangs in its destructors now and then
                process.kill()
                process.wait()
        return {port: _read(Path(folder, f"p{port}_out.pcap")) for port in range(ports)}, transcript, ending


def command(cli: str, thrift_port: int, commands) -> str:
    """Run simple_switch_CLI on `commands`; its output. Raises RuntimeError if it gives up on one."""
    done = subprocess.run(
        [cli, "--thrift-port", str(thrift_port)],
        input="\n".join([*commands, ""]),
        capture_output=True,
        text=True,
        timeout=60,
    )
    if "Traceback" in done.stderr:
        raise RuntimeError(f"simple_switch_CLI failed:\n{done.stderr}")
    return done.stdout + done.stderr


def counted(reply: str) -> tuple[int, int]:
    """(packets, bytes) of what counter_read printed: `7 packets`, or `packets=7` before BMv2 1.15."""
    matches = [re.search(rf"(\d+) {unit}|{unit}=(\d+)", reply) for unit in ("packets", "bytes")]
    return tuple(int(match[1] or match[2]) for match in matches)


def _open(pipe: Path, process: subprocess.Popen) -> int:
    """Open a pipe for writing once simple_switch reads it (it opens them one after the other), and write the header."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
            break
        except OSError as problem:  # ENXIO: nobody reads it yet
            if process.poll() is not None:
                raise SwitchDied(process.returncode) from None
            if time.monotonic() > deadline:
                raise TimeoutError(f"simple_switch did not open {pipe.name}") from problem
            time.sleep(0.005)
    os.set_blocking(descriptor, True)
    os.write(descriptor, PCAP_HEADER)
    return descriptor


def _await_thrift(port: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SwitchDied(process.returncode)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise TimeoutError("simple_switch's Thrift server does not answer")


def _feed(pipes: list[int], packets: list[tuple[int, bytes]], process: subprocess.Popen) -> None:
    """Let simple_switch take one packet after the other. The first packet of each pipe is written at once; then each
    write of the next one, on the pipe whose packet was taken last, makes it take one more."""
    queues: list[list[bytes]] = [[] for _ in pipes]
    for number, (port, data) in enumerate(packets):
        queues[port].append(struct.pack("<IIII", 1, number, len(data), len(data)) + data)

    def advance(port: int) -> None:
        if queues[port]:
            os.write(pipes[port], queues[port].pop(0))
        else:
            os.close(pipes[port])

    try:
        for port in range(len(pipes)):
            advance(port)
        for port, _ in packets:
            time.sleep(GAP_S)
            advance(port)
    except BrokenPipeError:
        raise SwitchDied(process.wait(10)) from None


def _read(path: Path) -> list[bytes]:
    data, at, out = path.read_bytes(), len(PCAP_HEADER), []
    while at + 16 <= len(data):
        length = struct.unpack_from("<I", data, at + 8)[0]
        out.append(data[at + 16 : at + 16 + length])
        at += 16 + length
    return out
