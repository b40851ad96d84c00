"""Python programs in processes that are forked from one that has imported what they need.

Importing torch takes seconds, as does loading the kernels, and many tests start several ranks. `Forked` runs a script,
or a module, in a process that differs from a new interpreter only in what it has already imported; its arguments,
environment, folder, files and the way in which it ends are its own. The first one starts the server, which is this file
run as a program. It has one thread, imports what it is asked for, forks, and says how each child ended.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
AGENT = ("host_agent.agent", "tests.support.forks:agent_kernels")
AGGREGATOR = ("switchml.cli.aggregate", "switchml.control.server", "tests.support.forks:aggregator_kernels")
TORCH = ("torch._dynamo", "torch.distributed", "torch.nn.parallel", "host_agent.pytorch.process_group", *AGENT)
"""What a process may find imported: modules, and functions of modules that have been called."""


def agent_kernels() -> None:
    from host_agent.loop import warm_up

    warm_up()


def aggregator_kernels() -> None:
    from switchml.aggregator.software import SoftwareDataplane

    SoftwareDataplane(port=0).start().stop()


class Forked:
    """`python COMMAND…`, where COMMAND begins with a script or with -m and a module. The methods are Popen's.

    `stdin`, `stdout`, `stderr`: open files, which the caller may close afterwards.
    """

    def __init__(
        self, command: Sequence[object], *, preload: Sequence[str], env: dict[str, str], stdin: Any, stdout: Any,
        stderr: Any, cwd: Path | None = None,
    ):  # fmt: skip
        self.args = [str(part) for part in command]
        request = {"command": self.args, "preload": preload, "env": env, "cwd": str(cwd or Path.cwd())}
        self._end, theirs = socket.socketpair()
        with theirs:
            files = [each.fileno() for each in (stdin, stdout, stderr, theirs)]
            socket.send_fds(_server(), [json.dumps(request).encode()], files)
        self.pid = self._receive()
        self.returncode: int | None = None

    def _receive(self) -> int:
        number = self._end.recv(4)
        assert number, "the process that forks others has ended"
        return int.from_bytes(number, "little", signed=True)

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._end.settimeout(timeout)
            try:
                self.returncode = self._receive()
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0) from None
            self._end.close()
        return self.returncode

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@functools.cache
def _server() -> socket.socket:
    """Our end of the link to the server, started now. It ends when we do, or close the link."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path = os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH", "")) if part)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno())],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours


# The server


def _serve(link: socket.socket) -> dict:
    """Returns in each child: the request that it is to fulfil."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; pytest decides what ends when
    children: dict[int, tuple[int, socket.socket]] = {}
    while True:
        readable, _, _ = select.select([link, *children], [], [])
        for ended in children.keys() & set(readable):
            pid, client = children.pop(ended)
            os.close(ended)
            _send(client, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            client.close()
        if link not in readable:
            continue
        message, files, _, _ = socket.recv_fds(link, 1 << 20, 4)
        if not message:
            sys.exit()
        request = json.loads(message)
        for name in request["preload"]:
            _load(name)
        client = socket.socket(fileno=files.pop())
        if not (pid := os.fork()):
            for number, file in enumerate(files):
                os.dup2(file, number)
            for file in (*files, *children):
                os.close(file)
            for other in (link, client, *(other for _, other in children.values())):
                other.close()
            return request
        children[os.pidfd_open(pid)] = pid, client
        _send(client, pid)
        for file in files:
            os.close(file)


def _send(client: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # who wanted to know is gone
        client.sendall(number.to_bytes(4, "little", signed=True))


@functools.cache
def _load(name: str) -> None:
    module, _, function = name.partition(":")
    loaded = importlib.import_module(module)
    if function:
        getattr(loaded, function)()


def _run(command: list[str], env: dict[str, str], cwd: str) -> None:
    """As `python COMMAND…` does in a new process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    if command[0] == "-m":
        sys.path[0], sys.argv = cwd, command[1:]
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[0], sys.argv = str(Path(command[0]).parent), command
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as link:
        request = _serve(link)
    _run(request["command"], request["env"], request["cwd"])
