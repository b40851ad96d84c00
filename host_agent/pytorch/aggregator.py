"""An aggregator as a child process, for jobs that have none. It ends with its parent.

`ChildAggregator` is the parent's side. `python -m host_agent.pytorch.aggregator` is the child's: `switchml aggregate`,
plus a thread that ends the process when the parent has ended in any way. Does not need torch.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence

from switchml.control.p4 import bmv2
from switchml.errors import AggregatorLost
from switchml.runtime import cache
from switchml.runtime.children import dying_with_us, end
from switchml.text import last_line

START_TIMEOUT_S = 90.0
"""Seconds for the child to become ready; the first start on a machine compiles the kernels."""
STOP_TIMEOUT_S = 3.0
PARENT_CHECK_S = 0.5
LINGER_S = 1.0
"""Seconds that the child outlives its parent: if that was a rank that died, the other ranks should be notified of that
rank."""


SOFTWARE = ("aggregate", "--data-port", "0")
"""Command of the software aggregator."""


LIMITS = ("--slots", str(1 << 22), "--client-jobs", "256", "--client-ranks", "16384", "--client-connections", "4096")
"""Options of an aggregator that serves the process groups of one training: each is a job there, and all come from few
clients. Half of each limit remains for other clients. Slots take memory only once they are used."""


def options_for(transport: str) -> tuple[str, ...]:
    """Options of an aggregator whose ranks use `transport`."""
    return ("--tunnel",) if transport == "zmq" else ()


def command_of(aggregator: str, ports: int) -> tuple[str, ...]:
    """Command of the aggregator named by `--aggregator`: software, p4 (switchml's switch) or bmv2 (simple_switch, with
    `ports` ports); with -lanes, the program with one register per lane. Raises ConfigError if bmv2 can't run."""
    if aggregator == "software":
        return SOFTWARE
    switch, _, variant = aggregator.partition("-")
    if switch == "bmv2":
        bmv2.check()
    program = ("--program", f"switchml_{variant}") if variant else ()
    return ("control", "--switch", switch, "--ports", str(ports), *program)


class ChildAggregator:
    """A running `switchml aggregate` or, with `command`, another control plane. `options`: its further options.

    The child holds one end of a pipe; when the parent's end closes (by `stop`, or the death of this process, even by
    kill -9) it terminates. Starting does not wait; `address` waits until the child listens. `lingers`: the child
    outlives this process by `LINGER_S`, for ranks that do; otherwise the kernel kills it as soon as the thread that
    started it ends.
    """

    def __init__(
        self,
        bind: str = "127.0.0.1",
        options: Sequence[str] = (),
        command: Sequence[str] = SOFTWARE,
        *,
        lingers: bool = True,
    ):
        cache.share()
        module = (sys.executable, "-m", "host_agent.pytorch.aggregator")
        line = [*module, *command, "--bind", bind, "--control-port", "0", "--events-port", "0", "--json", *options]
        # Its errors are shown only if it fails: a rank's stderr belongs to the user's script.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        # A session of its own: Ctrl-C in the terminal reaches the ranks, which then stop the aggregator in an orderly
        # way.
        self._process = subprocess.Popen(
            line if lingers else dying_with_us(line),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )
        self._address: str | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit code of the child, None while it runs."""
        return self._process.poll()

    def wait(self, timeout_s: float) -> None:
        """Wait until the child has ended, for at most `timeout_s`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)

    @property
    def address(self) -> str:
        """HOST:PORT of the control port, once the child is ready. Raises AggregatorLost if it does not become ready."""
        if self._address is None:
            self._address = self._read_address()
        return self._address

    def last_line(self) -> str:
        """The last line of the child's stderr, for messages."""
        self._errors.seek(0)
        return last_line(self._errors.read().decode(errors="replace"))

    def stop(self) -> None:
        """End the child and wait for it. May be called twice."""
        end(self._process, STOP_TIMEOUT_S)
        for file in (self._process.stdin, self._process.stdout, self._errors):
            if file is not None:
                file.close()

    def _read_address(self) -> str:
        assert self._process.stdout is not None
        stdout = self._process.stdout.fileno()
        line = b""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not line.endswith(b"\n"):
            readable, _, _ = select.select([stdout], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(stdout, 65536) if readable else b""
            if not piece:
                ended = f"ended with exit code {self._process.wait()}" if readable else ""
                ended = ended or f"said nothing for {START_TIMEOUT_S:g} s"
                raise AggregatorLost(
                    f"the aggregator that this process started (pid {self.pid}) {ended}: {self.last_line()}"
                )
            line += piece
        return str(json.loads(line)["control"])


def _end_with_parent(parent: int) -> None:
    """Wait until stdin's other end closes or the parent process changes, then terminate, gracefully if possible."""
    while os.getppid() == parent:
        # Both checks are needed: a sibling forked without exec may hold the pipe open, and a parent in another process
        # namespace never changes.
        readable, _, _ = select.select([0], [], [], PARENT_CHECK_S)
        if readable and not os.read(0, 4096):
            break
    time.sleep(LINGER_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_TIMEOUT_S)
    os._exit(1)


def main() -> None:
    """The child's entry point: takes the subcommand and options of the switchml command line; `switchml aggregate` if
    there are only options."""
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), name="parent-watch", daemon=True).start()
    from switchml.cli.main import main as command_line

    is_named = sys.argv[1:2] and not sys.argv[1].startswith("-")
    command_line([*([] if is_named else ["aggregate"]), *sys.argv[1:]])


if __name__ == "__main__":
    main()
