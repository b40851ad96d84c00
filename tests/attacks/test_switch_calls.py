"""Random calls on a switch's control interfaces while frames pass: nothing ends it, nothing holds it up."""

import contextlib
import functools
import json
import random
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from google.protobuf.message import Message

from emulator.p4switch.process import NO_PROGRAM
from emulator.p4switch.program import ir
from emulator.p4switch.program.loader import loader
from switchml.control.thrift.client import Client
from switchml.control.thrift.idl import interface
from switchml.control.thrift.protocol import ProtocolError
from switchml.errors import ControlError
from tests.attacks.conftest import FIRST_SEED
from tests.support.launch import START_S, until
from tests.support.p4_programs import PATHS, RECORDED, SOURCES

grpc = pytest.importorskip("grpc")
pytest.importorskip("p4.v1", reason="needs the package p4runtime")

from switchml.control import p4runtime_protos as protos  # noqa: E402
from switchml.control.p4runtime_protos import v1  # noqa: E402
from tests.support.p4runtime_controller import Stub, config, p4info  # noqa: E402
from tests.support.p4runtime_seeds import SEEDS  # noqa: E402
from tests.support.random_calls import Calls  # noqa: E402

pytestmark = pytest.mark.timeout(3 * 3600)

PROGRAMS = sorted(path.name.partition(".")[0] for path in SOURCES.glob("*.p4info.txtpb"))
FRAMES = [
    bytes.fromhex(data)
    for name in PROGRAMS
    if (RECORDED / f"{name}.json").is_file()
    for _, data in json.loads((RECORDED / f"{name}.json").read_text())["packets"]
]
SERVICE = f"/{protos.SERVICE.full_name}/"
METHODS = {method.name: method for method in protos.SERVICE.methods}
PRIMARY = v1.Uint128(high=(1 << 64) - 1, low=(1 << 64) - 1)
"""The highest election id: no random one is above it."""
NO_FAULT = re.compile("deserializing|a batch was only partly undone")
"""INTERNAL errors that say what the caller did: bytes that are no message, and a batch that can't be undone since
Thrift has put more into the switch than P4Info allows."""
CALL_S = 60.0
"""How long one call may take before the switch counts as hung."""
STREAM_S = 0.05
AT_ONCE = 16
"""Thrift calls sent ahead of their answers."""


class Victim:
    """A switch as a process with two UDP ports, through which frames pass in both directions until `close`."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log"
        self.ends = [_bound(), _bound()]
        with contextlib.ExitStack() as probes:
            taken = [probes.enter_context(contextlib.closing(_bound(socket.SOCK_STREAM))) for _ in range(2)]
            self.thrift_port, self.grpc_port = (probe.getsockname()[1] for probe in taken)
        command = [sys.executable, "-m", "switchml", "switch", "--thrift-port", str(self.thrift_port), "-L", "warn"]
        command += ["--thrift-ip", "127.0.0.1", "--notifications-addr", f"ipc://{folder}/notifications", "--no-p4"]
        command += ["--log-console", "--", "--grpc-server-addr", f"127.0.0.1:{self.grpc_port}", "--cpu-port", "510"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        self.channel = grpc.insecure_channel(f"127.0.0.1:{self.grpc_port}")
        try:
            grpc.channel_ready_future(self.channel).result(START_S)
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        self.ports = [_free_udp_port(), _free_udp_port()]
        self.program = NO_PROGRAM.stem
        self._stop = threading.Event()
        self._traffic = threading.Thread(target=self._send)
        self._traffic.start()

    def thrift(self) -> Client:
        return Client("127.0.0.1", self.thrift_port, CALL_S)

    def attach(self) -> None:
        """Attach both ends, whatever the switch's ports are now."""
        with self.thrift() as client:
            for port in client.call("standard", "bm_dev_mgr_show_ports"):
                client.call("standard", "bm_dev_mgr_remove_port", port=port.port_num)
            for number, (here, end) in enumerate(zip(self.ports, self.ends, strict=True), 1):
                interface_name = f"udp:127.0.0.1:{here},127.0.0.1:{end.getsockname()[1]}"
                client.call("standard", "bm_dev_mgr_add_port", port=number, iface_name=interface_name, pcap="")

    def _send(self) -> None:
        source = random.Random(1)
        while not self._stop.wait(0.0005):
            for end, here in zip(self.ends, self.ports, strict=True):
                frame = source.choice(FRAMES) if source.random() < 0.8 else source.randbytes(source.randrange(200))
                end.sendto(frame, ("127.0.0.1", here))
                with contextlib.suppress(OSError):
                    end.recv(65536)

    def forwards(self) -> None:
        """Check that the switch takes a program, an entry and a port, and forwards with them, whatever came before."""
        self._stop.set()
        self._traffic.join()
        self.attach()
        with self.thrift() as client:
            with contextlib.suppress(ControlError):  # a program may wait to be swapped in already
                client.call("standard", "bm_load_new_config", config=PATHS["exact"].read_text())
                client.call("standard", "bm_swap_configs")
            client.call("standard", "bm_load_new_config", config=PATHS["exact"].read_text())
            client.call("standard", "bm_swap_configs")
            action = {"table": "MyIngress.forward", "action": "MyIngress.send", "data": [b"\0\2"]}
            client.call("standard", "bm_mt_set_default_action", cxt=0, **action)
        until(self._arrives)

    def _arrives(self) -> bool:
        self.ends[0].sendto(b"at last".ljust(64), ("127.0.0.1", self.ports[0]))
        with contextlib.suppress(BlockingIOError):
            return self.ends[1].recv(65536).startswith(b"at last")
        return False

    def ended(self) -> str:
        """How the process ended; empty while it runs."""
        code = self.process.poll()
        return "" if code is None else f"the switch ended with {code}: {self.log.read_text()[-3000:]}"

    def close(self) -> None:
        self._stop.set()
        self._traffic.join()
        self.channel.close()
        self.process.kill()
        self.process.wait()
        for end in self.ends:
            end.close()


