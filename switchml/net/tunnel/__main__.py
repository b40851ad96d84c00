"""Entry point of a tunnel's process: `python -m switchml.net.tunnel FD` runs a `TunnelServer`, and queries its parent
(the control plane) with JSON lines over the socket FD. It ends when the parent does.
"""

import json
import logging
import queue
import resource
import shutil
import socket
import sys
from collections.abc import Collection
from contextlib import suppress
from typing import Any, TextIO

from switchml.errors import ConfigError
from switchml.net.tunnel.server import Address, TunnelServer

_NOWHERE = ("127.0.0.1", 9)
"""The discard port (RFC 863)."""


class _Parent:
    """Proxy of the control plane in this process. `read` runs in the main thread; queries come from the server's
    thread."""

    def __init__(self, to_parent: socket.socket):
        self._socket = to_parent
        self.lines: TextIO = to_parent.makefile("r")
        self._addresses: queue.SimpleQueue[Address] = queue.SimpleQueue()
        self._joined: Collection[Address] | None = None

    def say(self, **message: Any) -> None:
        with suppress(OSError):  # the parent has ended, which `read` detects too
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def read(self) -> None:
        """Process the parent's answers until it ends."""
        for line in self.lines:
            for kind, answer in json.loads(line).items():
                if kind == "address_for":
                    self._addresses.put((answer[0], answer[1]))
                elif answer is not None:
                    self._joined = {(ip, number) for ip, number in answer}
        self._addresses.put(_NOWHERE)

    def address_for(self, sender: Address) -> Address:
        """Return the destination of the rank's packets; a discard address if the parent has ended."""
        self.say(address_for=sender)
        address = self._addresses.get()
        if address == _NOWHERE:
            self._addresses.put(_NOWHERE)  # for the next caller, too
        return address

    def joined(self, senders: Collection[Address]) -> Collection[Address] | None:
        """Return the answer to the previous query, or None if there is none yet, so that a busy control plane does not
        delay packets; send a new query."""
        answer, self._joined = self._joined, None
        self.say(joined=list(senders))
        return answer


def _serve(fd: int) -> None:
    parent = _Parent(socket.socket(fileno=fd))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each client needs two descriptors
    options = json.loads(parent.lines.readline() or "null")
    if options is None:  # the parent has been killed meanwhile
        return
    (ip, number), asks = options.pop("data_address"), options.pop("asks")
    questions = {name: getattr(parent, name) for name in asks}
    try:
        server = TunnelServer((ip, number), **options, **questions)
    except ConfigError as error:
        parent.say(error=str(error))
        return
    try:
        parent.say(address=server.address, addresses=server.addresses)
        parent.read()
    finally:
        server.close()
        shutil.rmtree(options["folder"], ignore_errors=True)  # the parent may have been killed


if __name__ == "__main__":
    logging.basicConfig(format="%(name)s: %(message)s")
    _serve(int(sys.argv[1]))
