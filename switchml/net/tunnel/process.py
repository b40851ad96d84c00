"""The tunnel's server in a separate process: libzmq aborts its process on a failed assertion, which anybody who can
reach the tunnel's port can cause, and this must affect only the tunnel's own ranks.

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
"""Downtime of the tunnel after its process dies: initially the first, doubled each time, up to the second."""
_STEADY_S = 60.0
"""Uptime after which the downtime is reset to the shortest."""


class TunnelProcess:
    """A `TunnelServer` in a separate process, with the same options; if the process dies it is restarted at the same
    addresses until `close`. Its ranks are then lost; others are not affected.

    `addresses` and `address` are those of TunnelServer. Raises ConfigError if the port can't be opened.
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
        """Process id of the current, or last, process."""
        return self._process.pid

    def close(self) -> None:
        """End the process and remove its files. May be called repeatedly."""
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
            # A separate session: Ctrl-C is for the aggregator, which ends the jobs first. If the aggregator is killed,
            # the socket closes, and the process ends.
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
        with suppress(OSError):  # the process has ended, which reading detects too
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def _hang_up(self) -> None:
        with suppress(OSError):  # it has ended already
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
            if self._stopping.is_set():  # `close` shut down the socket of the previous process
                self._hang_up()

    def _restarts(self) -> bool:
        try:
            self._start()
        except (ConfigError, OSError) as error:
            log.warning("the ZeroMQ tunnel did not restart: %s", error)
            return False
        return True

    def _answer(self) -> None:
        """Answer the process's queries until it ends."""
        try:
            for line in self._lines:
                ((kind, question),) = json.loads(line).items()
                self._send({kind: self._answers[kind](question)})
        except (OSError, ValueError):  # for example, an incomplete line from a dying process
            return