def _bound(kind: int = socket.SOCK_DGRAM) -> socket.socket:
    sock = socket.socket(socket.AF_INET, kind)
    sock.bind(("127.0.0.1", 0))
    sock.setblocking(False)
    return sock


def _free_udp_port() -> int:
    with _bound() as probe:
        return probe.getsockname()[1]


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Victim]:
    running = Victim(tmp_path)
    try:
        running.attach()
        yield running
    finally:
        running.close()


def call_thrift(victim: Victim, count: int, seed: int) -> None:
    """Make random Thrift calls; a connection that the switch closes is opened anew."""
    calls, made = Calls(random.Random(seed)), 0
    every = [(service, call) for service, named in interface().services.items() for call in named.values()]
    client = victim.thrift()
    while made < count and not victim.ended():
        service, call = calls.source.choice(every)
        calls.program = loaded(victim.program)
        many = [calls.arguments(call) for _ in range(AT_ONCE)]
        made += len(many)
        try:
            client.calls(service, call.name, many)
        except ControlError:
            pass
        except TimeoutError as error:
            raise AssertionError(f"{call.name} had no answer within {CALL_S} s") from error
        except (EOFError, OSError, ProtocolError):
            client.close()
            client = victim.thrift()
    client.close()


@functools.cache
def loaded(name: str) -> ir.Program:
    return loader.load(PATHS.get(name, NO_PROGRAM))


