"""The Thrift server: a TCP port, one thread a connection, all services multiplexed on it ("service:call").

No client can stop the switch: a call that can't be read closes its connection, one that fails is answered with an
exception."""

from __future__ import annotations

import logging
import socket
import socketserver
import threading
from types import SimpleNamespace
from typing import Any

from emulator.p4switch.device import Device
from emulator.p4switch.thrift.services import SimplePreLag, SimpleSwitch, Standard
from switchml.control.thrift import protocol
from switchml.control.thrift.idl import interface
from switchml.control.thrift.protocol import Message, ProtocolError, Reader
from switchml.errors import ConfigError, SwitchMLError

log = logging.getLogger("switchml.bmv2")


class Dispatcher:
    """Answers messages by calling `handlers` (service name → object with a method for each call)."""

    def __init__(self, handlers: dict[str, Any]) -> None:
        self.handlers = handlers
        self.interface = interface()

    def answer(self, reader: Reader) -> bytes:
        """Read and run one call; returns the bytes of the reply, none for a one-way call."""
        message = protocol.read_message(reader)
        if message.kind not in (protocol.CALL, protocol.ONEWAY):
            reader.skip(protocol.STRUCT)
            text = f"{message.name}: message kind {message.kind} is no call"
            return _error(message, protocol.BAD_MESSAGE_KIND, text)
        service, _, name = message.name.rpartition(":")
        call = self.interface.services.get(service or "standard", {}).get(name)
        handler = self.handlers.get(service or "standard")
        if call is None or handler is None:
            reader.skip(protocol.STRUCT)
            return _error(message, protocol.UNKNOWN_METHOD, f"there is no call {message.name!r}")
        arguments = call.arguments.read(reader)
        values = [
            field.type.default if (value := getattr(arguments, field.name)) is None else value  # as in Thrift's C++
            for field in call.arguments.fields
        ]
        try:
            result = SimpleNamespace(success=getattr(handler, name)(*values))
        except SwitchMLError as error:
            log.error("%s: %s", name, error)
            operation = getattr(error, "operation", "")
            refusal = f"Invalid{operation}" + ("" if operation == "IdLookup" else "Operation")
            if refusal != call.exception:
                return _error(message, protocol.INTERNAL_ERROR, str(error))
            result = SimpleNamespace(refused=self.interface.refusal(refusal, error.code))
        except Exception as error:
            log.exception("%s failed", name)
            return _error(message, protocol.INTERNAL_ERROR, f"{name}: {type(error).__name__}: {error}")
        if message.kind == protocol.ONEWAY:
            return b""
        out = protocol.write_message(Message(protocol.REPLY, name, message.sequence))
        call.result.write(out, result)
        return bytes(out)


def _error(message: Message, kind: int, text: str) -> bytes:
    out = protocol.write_message(Message(protocol.EXCEPTION, message.name.rpartition(":")[2], message.sequence))
    protocol.APPLICATION_ERROR.write(out, SimpleNamespace(message=text, type=kind))
    return bytes(out)


class _Connection(socketserver.StreamRequestHandler):
    """Answers one client until it disconnects."""

    disable_nagle_algorithm = True

    def handle(self) -> None:
        reader = Reader(self.rfile.read)
        try:
            while True:
                reply = self.server.dispatcher.answer(reader)
                self.wfile.write(reply)
        except (EOFError, OSError):
            pass
        except (ProtocolError, ValueError, OverflowError, RecursionError) as error:
            log.error("Closing the Thrift connection from %s: %s", self.client_address[0], error)


class _Listener(socketserver.ThreadingTCPServer):
    """Without an address, it accepts IPv4 and IPv6 on one socket, as BMv2 does."""

    daemon_threads = True

    def __init__(self, port: int, address: str | None, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher
        is_dual = address is None and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if is_dual else socket.AF_INET
        listening = socket.create_server((address or "", port), family=family, backlog=64, dualstack_ipv6=is_dual)
        super().__init__(listening.getsockname(), _Connection, bind_and_activate=False)
        self.socket.close()  # the one that socketserver has made
        self.socket = listening


class ThriftServer:
    """Listens for `device` on `port` (0: any; `port` then says which) of `address` (None: all addresses of the machine)
    until `close`. Raises ConfigError if the port is in use."""

    def __init__(self, device: Device, port: int, address: str | None = None) -> None:
        handlers = {"standard": Standard(device), "simple_switch": SimpleSwitch(device)}
        handlers["simple_pre"] = handlers["simple_pre_lag"] = SimplePreLag(device)
        try:
            self._listener = _Listener(port, address, Dispatcher(handlers))
        except (OSError, OverflowError) as error:
            raise ConfigError(f"can't listen on port {port} for Thrift: {error}; is another switch running?") from error
        self.port = self._listener.server_address[1]
        self._thread = threading.Thread(target=self._listener.serve_forever, args=(0.1,), name="thrift", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._listener.shutdown()
        self._listener.server_close()
        self._thread.join()
