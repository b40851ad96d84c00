"""P4Runtime beside traffic: writes ask for the state of ports while the ports' thread wants the state of tables."""

import itertools
import socket
import threading

import pytest

from emulator.p4switch import switch as switch_module
from emulator.p4switch.device import Device
from emulator.p4switch.p4runtime.server import P4RuntimeServer
from emulator.p4switch.ports.live import LivePorts
from emulator.p4switch.process import NO_PROGRAM
from emulator.p4switch.program.loader.loader import load
from emulator.p4switch.switch import Switch
from switchml.control.p4runtime_protos import v1
from tests.support.launch import until
from tests.support.lock_order import LockOrder
from tests.support.p4runtime_controller import CPU_PORT, Controller, short

WRITES = 60
"""A dead-lock came within 22."""


class Live:
    """A switch with P4Runtime on UDP ports 1 and 2, from which a thread sends frames to each other; all locks that
    several threads take are watched by `order`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.order = order = LockOrder()
        make = switch_module.RLock
        monkeypatch.setattr(switch_module, "RLock", lambda: order.watch("switch", make()))
        self.ports = LivePorts()
        self.ports._lock = order.watch("ports", self.ports._lock)
        self.device = Device(Switch(load(NO_PROGRAM)), self.ports)
        self.device._order = order.watch("sending", self.device._order)
        self.server = P4RuntimeServer(self.device, "127.0.0.1:0", CPU_PORT)
        self.server._order = order.watch("writing", self.server._order)
        self.server.controllers._lock = order.watch("controllers", self.server.controllers._lock)
        self.address = f"127.0.0.1:{self.server.port}"
        self.device.start()
        self.ends = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
        for number, end in enumerate(self.ends, 1):
            end.bind(("127.0.0.1", 0))
            end.setblocking(False)
            self.add(number)
        self.frames = 0
        self._stop = threading.Event()
        self._traffic = threading.Thread(target=self._send)
        self._traffic.start()

    def add(self, number: int) -> None:
        self.ports.add(number, f"udp:127.0.0.1:0,127.0.0.1:{self.ends[number - 1].getsockname()[1]}")

    def _send(self) -> None:
        while not self._stop.is_set():
            for number, end in enumerate(self.ends, 1):
                port = self.ports._ports.get(number)
                if port is not None:
                    try:
                        end.sendto(bytes(64), port.socket.getsockname())
                        self.frames += 1
                    except OSError:  # it was just removed
                        pass

    def close(self) -> None:
        self._stop.set()
        self._traffic.join()
        self.server.close()
        self.device.close()
        for end in self.ends:
            end.close()


@pytest.fixture
def live(monkeypatch):
    live = Live(monkeypatch)
    yield live
    live.close()


@pytest.fixture
def controller(live):
    controller = Controller(live)
    controller.arbitrate()
    yield controller
    controller.close()


def group(number: int) -> dict:
    """A multicast group with a replica that has a backup."""
    replica = v1.Replica(port=short(1), instance=1, backup_replicas=[v1.BackupReplica(port=short(2), instance=2)])
    return {"multicast_group_entry": {"multicast_group_id": number, "replicas": [replica]}}


def test_replicas_with_backups_beside_traffic(live, controller):
    """Groups come and go while frames pass, and ports come and go, which the server follows every 50 ms."""
    controller.push("multicast")
    until(lambda: live.frames > 100)
    done = threading.Event()

    def move_ports() -> None:
        for number in itertools.cycle((1, 2)):
            live.ports.remove(number)
            live.add(number)
            live.device.ports_up()
            if done.wait(0.05):
                return

    mover = threading.Thread(target=move_ports)
    mover.start()
    try:
        for number in range(1, WRITES):
            controller.write("INSERT", packet_replication_engine_entry=group(number))
            if number % 3 == 0:
                controller.write("DELETE", packet_replication_engine_entry=group(number - 1))
    finally:
        done.set()
        mover.join()
    frames = live.frames
    until(lambda: live.frames > frames + 100)
    assert {("writing", "switch"), ("sending", "switch")} <= live.order.pairs
    assert live.order.circle() == []


@pytest.mark.slow
def test_watched_ports_beside_traffic(live, controller):
    controller.push("action_selector")
    profile = controller.info.action_profiles[0].preamble.id
    member = {"action_profile_id": profile, "member_id": 1, "action": controller.action("send", 1, 2)}
    controller.write("INSERT", action_profile_member=member)
    for number in range(1, WRITES):
        members = [{"member_id": 1, "weight": 1, "watch_port": short(1 + number % 2)}]
        one = {"action_profile_id": profile, "group_id": number, "members": members}
        controller.write("INSERT", action_profile_group=one)
        controller.write("DELETE", action_profile_group=one)
    assert live.order.circle() == []


def test_a_circle_is_found():
    order = LockOrder()
    one, two, three = (order.watch(name, threading.RLock()) for name in ("one", "two", "three"))
    with one, two, one:
        pass
    with two, three:
        pass
    assert order.circle() == []
    with three, one:
        pass
    assert set(order.circle()) == {"one", "two", "three"}