class P4RuntimeCalls:
    """Random P4Runtime calls as a primary controller: entities that the program takes with changes, any messages, bytes
    that are none, streams, and now and then another program."""

    def __init__(self, victim: Victim, seed: int) -> None:
        self.victim = victim
        self.calls = Calls(random.Random(seed))
        self.source = self.calls.source
        for name in PROGRAMS:
            self.calls.know_p4info(p4info(name))
        self._open_stream = victim.channel.stream_stream(SERVICE + "StreamChannel", None, None)
        self._call = {
            name: (victim.channel.unary_stream if method.server_streaming else victim.channel.unary_unary)(
                SERVICE + name, None, None
            )
            for name, method in METHODS.items()
            if not method.client_streaming
        }
        self.others = [*self._call, "stream", "damaged", "program"]

    def make(self, count: int) -> None:
        for _ in range(count):
            if self.victim.ended():
                return
            self._make_one(self.source.choice(["changed"] * 30 + ["Write"] * 4 + self.others))

    def _make_one(self, kind: str) -> None:
        if kind == "stream":
            messages = [v1.StreamMessageRequest(arbitration=v1.MasterArbitrationUpdate(election_id=PRIMARY))]
            messages += [self.calls.fill(v1.StreamMessageRequest()) for _ in range(self.source.randrange(8))]
            with contextlib.suppress(grpc.RpcError):
                for _ in self._open_stream(iter([each.SerializeToString() for each in messages]), timeout=STREAM_S):
                    pass
        elif kind == "program":
            name = self.source.choice(PROGRAMS)
            request = v1.SetForwardingPipelineConfigRequest(action="VERIFY_AND_COMMIT", config=config(name))
            if self.source.random() < 0.5:
                request.config.p4_device_config = self._changed_program(request.config.p4_device_config)
            if self._send("SetForwardingPipelineConfig", self._signed(request).SerializeToString()):
                self.victim.program = name
        elif kind == "changed":
            name, request = self._with_changed_entities()
            self._send(name, self._signed(request).SerializeToString())
        elif kind == "damaged":
            name, request = self._with_changed_entities()
            self._send(name, self._damaged(self._signed(request).SerializeToString()))
        else:
            request = self.calls.fill(getattr(v1, METHODS[kind].input_type.name)())
            is_signed = self.source.random() < 0.9
            self._send(kind, (self._signed(request) if is_signed else request).SerializeToString())

    def _with_changed_entities(self) -> tuple[str, Message]:
        """(method, its request)"""
        name = self.victim.program if self.victim.program in SEEDS else self.source.choice(list(SEEDS))
        seeds = [v1.Entity(**seed) for seed in SEEDS[name](Stub(p4info(name)))]
        entities = [self.calls.changed(self.source.choice(seeds)) for _ in range(self.source.randrange(1, 5))]
        if self.source.random() < 0.2:
            return "Read", v1.ReadRequest(entities=entities)
        updates = [v1.Update(type=self.source.choice((1, 1, 2, 3)), entity=entity) for entity in entities]
        return "Write", v1.WriteRequest(updates=updates, atomicity=self.source.randrange(3))

    def _changed_program(self, text: bytes) -> bytes:
        """BMv2 JSON with other numbers or names at some places."""
        words = re.split(rb"(\d+|\w+)", text)
        for _ in range(self.source.choice((1, 1, 2, 5))):
            at = self.source.randrange(len(words) // 2) * 2 + 1
            numbers = (b"0", b"1", b"7", b"63", b"2047", b"65536", b"1000000000000", b"-1")
            words[at] = self.source.choice(numbers if words[at].isdigit() else words[1::2])
        return b"".join(words)

    def _signed(self, request: Message) -> Message:
        """A request for this device by its primary controller."""
        for field in ("device_id", "role", "role_id"):
            if field in request.DESCRIPTOR.fields_by_name:
                request.ClearField(field)
        if "election_id" in request.DESCRIPTOR.fields_by_name:
            request.election_id.CopyFrom(PRIMARY)
        return request

    def _damaged(self, data: bytes) -> bytes:
        damaged = bytearray(data)
        for _ in range(self.source.randrange(4)):
            damaged[self.source.randrange(len(damaged))] = self.source.randrange(256)
        return bytes(damaged) + self.source.randbytes(self.source.choice((0, 0, 5)))

    def _send(self, name: str, data: bytes) -> bool:
        """Make a call; whether it succeeded."""
        try:
            answer = self._call[name](data, timeout=CALL_S)
            if METHODS[name].server_streaming:
                list(answer)
        except grpc.RpcError as error:
            assert error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED, f"{name} had no answer within {CALL_S} s"
            is_internal = error.code() is grpc.StatusCode.INTERNAL and not NO_FAULT.search(error.details())
            assert not is_internal, f"{name} failed inside the switch: {error.details()}"
            return False
        return True


def call_p4runtime(victim: Victim, count: int, seed: int) -> None:
    P4RuntimeCalls(victim, seed).make(count)


def be_primary(victim: Victim, until_then: threading.Event) -> None:
    """Be the primary controller."""

    def messages() -> Iterator[bytes]:
        update = v1.MasterArbitrationUpdate(election_id=PRIMARY)
        yield v1.StreamMessageRequest(arbitration=update).SerializeToString()
        until_then.wait()

    with contextlib.suppress(grpc.RpcError):
        for _ in victim.channel.stream_stream(SERVICE + "StreamChannel", None, None)(messages()):
            pass


def test_random_calls_beside_traffic(victim, attempts):
    thrift, p4runtime = attempts.scaled(2500), attempts.scaled(1500)  # SWITCHML_ATTACKS=250: a million
    ended, failures = threading.Event(), []

    def run(work: Callable[[Victim, int, int], None], count: int, seed: int) -> None:
        try:
            work(victim, count, seed)
        except BaseException as error:
            failures.append(error)

    controller = threading.Thread(target=be_primary, args=(victim, ended))
    controller.start()
    callers = [
        threading.Thread(target=run, args=(work, count // 2, seed))
        for work, count in ((call_thrift, thrift), (call_p4runtime, p4runtime))
        for seed in (2 * FIRST_SEED + 1, 2 * FIRST_SEED + 2)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    ended.set()
    controller.join()
    assert not victim.ended(), victim.ended()
    if failures:
        raise failures[0]
    victim.forwards()
    assert "Traceback" not in victim.log.read_text()
    attempts.record("random Thrift calls beside traffic", thrift)
    attempts.record("random P4Runtime calls beside traffic", p4runtime)
