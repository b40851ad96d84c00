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
from emulator.p4switch.thrift.multicast import SimplePreLag
from emulator.p4switch.thrift.simple_switch import SimpleSwitch
from emulator.p4switch.thrift.standard import Standard
from switchml.control.thrift.idl import interface
from switchml.control.thrift.protocol import (
    APPLICATION_ERROR,
    BAD_MESSAGE_KIND,
    CALL,
    EXCEPTION,
    INTERNAL_ERROR,
    ONEWAY,
    REPLY,
    STRUCT,
    UNKNOWN_METHOD,
    Message,
    ProtocolError,
    Reader,
    read_message,
    write_message,
)
from switchml.errors import ConfigError, ControlError, SwitchMLError

log = logging.getLogger("switchml.bmv2")


class Dispatcher:
    """Answers messages by calling `handlers` (service name → object with a method for each call)."""

    def __init__(self, handlers: dict[str, Any]) -> None:
        self.handlers = handlers
        self.interface = interface()

    def answer(self, reader: Reader) -> bytes:
        """Read and run one call; returns the bytes of the reply, none for a one-way call."""
        message = read_message(reader)
        if message.kind not in (CALL, ONEWAY):
            reader.skip(STRUCT)
            return self._error(message, BAD_MESSAGE_KIND, f"{message.name}: message kind {message.kind} is no call")
        service, _, name = message.name.rpartition(":")
        call = self.interface.services.get(service or "standard", {}).get(name)
        handler = self.handlers.get(service or "standard")
        if call is None or handler is None:
            reader.skip(STRUCT)
            return self._error(message, UNKNOWN_METHOD, f"there is no call {message.name!r}")
        arguments = call.arguments.read(reader)
        values = [
            field.type.default if (value := getattr(arguments, field.name)) is None else value  # as in Thrift's C++
            for field in call.arguments.fields
        ]
        try:
            result = SimpleNamespace(success=getattr(handler, name)(*values))
        except ControlError as error:
            refusal = f"Invalid{error.operation}" + ("" if error.operation == "IdLookup" else "Operation")
            log.error("%s: %s", name, error)
            if refusal != call.exception:
                return self._error(message, INTERNAL_ERROR, str(error))
            result = SimpleNamespace(refused=self.interface.refusal(refusal, error.code))
        except SwitchMLError as error:
            log.error("%s: %s", name, error)
            return self._error(message, INTERNAL_ERROR, str(error))
        except Exception as error:
            log.exception("%s failed", name)
            return self._error(message, INTERNAL_ERROR, f"{name}: {type(error).__name__}: {error}")
        if message.kind == ONEWAY:
            return b""
        out = write_message(Message(REPLY, name, message.sequence))
        call.result.write(out, result)
        return bytes(out)

    def _error(self, message: Message, kind: int, text: str) -> bytes:
        out = write_message(Message(EXCEPTION, message.name.rpartition(":")[2], message.sequence))
        APPLICATION_ERROR.write(out, SimpleNamespace(message=text, type=kind))
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
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64


class _DualListener(_Listener):
    """Accepts IPv4 and IPv6 on one socket, as BMv2 does."""

    address_family = socket.AF_INET6

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


class ThriftServer:
    """Listens for `device` on `port` (0: any; `port` then says which) of `address` (None: all addresses of the machine)
    until `close`. Raises ConfigError if the port is in use."""

    def __init__(self, device: Device, port: int, address: str | None = None) -> None:
        pre = SimplePreLag(device)
        handlers = {
            "standard": Standard(device),
            "simple_pre": pre,
            "simple_pre_lag": pre,
            "simple_switch": SimpleSwitch(device),
        }
        self._listener = _listen(port, address)
        self._listener.dispatcher = Dispatcher(handlers)
        self.port = self._listener.server_address[1]
        self._thread = threading.Thread(target=self._listener.serve_forever, args=(0.1,), name="thrift", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._listener.shutdown()
        self._listener.server_close()
        self._thread.join()


def _listen(port: int, address: str | None) -> _Listener:
    try:
        if address is None and socket.has_dualstack_ipv6():
            return _DualListener(("::", port), _Connection)
        return _Listener((address or "", port), _Connection)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"can't listen on port {port} for Thrift: {error}; is another switch running?") from error
