"""The tunnel's server in a process of its own: libzmq ends its whole process when an assertion fails, which whoever
reaches the tunnel's port can bring about, and that must cost nobody but the tunnel's own ranks.

This is the aggregator's side; `__main__.py` is the process.
"""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from switchml import logs
from switchml.errors import ConfigError
from switchml.net.tunnel.server import FOLDER, Address, Joined
from switchml.runtime.children import how_it_ended, reap
from switchml.runtime.folders import TemporaryFolder

log = logs.of("switchml.tunnel")

_STOP_TIMEOUT_S = 3.0
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 10.0
"""How long the tunnel stays down when it has died: the former at first, twice as long each time, up to the latter."""
_STEADY_S = 60.0
"""A tunnel that lived so long starts from the shortest pause again."""


class TunnelProcess:
    """A `TunnelServer` in a process of its own, with the same options; one that dies is restarted at the same addresses
    until `close`. Its ranks are lost then; nobody else notices.

    `addresses` and `address` are as TunnelServer has them. Raises ConfigError if the port can't be opened.
    """

    def __init__(
        self,
        data_address: Address,
        *,
        bind: str = "127.0.0.1",
        port: int = 0,
        address_for: Callable[[Address], Address] | None = None,
        joined: Joined | None = None,
    ):
        self._answers: dict[str, Callable[[Any], Any]] = {}
        if address_for is not None:
            self._answers["address_for"] = lambda sender: address_for(tuple(sender))
        if joined is not None:
            self._answers["joined"] = lambda senders: joined([(ip, number) for ip, number in senders])
        self._folder = TemporaryFolder(FOLDER)
        self._options = {
            "data_address": data_address,
            "bind": bind,
            "port": port,
            "folder": self._folder.name,
            "asks": list(self._answers),
        }
        self._stopping = threading.Event()
        try:
            self._start()
        except BaseException:
            self._folder.cleanup()
            raise
        self._thread = threading.Thread(target=self._run, name="switchml-tunnel-watch", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """Of the process that runs, or ran last."""
        return self._process.pid

    def close(self) -> None:
        """End the process, and remove what it used. May be called twice."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._hang_up()
        self._thread.join()
        self._folder.cleanup()

    def _start(self) -> None:
        """Start the process and wait until it listens. Raises ConfigError if it does not."""
        ours, theirs = socket.socketpair()
        with theirs:
            # A session of its own: Ctrl-C is for the aggregator, which ends the jobs first. Should the aggregator be
            # killed, the socket closes, and the process ends.
            self._process = subprocess.Popen(
                [sys.executable, "-m", __package__ or "", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self._socket, self._lines = ours, ours.makefile("r")
        self._send(self._options)
        listening = json.loads(self._lines.readline() or "{}")
        if "addresses" not in listening:
            self._end()
            how = how_it_ended(self._process.returncode)
            raise ConfigError(listening.get("error") or f"the process of the ZeroMQ tunnel {how} before it listened")
        ip, number = listening["address"]
        self.address, self.addresses = (ip, number), tuple(listening["addresses"])
        self._options["port"] = number

    def _send(self, message: dict[str, Any]) -> None:
        with suppress(OSError):  # it is gone, as reading shows, too
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def _hang_up(self) -> None:
        with suppress(OSError):  # it is gone already
            self._socket.shutdown(socket.SHUT_RDWR)

    def _end(self) -> None:
        self._hang_up()
        reap(self._process, _STOP_TIMEOUT_S)
        self._lines.close()
        self._socket.close()

    # Everything below runs in the thread.

    def _run(self) -> None:
        pause_s = _SHORTEST_PAUSE_S
        while True:
            started = time.monotonic()
            self._answer()
            self._end()
            if time.monotonic() - started > _STEADY_S:
                pause_s = _SHORTEST_PAUSE_S
            how = how_it_ended(self._process.returncode)
            is_running = False
            while not is_running:
                if self._stopping.is_set():
                    return
                log.warning(
                    f"the ZeroMQ tunnel (pid {self.pid}) {how}: its ranks are lost, the others are not; "
                    f"restarting it in {pause_s:g} s"
                )
                if self._stopping.wait(pause_s):
                    return
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                is_running = self._restarts()
            if self._stopping.is_set():  # `close` hung up on the one before
                self._hang_up()

    def _restarts(self) -> bool:
        try:
            self._start()
        except (ConfigError, OSError) as error:
            log.warning("the ZeroMQ tunnel did not restart: %s", error)
            return False
        return True

    def _answer(self) -> None:
        """Answer the process's questions until it is gone."""
        try:
            for line in self._lines:
                ((kind, question),) = json.loads(line).items()
                self._send({kind: self._answers[kind](question)})
        except (OSError, ValueError):  # a line that a dying process did not finish, for instance
            return
