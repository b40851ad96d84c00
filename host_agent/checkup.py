"""Checks of this machine: kernel features, privileges, packages and programs, each as a finding with advice."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from switchml.cli.extras import EXTRAS, Extra, is_there
from switchml.errors import ConfigError

TARGET_BUFFER_BYTES = 4 << 20


@dataclass(frozen=True)
class Finding:
    """Result of one check. `state`: ok, missing (something optional) or broken. `advice`: what to install or set, or
    empty."""

    name: str
    state: str
    detail: str
    advice: str = ""

    def as_dict(self) -> dict[str, str]:
        return {"state": self.state, "found": self.detail, "advice": self.advice}


def _optional(name: str, is_there: bool, detail: str, advice: str) -> Finding:
    """Finding about an optional feature; the advice applies if it is missing."""
    return Finding(name, "ok", detail) if is_there else Finding(name, "missing", detail, advice)


PROGRAMS = {
    "tshark": (["tshark", "--version"], "reads captures with scripts/switchml.lua: apt install tshark"),
    "ip": (["ip", "-V"], "creates network namespaces and veth links: apt install iproute2"),
    "mn": (["mn", "--version"], "Mininet, for experiments on emulated networks: apt install mininet"),
    "p4c": (["p4c", "--version"], "compiles P4 programs: build github.com/p4lang/p4c"),
    "simple_switch": (
        ["simple_switch", "--version"],
        "the original BMv2 switch: build github.com/p4lang/behavioral-model",
    ),
    "simple_switch_CLI": (["simple_switch_CLI", "--help"], "its command line: pip install 'switchml[p4]'"),
}
"""Program → the command that prints its version, and its purpose with install instructions."""


def run_checks() -> list[Finding]:
    """Run all checks except the torch comparison and the all-reduce trial, which take longer."""
    python = Finding("Python", "ok", f"{platform.python_version()} ({platform.python_implementation()})")
    findings = [python, _machine(), _root(), _namespaces(), *_udp_offload(), _buffers(), _ports()]
    findings += [_extra(name, extra) for name, extra in EXTRAS.items()]
    if importlib.util.find_spec("torch"):
        findings += [_torch_backend(), _torch_store()]
    findings.append(_bmv2())
    findings += [_program(name, command, use) for name, (command, use) in PROGRAMS.items()]
    return findings


def _machine() -> Finding:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    cores = len(os.sched_getaffinity(0))
    system = f"{platform.system()} {platform.release()}, {platform.machine()}"
    return Finding("machine", "ok", f"{system}, {cores} cores, {memory:.0f} GiB")


def _root() -> Finding:
    is_root = os.geteuid() == 0
    advice = "needed for network namespaces, Mininet and raw interfaces only"
    return _optional("root", is_root, "yes" if is_root else "no", advice)


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
        _optional(f"UDP {what}", is_there, "yes" if is_there else "no", advice.format(version))
        for what, is_there, version in (("segmentation (GSO)", segment, "4.18"), ("coalescing (GRO)", gro, "5.0"))
    ]


def _buffers() -> Finding:
    from switchml.net.sockets import grow_buffers

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        size_bytes = grow_buffers(sock, TARGET_BUFFER_BYTES)
    advice = f"sysctl -w net.core.rmem_max={TARGET_BUFFER_BYTES} net.core.wmem_max={TARGET_BUFFER_BYTES}"
    return _optional(
        "socket buffers",
        size_bytes >= TARGET_BUFFER_BYTES,
        f"{size_bytes >> 10} KiB a socket",
        f"windows are smaller than they could be; {advice}",
    )


def _ports() -> Finding:
    from switchml.protocol.packet import UDP_PORT

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.bind(("127.0.0.1", UDP_PORT))
        except OSError as error:
            advice = "another aggregator? `switchml aggregate --data-port 0` takes any free one"
            return Finding("data port", "missing", f"UDP {UDP_PORT}: {error.strerror}", advice)
    return Finding("data port", "ok", f"UDP {UDP_PORT} is free")


def _extra(name: str, extra: Extra) -> Finding:
    """Check one of this package's extras: whether its modules can be imported, and what it unlocks."""
    missing = [module for module in extra.modules if not is_there(module)]
    advice = f"{extra.unlocks}: pip install 'switchml[{name}]'"
    found = f"without {', '.join(missing)}" if missing else extra.unlocks
    return _optional(f"extra {name}", not missing, found, advice)


def _torch_backend() -> Finding:
    is_there = any(entry.name == "switchml" for entry in importlib.metadata.entry_points(group="torch.backends"))
    return _optional(
        "torch backend",
        is_there,
        "found by torch as 'switchml'" if is_there else "no entry point",
        "install the package (pip install -e .) or import host_agent.pytorch.backend in the script",
    )


def _torch_store() -> Finding:
    """Check whether a job started in this environment would expose its secret to other machines."""
    from switchml.control.secret import given_secret, is_beyond_loopback, open_secret

    name, host = "torch's store", os.environ.get("MASTER_ADDR", "")
    try:
        secret = given_secret()
    except ConfigError as error:
        return Finding(name, "broken", str(error))
    if secret:
        return Finding(name, "ok", "holds no secret: the ranks have one")
    if not host or not is_beyond_loopback(host):
        where = f"MASTER_ADDR {host} is" if host else "without MASTER_ADDR, on"
        return Finding(name, "ok", f"holds a job's secret, {where} loopback")
    return Finding(name, "missing", f"holds a job's secret, at MASTER_ADDR {host}", f"of a job, {open_secret(host)}")


def compared(device: str | None) -> Finding:
    """Compare the torch backend on a device with exact results and Gloo (`host_agent.comparison`); default device: the
    first GPU, if any."""
    name = f"torch on {device or 'GPU'}"
    if not importlib.util.find_spec("torch"):
        return Finding(name, "missing", "no torch")
    import torch

    if device != "cpu" and not torch.cuda.is_available():
        is_wanted = device == "cuda"
        return Finding(name, "broken" if is_wanted else "missing", "no GPU that torch can use: nothing compared")
    from host_agent.comparison import compare

    wrong = compare(device or "cuda")
    if wrong:
        return Finding(name, "broken", "; ".join(wrong), "do not train there, and please report this")
    where = "the CPU" if device == "cpu" else torch.cuda.get_device_name()
    return Finding(name, "ok", f"right: collectives, DDP, FSDP2 and streams on {where}")


def _bmv2() -> Finding:
    from switchml.control.p4 import bmv2

    missing = bmv2.missing_requirements()
    found = f"lacks {', '.join(missing)}" if missing else "can run"
    return _optional("--aggregator bmv2", not missing, found, "the real switch; --aggregator p4 needs nothing")


def _program(name: str, command: list[str], use: str) -> Finding:
    python_folder = str(Path(sys.executable).parent)  # of a virtual environment that may not be activated
    path = shutil.which(name) or shutil.which(name, path=f"{python_folder}:/usr/sbin:/sbin")
    if path is None:
        return Finding(name, "missing", "not on PATH", use)
    try:
        output = subprocess.run([path, *command[1:]], capture_output=True, text=True, timeout=10)
        lines = [line.strip() for line in (output.stdout + output.stderr).splitlines() if line.strip()]
        version = lines[0] if output.returncode == 0 and lines and name != "simple_switch_CLI" else path
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding(name, "broken", f"{path}: {error}", use)
    return Finding(name, "ok", version)
