"""A P4Runtime controller for tests: plain gRPC calls, and an in-process switch to connect to."""

from __future__ import annotations

import contextlib
import functools
import queue
import threading

import grpc
from google.protobuf import text_format

from emulator.p4switch.device import Device
from emulator.p4switch.p4runtime.server import P4RuntimeServer
from emulator.p4switch.ports.port import Frames, PortInfo, Ports
from emulator.p4switch.process import NO_PROGRAM
from emulator.p4switch.program.loader.loader import load
from emulator.p4switch.switch import Switch
from switchml.control import p4runtime_protos as protos
from switchml.control import rpc
from switchml.control.p4runtime_protos import info, v1
from tests.support.p4_programs import PATHS, SOURCES

CPU_PORT = 510
TIMEOUT_S = 100


@functools.cache
def p4info(name: str) -> info.P4Info:
    """The P4Info of a program of tests/programs."""
    return text_format.Parse((SOURCES / f"{name}.p4info.txtpb").read_text(), info.P4Info())


def config(name: str, cookie: int = 0) -> v1.ForwardingPipelineConfig:
    """The message for SetForwardingPipelineConfig of a program."""
    message = v1.ForwardingPipelineConfig(p4info=p4info(name))
    message.p4_device_config = PATHS[name].read_bytes()
    message.cookie.cookie = cookie
    return message


class NoPorts(Ports):
    """Ports that only record the frames sent; those in `up` are up."""

    def __init__(self) -> None:
        self.up: set[int] = set()
        self.sent: list[tuple[int, bytes]] = []

    def add(self, number, interface, pcap_dir=None):
        pass

    def remove(self, number):
        pass

    def show(self):
        return [PortInfo(number, f"port{number}") for number in sorted(self.up)]

    def start(self, take, take_batch):
        pass

    def send(self, frames: Frames) -> None:
        self.sent += frames

    def close(self):
        pass


