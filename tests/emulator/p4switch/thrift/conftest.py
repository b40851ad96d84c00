"""A switch whose Thrift server runs in this process."""

import contextlib

import pytest

from emulator.p4switch.device import Device
from emulator.p4switch.ports.files import FilePorts
from emulator.p4switch.switch import Switch
from emulator.p4switch.thrift.server import ThriftServer
from switchml.control.thrift.client import Client


@pytest.fixture
def serve(program):
    """`serve("l3")` gives the device that runs a program, and its server; `serve.client()` a client of the last one."""
    with contextlib.ExitStack() as stack:

        def start(name: str, **options) -> tuple[Device, ThriftServer]:
            device = Device(Switch(program(name), seed=1), FilePorts(0), **options)
            server = ThriftServer(device, 0, "127.0.0.1")
            stack.callback(server.close)
            start.client = lambda: stack.enter_context(Client("127.0.0.1", server.port))
            device.thrift_port = server.port
            return device, server

        yield start
