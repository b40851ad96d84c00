"""What other users of the machine reach of a switch that the control plane started: not its control interfaces, and
its ports only with frames that it ignores."""

import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from switchml.control.p4.driver import UDP_PREFIX
from switchml.control.p4.tables import address_number
from switchml.control.thrift.client import Client
from switchml.protocol.packet import CONTRIBUTION, UDP_PORT
from tests.support.fresh import in_fresh_process
from tests.support.launch import contribution, good, join_all, leave_all, on_all, total
from tests.support.p4_frames import SWITCH_ADDRESS, SWITCH_MAC, Datagram, udp
from tests.support.p4_served import Served
from tests.support.packets import V2Packet
from tests.support.started import lasting

NOBODY = 65534
_TCP_LISTENS = "0A"
_UNIX_ACCEPTS = "00010000"


served = lasting(Served, "p4")


def as_nobody(do: Callable[..., Any], *args: Any) -> Any:
    """do(*args) in a process of user nobody's."""
    return in_fresh_process(do, *args, prepare=_become_nobody)


def _become_nobody() -> None:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def listening(pid: int) -> tuple[list[int], list[str]]:
    """(TCP ports, paths of Unix sockets) on which a process listens."""
    links = (os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir())
    inodes = {link[8:-1] for link in links if link.startswith("socket:[")}
    lines = [line.split() for name in ("tcp", "tcp6") for line in _lines(f"/proc/{pid}/net/{name}")]
    ports = [int(line[1].rpartition(":")[2], 16) for line in lines if line[3] == _TCP_LISTENS and line[9] in inodes]
    lines = [line.split() for line in _lines(f"/proc/{pid}/net/unix")]
    paths = [line[7] for line in lines if line[3] == _UNIX_ACCEPTS and line[6] in inodes and len(line) > 7]
    return ports, paths


def read_and_clear(path: str, count: int) -> list[str]:
    """Read a register of the switch at a Unix socket and clear a table, `count` times; how each ended."""
    return [_read_and_clear(path) for _ in range(count)]


def _read_and_clear(path: str) -> str:
    try:
        with Client(path) as client:
            client.call("standard", "bm_register_read_all", cxt=0, array="rounds")
            client.call("standard", "bm_mt_clear_entries", cxt=0, table="workers", reset_default=False)
    except OSError as error:
        return type(error).__name__
    return "done"


def connect(path: str) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock, contextlib.suppress(PermissionError):
        sock.connect(path)
        return "connected"
    return "refused"


@pytest.mark.root
def test_nobody_programs_a_switch_of_ours(served, attempts):
    agents = join_all(served.address, 2, job="private")
    try:
        ports, paths = listening(served.process.pid)
        assert ports == []
        assert served.process.thrift[0] in paths and len(paths) == 2  # the other one is for notifications
        before = served.inside()
        count = attempts.scaled(200)
        for path in paths:
            assert as_nobody(read_and_clear, path, count) == ["PermissionError"] * count
        with pytest.raises(PermissionError):
            as_nobody(os.listdir, str(Path(paths[0]).parent))
        assert served.inside() == before and before["workers"] == 2 + served.empty["workers"]
        attempts.record("Thrift calls of another user to a switch of ours", count * len(paths))
    finally:
        leave_all(agents)


@pytest.mark.root
def test_nobody_connects_to_p4runtime_on_a_unix_socket(tmp_path):
    pytest.importorskip("p4.v1", reason="needs the package p4runtime")
    from emulator.p4switch.device import Device
    from emulator.p4switch.p4runtime.server import P4RuntimeServer
    from emulator.p4switch.process import NO_PROGRAM
    from emulator.p4switch.program.loader.loader import load
    from emulator.p4switch.switch import Switch
    from switchml.control.p4.p4runtime import P4RuntimeSwitch
    from switchml.control.p4.processes import compiled
    from tests.support.p4runtime_controller import NoPorts

    path = f"/tmp/switchml-test-{os.getpid()}.sock"  # in a folder that everybody may enter
    before = os.umask(0)
    try:
        server = P4RuntimeServer(Device(Switch(load(NO_PROGRAM)), NoPorts()), f"unix:{path}")
    finally:
        os.umask(before)

    try:
        assert as_nobody(connect, path) == "refused"
        assert connect(path) == "connected"
        driver = P4RuntimeSwitch(f"unix:{path}", compiled("switchml"))
        assert driver.rows > 0
        driver.close()
    finally:
        server.close()


def forged(spec: Any, rank: int, mac: int, slot: int) -> bytes:
    """The frame of a contribution as rank `rank` would send it first, with all that the switch checks."""
    values = np.full(spec.payload_bytes // 4, 7, np.int32)
    packet = V2Packet(CONTRIBUTION, spec.isn + slot, spec.job_tag, 0, 0, 0, values, spec.wire)
    ip, port = spec.addresses[rank]
    here, there = (mac, address_number(ip), port), (SWITCH_MAC, address_number(SWITCH_ADDRESS), UDP_PORT)
    return udp(Datagram(here, there, packet.pack()))


def test_frames_of_strangers_reach_no_job(served, attempts):
    """Frames with everything right but the socket that they come from."""
    agents = join_all(served.address, 2, job="open", slots=64)
    count = attempts.scaled(2000)
    try:
        job = served.dataplane._jobs[served.job("open").job_id]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            for number in range(count):
                rank = number % 2
                link = job.links[rank]
                ip, port = link.where.removeprefix(UDP_PREFIX).split(":")
                stranger.sendto(forged(job.spec, rank, link.mac, number // 2 % 64), (ip, int(port)))
        assert [rank.counters["accepted"] for rank in served.job("open").ranks] == [0, 0]
        for seed in range(3):
            arrays = [contribution(seed, rank, 30_000) for rank in range(2)]
            results = good(on_all(agents, lambda agent, arrays=arrays: agent.allreduce(arrays[agent.rank])))
            for result in results:
                np.testing.assert_array_equal(result, total(seed, 2, 30_000))
        attempts.record("forged contributions at the ports of a switch", count)
    finally:
        leave_all(agents)