class Target:
    """A switch with a P4Runtime server, and a running clock."""

    def __init__(self, **options) -> None:
        self.ports = NoPorts()
        self.device = Device(Switch(load(NO_PROGRAM)), self.ports, **options)
        self.device.start()
        self.server = P4RuntimeServer(self.device, "127.0.0.1:0", CPU_PORT)
        self.address = f"127.0.0.1:{self.server.port}"

    @property
    def state(self):
        return self.device.state

    def receive(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """The frames that leave the switch when one arrives."""
        self.ports.sent.clear()
        self.device.take([(port, frame)])
        return list(self.ports.sent)

    def close(self) -> None:
        self.server.close()
        self.device.close()


class Stream:
    """A StreamChannel: `send` sends a message, `next` returns a received one."""

    def __init__(self, call) -> None:
        self._out = queue.SimpleQueue()
        self._in = queue.SimpleQueue()
        self.error: grpc.RpcError | None = None
        self._responses = call(iter(self._out.get, None))
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            for message in self._responses:
                self._in.put(message)
        except grpc.RpcError as error:
            self.error = error
        self._in.put(None)

    def send(self, **message) -> None:
        self._out.put(v1.StreamMessageRequest(**message))

    def next(self, kind: str | None = None, timeout: float = TIMEOUT_S):
        """The next message (its field `kind`), or None at the end."""
        message = self._in.get(timeout=timeout)
        if kind is None or message is None:
            return message
        assert message.WhichOneof("update") == kind, message
        return getattr(message, kind)

    def is_quiet(self, seconds: float = 0.15) -> bool:
        """Whether no message arrives."""
        try:
            return self._in.get(timeout=seconds) is None
        except queue.Empty:
            return True

    def close(self) -> None:
        self._out.put(None)
        self._reader.join(TIMEOUT_S)

    def code(self) -> grpc.StatusCode:
        """The status code that ended the stream."""
        self._reader.join(TIMEOUT_S)
        return self.error.code() if self.error else grpc.StatusCode.OK


class Stub:
    """Entities by the names of a P4Info."""

    def __init__(self, info: info.P4Info) -> None:
        self.info = info

    def id(self, kind: str, name: str) -> int:
        """The number of P4Info's object with this name or alias."""
        for item in getattr(self.info, kind):
            if name in (item.preamble.name, item.preamble.alias):
                return item.preamble.id
        raise KeyError(name)

    def action(self, name: str, *args: int) -> v1.Action:
        """An action with arguments in the order of its parameters."""
        return v1.Action(
            action_id=self.id("actions", name),
            params=[{"param_id": number, "value": short(value)} for number, value in enumerate(args, 1)],
        )

    def entry(self, table: str, match: dict[int, dict] | None = None, action=None, **fields) -> v1.TableEntry:
        """A table entry; `match`: field number → one keyword of FieldMatch."""
        entry = v1.TableEntry(table_id=self.id("tables", table), **fields)
        for number, value in (match or {}).items():
            entry.match.add(field_id=number, **value)
        if isinstance(action, v1.Action):
            entry.action.action.CopyFrom(action)
        elif action is not None:
            entry.action.CopyFrom(action)
        return entry


class Controller(Stub):
    """A controller of `target`, with the P4Info of the last program that it set."""

    def __init__(self, target: Target, election_id: int | None = 1, role: str = "") -> None:
        super().__init__(info.P4Info())
        self.target = target
        self.channel = grpc.insecure_channel(target.address)
        self.election_id = election_id
        self.role = role
        vars(self).update(vars(rpc.client(self.channel, protos.SERVICE)))
        self.stream = Stream(self.StreamChannel)

    def arbitrate(self, election_id: int | None = None, **fields) -> v1.MasterArbitrationUpdate:
        """Send an arbitration message and receive the answer."""
        self.election_id = self.election_id if election_id is None else election_id
        update = v1.MasterArbitrationUpdate(device_id=0, **fields)
        if self.role:
            update.role.name = self.role
        if self.election_id is not None:
            update.election_id.low = self.election_id
        self.stream.send(arbitration=update)
        return self.stream.next("arbitration")

    def _sign(self, request):
        request.role = self.role
        if self.election_id is not None:
            request.election_id.low = self.election_id
        return request

    def push(self, name: str, action: str = "VERIFY_AND_COMMIT", cookie: int = 0) -> None:
        """Set a program of tests/programs."""
        request = v1.SetForwardingPipelineConfigRequest(config=config(name, cookie))
        request.action = v1.SetForwardingPipelineConfigRequest.Action.Value(action)
        self.SetForwardingPipelineConfig(self._sign(request))
        self.info = p4info(name)

    def update(self, kind: str, **entity) -> v1.Update:
        """An update; the entity is the one keyword."""
        return v1.Update(type=v1.Update.Type.Value(kind), entity=v1.Entity(**entity))

    def write(self, kind: str, **entity) -> None:
        """One update."""
        self.write_all([self.update(kind, **entity)])

    def write_all(self, updates, atomicity: str = "CONTINUE_ON_ERROR", **fields) -> None:
        """A batch."""
        request = v1.WriteRequest(updates=updates, **fields)
        request.atomicity = v1.WriteRequest.Atomicity.Value(atomicity)
        self.Write(self._sign(request))

    def read(self, **entity) -> list:
        """The entities that match the keyword."""
        (name,) = entity
        responses = self.Read(v1.ReadRequest(entities=[v1.Entity(**entity)]))
        return [getattr(item, name) for response in responses for item in response.entities]

    def close(self) -> None:
        self.stream.close()
        self.channel.close()


def short(value: int) -> bytes:
    """A number as canonical bytes."""
    return value.to_bytes(max((value.bit_length() + 7) // 8, 1), "big")


def exact(value: int) -> dict:
    return {"exact": {"value": short(value)}}


@contextlib.contextmanager
def refused(code: str, *words: str):
    """Expect a call to end with a code; of a write of one update, the update's."""
    try:
        yield
    except grpc.RpcError as error:
        status, text = error.code(), error.details()
        if status == grpc.StatusCode.UNKNOWN:
            (detail,) = update_errors(error)
            status = next(item for item in grpc.StatusCode if item.value[0] == detail.canonical_code)
            text = detail.message
        assert status.name == code, (status, text)
        for word in words:
            assert word in text, text
    else:
        raise AssertionError(f"was not refused with {code}")


def update_errors(error: grpc.RpcError) -> list[v1.Error]:
    """The errors of a batch's updates, from its status."""
    trailer = dict(error.trailing_metadata())["grpc-status-details-bin"]
    return [v1.Error.FromString(detail.value) for detail in protos.Status.FromString(trailer).details]
