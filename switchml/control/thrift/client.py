"""A Thrift client for BMv2's services, for switchml's switch and simple_switch.

with Client("localhost", 9090) as switch:
    switch.call("simple_switch", "set_all_egress_queue_depths", depth=1024)
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from switchml.control.thrift import protocol
from switchml.control.thrift.idl import ServiceCall, interface
from switchml.errors import ControlError

MAX_AHEAD = 128
"""Maximum number of calls in flight: few enough that neither side's socket buffer fills up while the other one writes.
"""


class Client:
    """A connection to a port of a host, or to a Unix socket if `address` is its absolute path. Raises OSError if there
    is no server."""

    def __init__(self, address: str = "localhost", port: int = 9090, timeout_s: float = 30.0) -> None:
        self.interface = interface()
        self._socket = _connected(address, port, timeout_s)
        self._file = self._socket.makefile("rb")
        self._sequence = 0

    def call(self, service: str, name: str, /, **arguments: Any) -> Any:
        """Make a call and return its result. Structs are SimpleNamespaces. Raises ControlError if the switch refuses
        (its `operation` and `code` are BMv2's), EOFError if it disconnects, ProtocolError for invalid bytes.
        """
        return self.calls(service, name, [arguments])[0]

    def calls(self, service: str, name: str, many: Sequence[dict[str, Any]]) -> list[Any]:
        """Make the same call with each of several arguments, pipelined, and return the results in order. Raises as
        `call` does, for the first refusal, once all answers have been received."""
        call = self.interface.services[service][name]
        results: list[Any] = []
        refusal: ControlError | None = None
        for start in range(0, len(many), MAX_AHEAD):
            part = many[start : start + MAX_AHEAD]
            out = bytearray()
            for arguments in part:
                self._sequence += 1
                out += protocol.write_message(protocol.Message(protocol.CALL, f"{service}:{name}", self._sequence))
                call.arguments.write(out, SimpleNamespace(**arguments))
            self._socket.sendall(out)
            for _ in part:
                try:
                    results.append(self._answer(call, name))
                except ControlError as error:
                    refusal = refusal or error
            if refusal is not None:
                raise refusal
        return results

    def _answer(self, call: ServiceCall, name: str) -> Any:
        reader = protocol.Reader(self._file.read)
        if protocol.read_message(reader).kind == protocol.EXCEPTION:
            raise ControlError("Thrift", "ERROR", protocol.APPLICATION_ERROR.read(reader).message)
        result = call.result.read(reader)
        refused = getattr(result, "refused", None)
        if refused is not None and call.exception is not None:
            numbers = self.interface.enums[f"{call.exception}Code"]
            code = next((key for key, number in numbers.items() if number == refused.code), str(refused.code))
            operation = call.exception.removeprefix("Invalid").removesuffix("Operation")
            raise ControlError(operation, code, f"{name}: the switch refused: {code}")
        return getattr(result, "success", None)

    def close(self) -> None:
        """Close the connection."""
        self._file.close()
        self._socket.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _connected(address: str, port: int, timeout_s: float) -> socket.socket:
    if not address.startswith("/"):
        connection = socket.create_connection((address, port), timeout_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection
