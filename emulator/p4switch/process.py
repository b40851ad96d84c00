"""simple_switch as a process: builds a device from command-line options, and runs it."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from emulator.p4switch import logs
from emulator.p4switch.device import Device
from emulator.p4switch.interpreter.interpreter import Interpreter
from emulator.p4switch.interpreter.logged import LoggedInterpreter
from emulator.p4switch.interpreter.packet_log import PacketLog
from emulator.p4switch.notifications import Notifications, Publisher, default_address
from emulator.p4switch.packet_path.engine import Engine
from emulator.p4switch.pauses import avoid_pauses
from emulator.p4switch.ports.files import FilePorts
from emulator.p4switch.ports.port import Ports, parse_interface
from emulator.p4switch.program.loader import loader
from emulator.p4switch.state.state import State
from emulator.p4switch.switch import Switch
from emulator.p4switch.thrift.server import LOOPBACK, ThriftServer
from switchml.errors import ConfigError, ProgramAbort
from switchml.logs import of
from switchml.runtime.raising import wait_for

if TYPE_CHECKING:
    from emulator.p4switch.p4runtime.server import P4RuntimeServer

log = of("switchml.bmv2")

LIKE_VERSION = "1.15.5"
"""The version of BMv2 that this switch emulates; BMv2's command-line tools check it."""
JSON_VERSION = "2.24"
"""The newest supported version of BMv2 JSON."""

NO_PROGRAM = Path(__file__).with_name("no_program.json")
"""The program that runs until another is loaded: it drops everything."""


@dataclass(frozen=True)
class SwitchSettings:
    """simple_switch's options, by their long names."""

    program: Path | None
    interfaces: tuple[str, ...] = ()
    use_files: float | None = None
    pcap: str | None = None
    thrift_port: int = 9090
    thrift_ip: str = LOOPBACK
    thrift_socket: str | None = None
    device_id: int = 0
    notifications_addr: str | None = None
    log_console: bool = False
    log_file: str | None = None
    log_level: str = "trace"
    log_file_max_size: int = logs.MAX_BYTES
    log_file_max_files: int = logs.MAX_FILES
    trace_packet: str | None = None
    dump_packet_data: int = 0
    restore_state: str | None = None
    no_p4: bool = False
    enable_swap: bool = False
    disable_swap: bool = False
    drop_port: int = 511
    priority_queues: int = 1
    max_mc_groups: int = 4096
    max_l1_entries: int = 4096
    engine: str = "auto"
    stale_fields: bool = False
    grpc_server_addr: str | None = None
    cpu_port: int | None = None
    grpc_server_ssl: bool = False
    grpc_server_cacert: str | None = None
    grpc_server_cert: str | None = None
    grpc_server_key: str | None = None
    grpc_server_with_client_auth: bool = False

    @property
    def logs_packets(self) -> bool:
        """Whether packets are logged."""
        is_in_log = logs.LEVELS[self.log_level] <= logging.DEBUG and (self.log_console or self.log_file is not None)
        return is_in_log or self.trace_packet is not None

    @property
    def can_swap(self) -> bool:
        """Whether another program may be loaded; allowed by default with simple_switch_grpc's interface."""
        return (self.enable_swap or self.no_p4 or self.grpc_server_addr is not None) and not self.disable_swap

    def __post_init__(self) -> None:
        if self.log_console and self.log_file is not None:
            raise ConfigError("--log-console and --log-file can't be combined")
        self._check_tls()
        if self.pcap is not None and not Path(self.pcap).is_dir():
            raise ConfigError(f"--pcap: there is no directory {self.pcap!r}")

    def _check_tls(self) -> None:
        """Check TLS options as simple_switch_grpc does, and that there is a server to apply them to."""
        ssl, addr, cert, key, cacert, auth = (
            f"--grpc-server-{name}" for name in ("ssl", "addr", "cert", "key", "cacert", "with-client-auth")
        )
        values = {
            addr: self.grpc_server_addr, cert: self.grpc_server_cert, key: self.grpc_server_key,
            cacert: self.grpc_server_cacert, auth: self.grpc_server_with_client_auth,
        }  # fmt: skip
        if self.grpc_server_ssl:
            needs = [(ssl, other) for other in (addr, cert, key)]
        else:
            needs = [(option, ssl) for option in (cacert, cert, key, auth) if values[option]]
        for option, other in needs:
            if not values.get(other):
                raise ConfigError(f"{option} needs {other}")
        if values[auth] and not values[cacert]:
            raise ConfigError(f"{auth} needs {cacert}, which signs clients' certificates")


