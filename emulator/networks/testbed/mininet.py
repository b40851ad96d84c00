"""P4 switches and hosts for Mininet, with the keyword arguments of BMv2's, p4lang tutorials' and p4-utils' classes.

    net = Mininet(topo, host=P4Host, switch=P4Switch, controller=None)

A switch runs `switchml switch` unless another program is given (`sw_path`), and is up when its control port listens. It
needs root and Mininet, from Debian's package `mininet` or from PyPI with `mnexec`."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import shlex
import socket
import sys
import time
from pathlib import Path

if importlib.util.find_spec("mininet") is None:
    # Debian installs it outside a virtual environment's path.
    _spec = importlib.machinery.PathFinder.find_spec("mininet", ["/usr/lib/python3/dist-packages"])
    if _spec is not None and _spec.loader is not None:
        sys.modules["mininet"] = importlib.util.module_from_spec(_spec)
        _spec.loader.exec_module(sys.modules["mininet"])

from mininet.log import info
from mininet.node import Host, Switch

from switchml.errors import ConfigError

START_TIMEOUT_S = 30.0
"""Time limit until a switch's control port listens."""
FIRST_THRIFT_PORT, FIRST_GRPC_PORT = 9090, 9559
OURS = (sys.executable, "-m", "switchml", "switch")
"""Command that runs switchml's switch."""


class P4Host(Host):
    """A host whose interface is named eth0, without IPv6, whose packets would confuse most P4 programs.

    `offload`: leave checksums and segmentation to the interface, the Linux default. This is efficient with switchml's
    switch: one system call then moves many packets. Others, such as BMv2, would see unfinished checksums and packets of
    64 kB; use False for them."""

    def config(self, offload: bool = True, **params) -> dict:
        result = super().config(**params)
        self.defaultIntf().rename("eth0")
        if not offload:
            for feature in ("rx", "tx", "sg"):
                self.cmd("ethtool --offload eth0", feature, "off")
        for name in ("all", "default", "lo"):
            self.cmd(f"sysctl -w net.ipv6.conf.{name}.disable_ipv6=1")
        return result

    def describe(self) -> None:
        """Print name and addresses."""
        interface = self.defaultIntf()
        print(f"{self.name}: {interface.name} {interface.IP()} {interface.MAC()}")


class P4Switch(Switch):
    """A switch that runs the program `json_path` (None: it is loaded later).

    `sw_path` or `sw_bin`: a program with simple_switch's command line, instead of switchml's. `thrift_port`: by default
    counted up from 9090. `grpc_port`: serve P4Runtime there, too. `pcap_dump`: write the frames of each port to files,
    in `pcap_dir` or in the directory that it names. `log_console`, `log_file`: where output goes, /tmp/p4s.NAME.log by
    default. `device_id`: by default counted up from 0. `cpu_port`, `priority_queues`, `enable_debugger`: as the options
    of these names. `verbose` is accepted for compatibility and ignored. Raises ConfigError if the switch does not
    start."""

    _next_device_id = 0
    _next_thrift_port = FIRST_THRIFT_PORT

    def __init__(
        self,
        name: str,
        sw_path: str | None = None,
        json_path: str | None = None,
        thrift_port: int | None = None,
        grpc_port: int | None = None,
        pcap_dump: bool | str = False,
        pcap_dir: str | None = None,
        log_console: bool = False,
        log_file: str | None = None,
        device_id: int | None = None,
        cpu_port: int | None = None,
        priority_queues: int | None = None,
        enable_debugger: bool = False,
        verbose: bool = False,
        sw_bin: str | None = None,
        **kwargs,
    ) -> None:
        super().__init__(name, **kwargs)
        if json_path is not None and not Path(json_path).is_file():
            raise ConfigError(f"switch {name}: there is no program {json_path}")
        own = sw_path or sw_bin
        self.command = tuple(shlex.split(own)) if own else OURS
        self.sw_path = own or " ".join(OURS)
        self.json_path = json_path
        self.pcap_dir = (pcap_dump if isinstance(pcap_dump, str) else pcap_dir or ".") if pcap_dump else None
        self.log_console = log_console
        self.log_file = log_file or f"/tmp/p4s.{name}.log"
        self.cpu_port = cpu_port
        self.priority_queues = priority_queues
        self.enable_debugger = enable_debugger
        self.verbose = verbose
        self.grpc_port = grpc_port
        if device_id is None:
            device_id = P4Switch._next_device_id
        self.device_id = device_id
        P4Switch._next_device_id = max(P4Switch._next_device_id, device_id + 1)
        if thrift_port is None:
            thrift_port = P4Switch._next_thrift_port
            P4Switch._next_thrift_port += 1
        self.thrift_port = thrift_port
        self.switch_pid: int | None = None

    def arguments(self) -> list[str]:
        """The command line. Interfaces with an IP address, like lo, are not ports."""
        args = list(self.command)
        for port, interface in self.intfs.items():
            if not interface.IP():
                args += ["-i", f"{port}@{interface.name}"]
        if self.pcap_dir is not None:
            args.append(f"--pcap={self.pcap_dir}")
        args += ["--thrift-port", str(self.thrift_port), "--device-id", str(self.device_id)]
        args += ["--nanolog", f"ipc:///tmp/bm-{self.device_id}-log.ipc"] if self.command != OURS else []
        args += ["--log-console"] if self.log_console else []
        args += ["--debugger"] if self.enable_debugger else []
        args.append(self.json_path or "--no-p4")
        target = []
        if self.grpc_port is not None:
            target += ["--grpc-server-addr", f"0.0.0.0:{self.grpc_port}"]
        if self.cpu_port is not None:
            target += ["--cpu-port", str(self.cpu_port)]
        if self.priority_queues is not None:
            target += ["--priority-queues", str(self.priority_queues)]
        return args + (["--", *target] if target else [])

    def start(self, controllers: list) -> None:
        """Start the switch in the background, and wait until its control port listens."""
        for port in filter(None, (self.thrift_port, self.grpc_port)):
            if _listens(port):
                raise ConfigError(f"switch {self.name}: port {port} is in use")
        command = shlex.join(self.arguments())
        info(f"{command}\n")
        output = self.cmd(f"{command} > {shlex.quote(self.log_file)} 2>&1 & echo pid $!")
        self.switch_pid = int(output.split("pid", 1)[1].split()[0])
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _listens(self.grpc_port or self.thrift_port):
            if not os.path.exists(f"/proc/{self.switch_pid}") or time.monotonic() > deadline:
                raise ConfigError(f"switch {self.name} did not start: see {self.log_file}")
            time.sleep(0.05)

    def stop(self, deleteIntfs: bool = True) -> None:  # Mininet's argument name
        """Stop the switch."""
        if self.switch_pid is not None:
            self.cmd(f"kill {self.switch_pid}; wait")
            self.switch_pid = None
        super().stop(deleteIntfs)

    def describe(self) -> None:
        """Print name and control ports."""
        grpc = f", gRPC port: {self.grpc_port}" if self.grpc_port is not None else ""
        print(f"{self.name} -> Thrift port: {self.thrift_port}{grpc}")


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class P4RuntimeSwitch(P4Switch):
    """A switch that serves P4Runtime, too, on ports counted up from 9559 by default."""

    _next_grpc_port = FIRST_GRPC_PORT

    def __init__(self, name: str, grpc_port: int | None = None, **kwargs) -> None:
        if grpc_port is None:
            grpc_port = P4RuntimeSwitch._next_grpc_port
            P4RuntimeSwitch._next_grpc_port += 1
        super().__init__(name, grpc_port=grpc_port, **kwargs)
