"""Network namespaces with guaranteed cleanup: created here, entered by processes that die with this one, then removed.

A `Lab` owns all namespaces of one process. Their names begin with that process's pid and start time, so that a later
Lab recognizes and removes those of a process that was killed. The links between namespaces are created elsewhere
(star.py). Needs root and iproute2.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from switchml.errors import ConfigError, SwitchMLError
from switchml.runtime.children import die_with_parent
from switchml.runtime.raising import acknowledge, raise_until_handled

NETNS_DIR = Path("/run/netns")
"""Folder of `ip netns`'s names (ip-netns(8))."""
PREFIX = "switchml"

_CLONE_NEWNET = 0x40000000
_NAME = re.compile(rf"{PREFIX}-(\d+)-(\d+)-.+")
_SBIN = os.pathsep.join(["/usr/sbin", "/sbin"])
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a process besides Ctrl-C."""

Result = TypeVar("Result")


class Namespace:
    """One network namespace, by name; `Lab.add` creates it."""

    def __init__(self, name: str):
        self.name = name

    def ip(self, *lines: str) -> None:
        """Run lines of `ip` inside, all in one call: `space.ip("link set lo up", "addr add 10.0.0.1/24 dev eth0")`."""
        run(["ip", "-n", self.name, "-batch", "-"], "\n".join(lines))

    def tc(self, *lines: str) -> None:
        """Run lines of `tc` inside, all in one call."""
        run(["tc", "-n", self.name, "-batch", "-"], "\n".join(lines))

    def call(self, function: Callable[[], Result]) -> Result:
        """Run `function` on a thread inside the namespace, and return its result. Sockets that it opens stay in the
        namespace."""

        def inside() -> Result:
            enter(self.name)
            return function()

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(inside).result()

    def set_sysctl(self, **values: object) -> None:
        """Write files below /proc/sys/net; `__` in a key stands for a slash: `ipv4__tcp_congestion_control="cubic"`.

        Raises ConfigError for a value that the kernel rejects.
        """

        def write() -> None:
            for key, value in values.items():
                path = Path("/proc/sys/net", *key.split("__"))
                try:
                    path.write_text(f"{value}\n")
                except OSError as error:
                    raise ConfigError(f"{path} = {value}: {error.strerror}") from None

        self.call(write)

    def popen(self, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a program inside. It is killed when the calling thread ends for any reason; Ctrl-C in the terminal does
        not reach it.
        """
        starter = [sys.executable, "-m", "emulator.networks.testbed.namespaces", self.name, str(os.getpid())]
        return subprocess.Popen([*starter, *command], start_new_session=True, **options)


class Lab:
    """The namespaces of this process; `with Lab() as lab:` removes all of them at its end.

    Also removes namespaces of dead processes. While it is open, SIGTERM and SIGHUP end the process by an exception, as
    Ctrl-C does, so that the `with` block is left properly. Raises ConfigError without root or iproute2.
    """

    def __init__(self) -> None:
        check_rights()
        self._prefix = f"{PREFIX}-{os.getpid()}-{_start_time(os.getpid())}-"
        self._handlers: dict[int, Any] = {}
        sweep()

    def __enter__(self) -> Lab:
        if threading.current_thread() is threading.main_thread():
            for number in ENDING_SIGNALS:
                self._handlers[number] = signal.signal(number, raise_exit)
        return self

    def __exit__(self, *_: object) -> None:
        with _signals_ignored(bool(self._handlers)):
            self.close()
        acknowledge()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def add(self, role: str) -> Namespace:
        """Create a namespace with loopback up and IPv6 off (its background traffic would be counted with the
        experiment's)."""
        name = self._prefix + role
        run(["ip", "netns", "add", name])
        space = Namespace(name)
        space.set_sysctl(ipv6__conf__all__disable_ipv6=1, ipv6__conf__default__disable_ipv6=1)
        space.ip("link set lo up")
        return space

    def close(self) -> None:
        """Remove all namespaces. Processes inside keep their (unnamed) namespace until they end, so end them first."""
        for name in _existing():
            if name.startswith(self._prefix):
                run(["ip", "netns", "delete", name])


def check_rights() -> None:
    """Raises ConfigError if root's rights or iproute2's programs are missing."""
    if os.geteuid() != 0:
        raise ConfigError("network namespaces need root: run this with sudo")
    missing = [program for program in ("ip", "tc") if find_program(program) is None]
    if missing:
        raise ConfigError(f"not found: {' and '.join(missing)}; install them with: apt install iproute2")


def sweep() -> list[str]:
    """Remove the namespaces of dead processes. Returns their names."""
    removed = []
    for name in _existing():
        match = _NAME.fullmatch(name)
        if match and _start_time(int(match[1])) != int(match[2]):
            with contextlib.suppress(SwitchMLError):  # another process may sweep concurrently
                run(["ip", "netns", "delete", name])
                removed.append(name)
    return removed


def run(command: Sequence[str], stdin: str = "") -> str:
    """Run a program of iproute2 and return its output. Raises SwitchMLError with its error message."""
    program = find_program(command[0])
    if program is None:
        raise ConfigError(f"not found: {command[0]}; install it with: apt install iproute2")
    # A separate session: Ctrl-C must not stop it half-way through a batch.
    done = subprocess.run([program, *command[1:]], input=stdin, capture_output=True, text=True, start_new_session=True)
    if done.returncode:
        reason = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise SwitchMLError(f"{' '.join(command)}: {reason}")
    return done.stdout


def enter(name: str) -> None:
    """Move the calling thread, and processes it starts afterwards, into the namespace (setns(2))."""
    fd = os.open(NETNS_DIR / name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        call_libc("setns", fd, _CLONE_NEWNET)
    finally:
        os.close(fd)


def call_libc(function: str, *arguments: int | bytes | None) -> None:
    """Make a system call through its C function. Raises ConfigError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, function)(*(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments)) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise ConfigError(f"{function}{arguments}: {reason} (in a container: is it privileged?)")


def find_program(name: str) -> str | None:
    """Path of a program, including root's programs that PATH omits."""
    return shutil.which(name) or shutil.which(name, path=_SBIN)


def _existing() -> list[str]:
    try:
        return sorted(os.listdir(NETNS_DIR))
    except FileNotFoundError:
        return []


def _start_time(pid: int) -> int | None:
    """Start time of a process, in clock ticks since boot (proc(5), stat field 22); None if it does not run."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])  # a zombie has ended, even if not yet waited for


def raise_exit(number: int, _: object) -> NoReturn:
    """Signal handler: end by an exception, as Ctrl-C does."""
    raise_until_handled(SystemExit(128 + number))


@contextlib.contextmanager
def _signals_ignored(is_main_thread: bool) -> Iterator[None]:
    """Ignore Ctrl-C, SIGTERM and SIGHUP; possible only in the main thread."""
    if not is_main_thread:
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, *ENDING_SIGNALS)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main() -> None:
    """`python -m emulator.networks.testbed.namespaces NAME PARENT COMMAND …`: become COMMAND inside the namespace
    NAME."""
    name, parent, *command = sys.argv[1:]
    die_with_parent(int(parent))
    enter(name)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
