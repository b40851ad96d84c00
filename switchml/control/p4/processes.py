"""Switches that a controller runs itself, as separate processes: switchml's own, which does not need root and gets its
ports later, and simple_switch from PATH, on veth pairs that are created for it (root).

A switch that dies is restarted at the same control port. None outlives the controller.
"""

import itertools
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from switchml import logs
from switchml.control.p4 import bmv2
from switchml.control.p4.driver import Driver, Unreachable
from switchml.control.p4.thrift import ThriftSwitch, parse_thrift
from switchml.errors import ConfigError
from switchml.net.ports import finish_packets, free_port
from switchml.runtime.children import dying_with_us, end, how_it_ended
from switchml.runtime.folders import TemporaryFolder
from switchml.text import last_line

log = logs.of("switchml.control")

COMPILED = Path(__file__).with_name("compiled")
"""p4/switchml.p4 as compiled by p4c."""
RUNTIME_PREFIX = "p4runtime://"
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 3.0
RESTART_PAUSE_S = 0.2
PREFIX = "sml"
"""Prefix of interfaces created here: sml, process id, end (a: the ranks', b: the switch's), number."""

_numbers = itertools.count()


class SwitchProcess:
    """A process of `command`, with arguments for its Thrift address and the program, monitored and restarted when it
    dies. `thrift` is that address, in ThriftSwitch's form: a port of this machine, which any of its users can connect
    to, or with `is_private`, which requires switchml's switch, a Unix socket in a folder that no other user may enter.
    Raises ConfigError if it does not start."""

    def __init__(self, command: Sequence[str], program: Path, is_private: bool = False):
        self._folder = TemporaryFolder("switch")
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as this object
        self.thrift: tuple[str, int]
        if is_private:
            self.thrift = f"{self._folder.name}/thrift", 0
            listening = ["--thrift-socket", self.thrift[0]]
        else:
            self.thrift = "127.0.0.1", free_port()
            listening = ["--thrift-port", str(self.thrift[1])]
        notifications = ["--notifications-addr", f"ipc://{self._folder.name}/notifications.ipc"]
        self._command = [*command, *listening, *notifications, str(program)]
        self._stopping = threading.Event()
        self._process = self._start()
        self._watcher = threading.Thread(target=self._watch, name="switchml-switch-watch", daemon=True)

    def connect(self) -> ThriftSwitch:
        """Wait until the switch answers, and monitor it from then on. Raises ConfigError if it does not."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                driver = ThriftSwitch(*self.thrift)
                break
            except Unreachable as error:
                if self._process.poll() is not None:
                    raise ConfigError(f"{self._name} ended at once: {self._last_line()}") from None
                if time.monotonic() > deadline:
                    raise ConfigError(f"{self._name} did not start within {START_TIMEOUT_S:g} s: {error}") from None
            time.sleep(0.05)
        self._watcher.start()
        return driver

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        """End the process. May be called twice."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        if self._watcher.ident is not None:
            self._watcher.join()
        end(self._process, STOP_TIMEOUT_S)
        self._output.close()
        self._folder.cleanup()

    @property
    def _name(self) -> str:
        return " ".join(Path(word).name for word in self._command[:1] if word != sys.executable) or "switchml switch"

    def _start(self) -> subprocess.Popen[bytes]:
        # A session of its own: Ctrl-C is for the controller, which ends the jobs first.
        return subprocess.Popen(
            dying_with_us(self._command),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            start_new_session=True,
        )

    def _watch(self) -> None:
        while not self._stopping.wait(RESTART_PAUSE_S):
            code = self._process.poll()
            if code is not None:
                log.warning("%s (pid %d) %s; restarting it", self._name, self.pid, how_it_ended(code))
                self._process = self._start()

    def _last_line(self) -> str:
        self._output.seek(0)
        return last_line(self._output.read().decode(errors="replace"), "no output")


class OurSwitch(SwitchProcess):
    """`switchml switch`, initially without ports."""

    links: dict[int, str] = {}

    def __init__(self, variant: str = "switchml"):
        command = [sys.executable, "-m", "switchml", "switch", "--log-level", "warn", "--log-console"]
        super().__init__(command, compiled(variant), is_private=True)


class SimpleSwitch(SwitchProcess):
    """simple_switch with `ports` ports, veth pairs whose other ends are `links`."""

    def __init__(self, ports: int, variant: str = "switchml"):
        bmv2.check()
        self._names: list[str] = []
        _remove_stale()
        try:
            interfaces = []
            for port in range(ports):
                number = next(_numbers)
                ours, theirs = (f"{PREFIX}{os.getpid()}{end}{number}" for end in "ab")
                interfaces += ["-i", f"{port}@{theirs}"]
                _run("ip", "link", "add", ours, "type", "veth", "peer", "name", theirs)
                self._names.append(ours)
                for name in (ours, theirs):
                    with suppress(OSError):
                        Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6").write_text("1")
                    finish_packets(name)
                    _run("ip", "link", "set", name, "mtu", "9000", "up")
            self.links = {port: f"packet:{name}" for port, name in enumerate(self._names)}
            super().__init__(["simple_switch", *interfaces], compiled(variant))
        except BaseException:
            self._remove()
            raise

    def stop(self) -> None:
        super().stop()
        self._remove()

    def _remove(self) -> None:
        while self._names:
            subprocess.run(["ip", "link", "del", self._names.pop()], capture_output=True, check=False)


def compiled(variant: str) -> Path:
    """The BMv2 JSON of a variant of the program. Raises ConfigError."""
    path = COMPILED / f"{variant}.json"
    if not path.is_file():
        names = ", ".join(sorted(each.stem for each in COMPILED.glob("*.json")))
        raise ConfigError(f"there is no compiled program {variant!r}: expected one of {names}")
    return path.resolve()


def connect(address: str, variant: str = "switchml") -> Driver:
    """Connect a driver to a running switch: thrift://HOST:PORT or thrift:///PATH, or p4runtime://HOST:PORT or
    p4runtime://unix:PATH, into which the program is loaded.

    Raises Unreachable, ConfigError."""
    if address.startswith(RUNTIME_PREFIX):
        from switchml.control.p4.p4runtime import P4RuntimeSwitch  # its messages are in an extra

        return P4RuntimeSwitch(address.removeprefix(RUNTIME_PREFIX), compiled(variant))
    return ThriftSwitch(*parse_thrift(address))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"{' '.join(command)}: {done.stderr.strip() or f'exit code {done.returncode}'}")


def _remove_stale() -> None:
    """Remove interfaces of controllers that were killed."""
    for path in Path("/sys/class/net").glob(f"{PREFIX}*a*"):
        pid = path.name.removeprefix(PREFIX).partition("a")[0]
        if pid.isdecimal() and not Path("/proc", pid).exists():
            subprocess.run(["ip", "link", "del", path.name], capture_output=True, check=False)