class Process:
    """A running device and its control interfaces. `signals`, except ignored ones, end this process, also before its
    first packet."""

    def __init__(self, settings: SwitchSettings, signals: Iterable[int] = ()) -> None:
        self.settings = settings
        self._ended = threading.Event()
        self._exit_code = 0
        self.device = Device(
            make_switch(settings),
            self._make_ports(),
            device_id=settings.device_id,
            notifications_address=settings.notifications_addr or default_address(settings.device_id),
            can_swap=settings.can_swap,
            dump_bytes=settings.dump_packet_data,
            on_abort=self._abort,
        )
        self._publisher: Publisher | None = None
        self.thrift: ThriftServer | None = None
        for number in signals:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self.end)
        try:
            self._open()
        except BaseException:
            self.remove_files()
            raise
        threading.Thread(target=self._begin, name="begin", daemon=True).start()

    def _open(self) -> None:
        """Open the control interfaces and the ports."""
        settings = self.settings
        self._notify()
        if settings.restore_state is not None:
            self.device.restore(settings.restore_state)
        for number, interface in sorted(map(parse_interface, settings.interfaces)):
            log.debug("Adding interface %s as port %d", interface, number)
            self.device.ports.add(number, interface, settings.pcap)
        if settings.thrift_port or settings.thrift_socket is not None:
            log.info("Starting Thrift server on %s", settings.thrift_socket or f"port {settings.thrift_port}")
            self.thrift = ThriftServer(self.device, settings.thrift_port, settings.thrift_ip, settings.thrift_socket)
            self.device.thrift_port = self.thrift.port
            log.info("Thrift server was started")
        address = settings.grpc_server_addr
        self.p4runtime = self._serve_p4runtime(address) if address is not None else None

    def remove_files(self) -> None:
        """Remove the sockets from the file system. Those of a killed switch are replaced by the next one."""
        for server in (self._publisher, self.thrift):
            if server is not None:
                server.remove_file()
        address = self.settings.grpc_server_addr or ""
        if address.startswith("unix:"):
            Path(address.removeprefix("unix:")).unlink(missing_ok=True)

    def _serve_p4runtime(self, address: str) -> P4RuntimeServer:
        """Start the P4Runtime server. Raises ConfigError, also if its package is missing."""
        from emulator.p4switch.p4runtime.server import P4RuntimeServer, credentials  # slow import

        settings = self.settings
        tls, key, certificate = None, settings.grpc_server_key, settings.grpc_server_cert
        if key is not None and certificate is not None:
            tls = credentials(key, certificate, settings.grpc_server_cacert, settings.grpc_server_with_client_auth)
        server = P4RuntimeServer(self.device, address, settings.cpu_port, tls)
        log.info("P4Runtime server listens on %s", address)
        return server

    def _begin(self) -> None:
        """Start forwarding immediately, with the interpreter, and switch to the compiled engine once it is ready."""
        avoid_pauses(self.device.switch)
        self.device.start()
        if self.settings.logs_packets:
            log.info("Packets go through the interpreter, which writes the packet log")
        elif self.settings.engine == "auto" and self.settings.use_files is None:
            make = partial(compiled_if_possible, stale_fields=self.settings.stale_fields)
            if not isinstance(self.device.switch.change_engine(make), Interpreter):
                log.info("Packets go through the compiled engine from now on")
            gc.freeze()  # its objects are permanent

    def _notify(self) -> None:
        """Publish digests and idle entries. A failure is an error only if the address was set by an option."""
        try:
            publisher = self._publisher = Publisher(self.device.notifications_address)
        except ConfigError as error:
            if self.settings.notifications_addr is not None:
                raise
            log.warning("%s", error)
            return
        watch = Notifications(publisher, self.settings.device_id).watch
        watch(self.device.state)
        self.device.switch.on_load.append(watch)

    def _make_ports(self) -> Ports:
        if self.settings.use_files is not None:
            return FilePorts(max(self.settings.use_files, 0), self._fail)
        from emulator.p4switch.ports.live import LivePorts  # imported here: slow, and not needed for files

        return LivePorts()

    def _fail(self, error: ConfigError) -> None:
        self._exit_code = 1
        self._ended.set()

    def wait(self) -> int:
        """Wait until the process is ended; returns its exit code."""
        wait_for(self._ended)
        return self._exit_code

    def end(self, number: int, frame: FrameType | None) -> None:
        """Signal handler: end by this signal, as BMv2 does, but remove socket files."""
        self.remove_files()
        logging.shutdown()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _abort(self, error: ProgramAbort) -> None:
        self.remove_files()
        abort(error)


def start(settings: SwitchSettings) -> Process:
    """Set up the log and start the switch, from the main thread; a signal ends it. Raises
    ProgramError or ConfigError."""
    sizes = settings.log_file_max_size, settings.log_file_max_files
    logs.set_up(settings.log_level, settings.log_console, settings.log_file, *sizes)
    return Process(settings, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))


def make_switch(settings: SwitchSettings) -> Switch:
    program = loader.load(settings.program or NO_PROGRAM)
    make: Callable[..., Engine]
    if settings.logs_packets:  # packets are logged by the interpreter only
        make = partial(LoggedInterpreter, packet_log=PacketLog(settings.trace_packet))
    else:  # with "auto" the compiled engine follows, except for files: tests end before kernels are loaded
        make = compiled if settings.engine == "compiled" else Interpreter
    engine = partial(make, stale_fields=settings.stale_fields)
    switch = Switch(program, drop_port=settings.drop_port, n_priorities=settings.priority_queues, engine=engine)
    switch.state.replication.max_groups = settings.max_mc_groups
    switch.state.replication.max_nodes = settings.max_l1_entries
    return switch


def compiled(state: State, *settings: Any, stale_fields: bool = False) -> Engine:
    """Create the compiled engine. Raises ConfigError for a program that it can't run."""
    from emulator.p4switch.engine.code import Unsupported  # numba is a slow import
    from emulator.p4switch.engine.engine import CompiledEngine

    try:
        return CompiledEngine(state, *settings, stale_fields=stale_fields)
    except Unsupported as error:
        raise ConfigError(f"the compiled engine can't run this program: {error}") from error


def compiled_if_possible(state: State, *settings: Any, stale_fields: bool = False) -> Engine:
    """Create the compiled engine, or else the reference interpreter."""
    try:
        return compiled(state, *settings, stale_fields=stale_fields)
    except ConfigError as error:
        log.warning("%s; it runs on the interpreter, which is slow", error)
        return Interpreter(state, *settings, stale_fields=stale_fields)


def abort(error: ProgramAbort) -> None:
    """End the process as BMv2 does: by a signal if the exit code is negative."""
    logging.shutdown()
    if error.exit_code < 0:
        os.kill(os.getpid(), -error.exit_code)
        time.sleep(1)  # the signal may be handled by another thread, with a delay
    os._exit(error.exit_code & 0xFF)
