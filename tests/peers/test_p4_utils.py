"""p4-utils' network API builds a network of our switches: found on PATH as simple_switch, programmed by its Thrift
client.

It starts with Mininet's cleanup, which kills by name and deletes logs in /tmp, so it runs in namespaces of its own.
Needs a checkout of https://github.com/nsg-ethz/p4-utils on PYTHONPATH, with what it imports."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "emulator" / "lab" / "bench" / "switch" / "programs" / "l3.json"
DEBIAN = "/usr/lib/python3/dist-packages"

NETWORK = """
from p4utils.mininetlib.network_API import NetworkAPI

net = NetworkAPI()
net.setLogLevel("info")
net.disableCli()
net.addP4Switch("s1", json_path={program!r}, cli_input="s1.txt")
net.addHost("h1")
net.addHost("h2")
net.addLink("s1", "h1", port1=1)
net.addLink("s1", "h2", port1=2)
net.setIntfIp("h1", "s1", "10.0.0.1/24")
net.setIntfIp("h2", "s1", "10.0.0.2/24")
net.setIntfMac("h1", "s1", "00:00:0a:00:00:01")
net.setIntfMac("h2", "s1", "00:00:0a:00:00:02")
net.enableLogAll()
net.startNetwork()
for name in "h1", "h2":
    host = net.net.get(name)
    other = 3 - int(name[1])
    host.cmd(f"arp -s 10.0.0.{{other}} 00:00:0a:00:00:0{{other}} || ip neigh replace 10.0.0.{{other}} lladdr "
             f"00:00:0a:00:00:0{{other}} dev {{name}}-eth0")
print("RESULT", net.net.get("h1").cmd("ping -c 3 -i 0.2 -W 20 10.0.0.2"))
net.stopNetwork()
"""
COMMANDS = """table_add routes route 10.0.0.1/32 => 00:00:0a:00:00:01 1
table_add routes route 10.0.0.2/32 => 00:00:0a:00:00:02 2
"""
ISOLATED = """mount -t tmpfs none /mnt && mkdir /mnt/upper /mnt/work &&
mount -t overlay overlay -o lowerdir=/tmp,upperdir=/mnt/upper,workdir=/mnt/work /tmp &&
mount -t sysfs none /sys && ip link set lo up && exec "$@" """
"""What is written to or deleted from /tmp is a matter of this mount namespace."""


@pytest.mark.root
@pytest.mark.slow
def test_a_network_of_p4_utils(tmp_path_factory, require_program):
    for program in ("mn", "mnexec", "unshare", "ip"):
        require_program(program)
    if importlib.util.find_spec("p4utils") is None:
        pytest.skip("needs p4-utils (https://github.com/nsg-ethz/p4-utils) on PYTHONPATH")
    source = Path(importlib.util.find_spec("p4utils").origin).parents[1]
    folder = Path("/var/tmp") / f"p4-utils-{os.getpid()}"
    shutil.copytree(source / "p4utils", folder / "p4utils")
    try:
        program, binaries = folder / "l3.json", folder / "bin"
        shutil.copy(PROGRAM, program)
        binaries.mkdir()
        launcher = binaries / "simple_switch"
        launcher.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m switchml switch "$@"\n')
        launcher.chmod(0o755)
        (folder / "network.py").write_text(NETWORK.format(program=str(program)))
        (folder / "s1.txt").write_text(COMMANDS)
        done = subprocess.run(
            ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", ISOLATED,
             "sh", sys.executable, "network.py"],
            cwd=folder, capture_output=True, text=True, timeout=110,
            env={**os.environ, "PATH": f"{binaries}:{os.environ['PATH']}", "PYTHONPATH": f"{folder}:{DEBIAN}"},
        )  # fmt: skip
        log = folder / "log" / "p4s.s1.log"
        output = done.stdout + done.stderr + (log.read_text() if log.exists() else "")
        assert "3 received" in done.stdout + done.stderr, output
    finally:
        shutil.rmtree(folder, ignore_errors=True)
