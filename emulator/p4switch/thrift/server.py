"""The Thrift server: a TCP port or a Unix socket, one thread per connection, all services multiplexed on it
("service:call").

No client can stop the switch: a malformed call closes its connection, and a call that fails is answered with an
exception."""

from __future__ import annotations

import errno
import socket
import socketserver
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from emulator.p4switch.device import Device
from emulator.p4switch.notifications import nobody_listens
from emulator.p4switch.thrift.services import SimplePreLag, SimpleSwitch, Standard
from emulator.p4switch.thrift.tables import Uncaught
from switchml import logs
from switchml.control.thrift import protocol
from switchml.control.thrift.idl import interface
from switchml.control.thrift.protocol import Message, ProtocolError, Reader
from switchml.errors import ConfigError, ControlError, SwitchMLError

log = logs.of("switchml.bmv2")

LOOPBACK = "127.0.0.1"


class Dispatcher:
    """Dispatches messages to `handlers` (service name → object with a method for each call)."""

    def __init__(self, handlers: dict[str, Any]) -> None:
        self.handlers = handlers
        self.interface = interface()

    def answer(self, reader: Reader) -> bytes:
        """Read and execute one call; returns the bytes of the reply, empty for a one-way call."""
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
            if not isinstance(error, ControlError) or _exception_of(error) != call.exception:
                return _error(message, protocol.INTERNAL_ERROR, str(error))
            result = SimpleNamespace(refused=self.interface.refusal(call.exception, error.code))
        except Uncaught as error:
            log.error("%s: %s", name, error)
            return _error(message, protocol.UNKNOWN_ERROR, str(error))
        except Exception as error:
            log.exception("%s failed", name)
            return _error(message, protocol.INTERNAL_ERROR, f"{name}: {type(error).__name__}: {error}")
        if message.kind == protocol.ONEWAY:
            return b""
        out = protocol.write_message(Message(protocol.REPLY, name, message.sequence))
        call.result.write(out, result)
        return bytes(out)


def _exception_of(error: ControlError) -> str:
    """Name of an error's exception in Thrift."""
    return f"Invalid{error.operation}" + ("" if error.operation == "IdLookup" else "Operation")


def _error(message: Message, kind: int, text: str) -> bytes:
    out = protocol.write_message(Message(protocol.EXCEPTION, message.name.rpartition(":")[2], message.sequence))
    protocol.APPLICATION_ERROR.write(out, SimpleNamespace(message=text, type=kind))
    return bytes(out)


class _Connection(socketserver.StreamRequestHandler):
    """Serves one client until it disconnects."""

    server: _Listener

    def setup(self) -> None:
        super().setup()
        if self.connection.family != socket.AF_UNIX:
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)

    def handle(self) -> None:
        reader = Reader(self.rfile.read)
        try:
            while True:
                reply = self.server.dispatcher.answer(reader)
                self.wfile.write(reply)
        except (EOFError, OSError):
            pass
        except (ProtocolError, ValueError, OverflowError, RecursionError) as error:
            client = self.client_address[0] if self.client_address else "this machine"
            log.error("Closing the Thrift connection from %s: %s", client, error, extra=logs.about(client))


class _Listener(socketserver.ThreadingTCPServer):
    """Accepts connections on a listening socket."""

    daemon_threads = True

    def __init__(self, listening: socket.socket, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher
        super().__init__(listening.getsockname(), _Connection, bind_and_activate=False)
        self.socket.close()  # the one created by socketserver
        self.socket = listening

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.error("A Thrift connection failed", exc_info=True)


def _listen_on_port(port: int, address: str) -> socket.socket:
    """Listening TCP socket; `::`: all addresses of the machine, also over IPv4."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    is_dual = address == "::" and socket.has_dualstack_ipv6()
    return socket.create_server((address, port), family=family, backlog=64, dualstack_ipv6=is_dual)


def _listen_on_path(path: str) -> socket.socket:
    """Listening Unix socket that only the current user can connect to. A file left behind by another switch is
    replaced."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if nobody_listens(path):
            Path(path).unlink()
        listening.bind(path)
        Path(path).chmod(0o600)  # clients can't connect before it listens
        listening.listen(64)
    except OSError:
        listening.close()
        raise
    return listening


class ThriftServer:
    """A Thrift server for `device` on `port` (0: any free port, reported by `port`) of `address` (`::`: all addresses
    of the machine) until `close`, or on the Unix socket `path`, which only the current user can connect to. Raises
    ConfigError if the port or path is in use."""

    def __init__(self, device: Device, port: int = 0, address: str = LOOPBACK, path: str | None = None) -> None:
        handlers = {"standard": Standard(device), "simple_switch": SimpleSwitch(device)}
        handlers["simple_pre"] = handlers["simple_pre_lag"] = SimplePreLag(device)
        place = f"port {port} of {address}" if path is None else path
        try:
            listening = _listen_on_port(port, address) if path is None else _listen_on_path(path)
        except (OSError, OverflowError) as error:
            hint = "; is another switch running?" if getattr(error, "errno", 0) == errno.EADDRINUSE else ""
            raise ConfigError(f"can't listen on {place} for Thrift: {error}{hint}") from error
        self._listener = _Listener(listening, Dispatcher(handlers))
        self.port = listening.getsockname()[1] if path is None else 0
        self.path = path
        self._thread = threading.Thread(target=self._listener.serve_forever, args=(0.1,), name="thrift", daemon=True)
        self._thread.start()

    def remove_file(self) -> None:
        """Remove the socket from the file system."""
        if self.path is not None:
            Path(self.path).unlink(missing_ok=True)

    def close(self) -> None:
        """Stop listening."""
        self._listener.shutdown()
        self._listener.server_close()
        self._thread.join()
        self.remove_file()
