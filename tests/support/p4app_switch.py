"""p4app-switchML's own program on the model of a Tofino, set up by its own controller: python -m … FOLDER HARNESS
DEV_ROOT RANKS LOSE prints the controller's port, and moves datagrams between hosts on loopback and the model, all but
each LOSE-th (0: all). FOLDER has the program's image/; DEV_ROOT is the reference's.

The host of rank r is at port r of the chip. Its MAC address is the one that our agents tell on loopback.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import ipaddress
import itertools
import json
import os
import select
import socket
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

from grpc_tools import protoc

from switchml.control.p4.tables import Group, address_number
from switchml.protocol.packet import UDP_PORT
from tests.support import bf_runtime
from tests.support.p4_frames import Datagram, read_udp, udp
from tests.support.tofino_model import MARK_MAC, MARK_PORT, Model

HOSTS, FIRST_MAC = MARK_PORT, 0x02_00_00_00_00_00
HOST_IPS = [f"127.0.79.{port + 1}" for port in range(HOSTS)]
SWITCH_IP, SWITCH_MAC = "127.0.79.254", "00:11:22:33:44:55"
_FLOOD = 0x8000
_MOST = 64
_LATE_S = 0.002
_LOOPBACK = 1 << 7
"""Front-panel ports of pipes 1 to 3, by which packets of 1024 bytes pass through all pipes."""


def main(folder: Path, harness: str, dev_root: Path, ranks: int, lose: int) -> None:
    groups = (
        Group(0, tuple((rank, rank) for rank in range(ranks))),
        Group(_FLOOD, tuple((_FLOOD + port, port) for port in range(MARK_PORT + 1))),
    )
    model = Model(harness, folder / "image", folder, groups)
    lock = threading.RLock()
    client = bf_runtime.Client(model, lock)
    with contextlib.redirect_stdout(sys.stderr):
        controller = _controller(folder, dev_root, client)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((SWITCH_IP, UDP_PORT))
        threading.Thread(target=_relay, args=(sock, model, lock, lose), daemon=True).start()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            controller.grpc_server.ip, controller.grpc_server.port = free.getsockname()
        print(controller.grpc_server.port, flush=True)
        controller.grpc_server.run(controller.event_loop, controller)


def _controller(folder: Path, dev_root: Path, client: bf_runtime.Client):
    """Theirs, set up."""
    bf_runtime.install(client)
    protos = dev_root / "protos"
    arguments = [f"-I{protos}", f"--python_out={folder}", f"--grpc_python_out={folder}", str(protos / "switchml.proto")]
    assert protoc.main(["protoc", *arguments]) == 0
    addresses = {port: FIRST_MAC + port for port in range(HOSTS)} | {MARK_PORT: MARK_MAC}
    ports = {f"{port + 1}/0": {"mac": _colons(mac)} for port, mac in addresses.items()}
    (folder / "ports.yaml").write_text(json.dumps({"ports": ports}))
    sys.modules["cli"] = SimpleNamespace(Cli=MagicMock())  # for people who type; it needs more packages
    sys.path[:0] = [str(folder), str(dev_root / "controller")]
    os.environ["SDE_INSTALL"] = str(folder)
    (folder / "lib" / "python3" / "site-packages" / "tofino").mkdir(parents=True)  # where it expects bfrt_grpc
    spec = importlib.util.spec_from_file_location("p4app", dev_root / "controller" / "switchml.py")
    theirs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(theirs)
    asyncio.set_event_loop(asyncio.new_event_loop())
    controller = theirs.SwitchML()
    controller.setup("switchml", SWITCH_MAC, SWITCH_IP, "127.0.0.1", 0, str(folder / "ports.yaml"), True)
    return controller


def _colons(mac: int) -> str:
    return mac.to_bytes(6, "big").hex(":").upper()


def _relay(sock: socket.socket, model: Model, lock: threading.RLock, lose: int) -> None:
    """Datagrams of hosts to the model, and what leaves it back to them, or in again where its ports are in loopback."""
    switch = int(SWITCH_MAC.replace(":", ""), 16), address_number(SWITCH_IP), UDP_PORT
    frames: list[tuple[int, bytes]] = []
    numbers = itertools.count(1)
    arrives = lambda: not lose or next(numbers) % lose != 0  # noqa: E731
    while True:
        select.select([sock], [], [], 0 if frames else _LATE_S)
        while len(frames) < _MOST and select.select([sock], [], [], 0)[0]:
            data, (ip, port) = sock.recvfrom(1 << 16)
            rank = HOST_IPS.index(ip)
            if arrives():
                frames.append((rank, udp(Datagram((FIRST_MAC + rank, address_number(ip), port), switch, data))))
        with lock:
            left = model.receive(*frames) if frames else model.late()
        frames = [(port, frame) for port, frame in left if port >= _LOOPBACK]
        for port, frame in left:
            if port < _LOOPBACK and arrives():
                _, (_, ip, port), data = read_udp(frame)
                sock.sendto(data, (str(ipaddress.IPv4Address(ip)), port))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), *map(int, sys.argv[4:]))
