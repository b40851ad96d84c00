"""P4Runtime controllers that others wrote, p4runtime-shell and Finsy, on `switchml switch` with simple_switch_grpc's
options: the same steps on packet_io.p4, and the same seen by each.

Both want versions of protobuf that do not go with ours. Install each where it likes, and name the Pythons that have
them in SWITCHML_PEER_PYTHONS, separated by colons.
"""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("p4", reason="needs the package p4runtime: pip install 'switchml[p4]'")

HERE = Path(__file__).parent
PROGRAM = HERE.parent / "programs" / "packet_io"
FRAME = "000000000001" + "000000000002" + "1234" + "00" * 46


def python_with(module: str, package: str) -> str:
    """A Python that can import `module`, or skip."""
    for python in [sys.executable, *filter(None, os.environ.get("SWITCHML_PEER_PYTHONS", "").split(":"))]:
        if subprocess.run([python, "-c", f"import {module}"], capture_output=True).returncode == 0:
            return python
    pytest.skip(f"needs the package {package}, here or in a Python named by SWITCHML_PEER_PYTHONS")


@pytest.fixture
def address():
    """Where a switch serves P4Runtime. What leaves its port 4 comes back there."""
    echo = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    echo.bind(("127.0.0.1", 0))

    def send_back():
        while True:
            try:
                data, sender = echo.recvfrom(65536)
                if not data:
                    return
                echo.sendto(data, sender)
            except OSError:
                return

    threading.Thread(target=send_back, daemon=True).start()
    ports = []
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_INET, kind) as probe:
            probe.bind(("127.0.0.1", 0))
            ports.append(probe.getsockname()[1])
    grpc_port, udp_port = ports
    command = [sys.executable, "-m", "switchml", "switch", "--no-p4", "--engine", "reference", "--thrift-port", "0"]
    command += ["-i", f"4@udp:127.0.0.1:{udp_port},127.0.0.1:{echo.getsockname()[1]}", "-L", "off", "--"]
    command += ["--grpc-server-addr", f"127.0.0.1:{grpc_port}", "--cpu-port", "510"]
    process = subprocess.Popen(command)
    try:
        end = time.monotonic() + 60
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", grpc_port)) == 0:
                    break
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.02)
        yield f"127.0.0.1:{grpc_port}"
    finally:
        process.kill()
        process.wait()
        echo.close()


@pytest.mark.parametrize(
    ("script", "module", "package"),
    [("p4runtime_finsy.py", "finsy", "finsy"), ("p4runtime_shell.py", "p4runtime_sh", "p4runtime-shell")],
)
def test_client(address, script, module, package):
    python = python_with(module, package)
    arguments = [address, f"{PROGRAM}.p4info.txtpb", f"{PROGRAM}.json"]
    done = subprocess.run([python, HERE / script, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    saw = json.loads(done.stdout)
    inserted, modified = saw.pop("inserted"), saw.pop("modified")
    assert len(inserted) == len(modified) == 1 and "send" in inserted[0] and "punt" in modified[0]
    assert saw == {
        "primary": True, "refused": "ALREADY_EXISTS", "groups": [7], "sessions": [5],
        "packets": [[4, 0, 9, FRAME], [33, 1, 0, FRAME]], "left": [],
    }  # fmt: skip
