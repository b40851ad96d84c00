"""`switchml switch` as a process: what it takes, what it says, and how it ends."""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from emulator.p4switch.ports.pcap import PcapReader
from emulator.p4switch.process import SwitchSettings
from switchml.control.thrift.client import Client
from tests.support.launch import until
from tests.support.p4_programs import PATHS

ROOT = Path(__file__).parents[3]
SWITCH = [sys.executable, "-m", "switchml", "switch"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def run(*args: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run([*SWITCH, *args], capture_output=True, text=True, timeout=60, env=ENVIRONMENT, **options)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def start(tmp_path):
    """Starts a switch in tmp_path; gives (process, client) once its Thrift port listens."""
    processes = []

    def begin(*args: str) -> tuple[subprocess.Popen, Client]:
        port = free_port()
        process = subprocess.Popen(
            [*SWITCH, *args, "--thrift-port", str(port), "--thrift-ip", "127.0.0.1"],
            cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        processes.append(process)
        deadline = time.monotonic() + 60
        while True:
            try:
                return process, Client("127.0.0.1", port)
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(process.communicate(timeout=5)[0]) from None
                time.sleep(0.02)

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def capture(*frames: bytes) -> bytes:
    data = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
    for frame in frames:
        data += struct.pack("<IIII", 0, 0, len(frame), len(frame)) + frame
    return data


@pytest.mark.slow
def test_versions():
    assert run("--version").stdout.strip() == "1.15.5"
    assert run("--json-version").stdout.strip() == "2.24"


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize(("args", "code", "message"), [
    ([], 2, "no program"), (["nonsense.json"], 1, "can't read the program nonsense.json"),
    (["-i", "veth0", "l3.json"], 1, "not a port"), (["--pcap=nonsense", "l3.json"], 1, "no directory"),
    (["--log-console", "--log-file", "x", "l3.json"], 1, "can't be combined"),
    (["--log-file", "nonsense/x", "l3.json"], 1, "--log-file nonsense/x.txt: No such file or directory"),
    (["--use-files", "0", "-i", "0@nonsense", "l3.json"], 1, "can't read nonsense_in.pcap"),
    (["--restore-state", "nonsense", "l3.json"], 1, "can't read nonsense: No such file"),
])  # fmt: skip
def test_what_it_refuses(args, code, message):
    done = run(*args, "--thrift-port", "0", cwd=PATHS["l3"].parent)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_files_in_and_out(start, tmp_path):
    """As p4c's test runner starts it, `-i` and its value in one word; the program comes last but for target options."""
    query = bytes.fromhex("020000000001 020000000002 0800")
    os.mkfifo(tmp_path / "p1_in.pcap")
    os.mkfifo(tmp_path / "p2_in.pcap")
    process = subprocess.Popen(
        [*SWITCH, "--log-file", "log", "-L", "info", "--log-flush", "--use-files", "0", "--dump-packet-data", "10240",
         "-i 1@p1", "-i 2@p2", "--thrift-port", str(free_port()), str(PATHS["l3"]), "--", "--drop-port", "500"],
        cwd=tmp_path, env=ENVIRONMENT,
    )  # fmt: skip
    try:
        for name in ("p1", "p2"):
            with open(tmp_path / f"{name}_in.pcap", "wb") as pipe:
                pipe.write(capture(query if name == "p1" else b"x" * 14))
        log = tmp_path / "log.txt"
        until(lambda: log.exists() and "Received packet of length 14 on port 2" in log.read_text())
        assert f"on port 1: {query.hex()}" in log.read_text()
        assert all(line.split("] ")[1] == "[bmv2" for line in log.read_text().splitlines())
    finally:
        process.terminate()
    assert process.wait(100) == -signal.SIGTERM
    assert PcapReader(tmp_path / "p1_out.pcap").read() is None


def test_a_failed_assert_ends_it_as_it_ends_bmv2(start, tmp_path):
    frame = bytes(12) + b"\xde\xad" + bytes(46)
    (tmp_path / "p0_in.pcap").write_bytes(capture(frame))
    process = subprocess.Popen(
        [*SWITCH, "--use-files", "0", "-i", "0@p0", "--thrift-port", "0", str(PATHS["assert"])],
        cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert process.wait(100) == -signal.SIGABRT
    finally:
        process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["auto", "compiled", "reference"])
def test_the_packet_log(engine, start, tmp_path):
    """Every engine has it, in the log and as data; at the level info there is none."""
    (tmp_path / "p1_in.pcap").write_bytes(capture(bytes(12) + b"\x08\x00"))
    options = f"--use-files 0 -i 1@p1 --engine {engine} --log-file log --trace-packet packets.json"
    start(*options.split(), str(PATHS["l3"]))
    log = tmp_path / "log.txt"
    until(lambda: log.exists() and "Dropping packet at the end of ingress" in log.read_text())
    assert "[0.0] [cxt 0] Exception while parsing: PacketTooShort" in log.read_text()
    events = json.loads((tmp_path / "packets.json").read_text())
    assert [event["text"] for event in events][:2] == ["Processing packet received on port 1", "Parser 'parser': start"]
    assert not SwitchSettings(None, log_console=True, log_level="info").logs_packets
    assert SwitchSettings(None, log_console=True).logs_packets and not SwitchSettings(None).logs_packets


@pytest.mark.slow
def test_a_full_disk_costs_log_lines_alone(tmp_path):
    (tmp_path / "log.txt").symlink_to("/dev/full")
    for log in (["--log-console"], ["--log-file", "log"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [*SWITCH, *log, "--no-p4", "--use-files", "0", "-i", "0@nonsense", "--thrift-port", "0"],
                cwd=tmp_path, env=ENVIRONMENT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
            )  # fmt: skip
        first, last = done.stderr.splitlines()
        assert first == "switchml: warning: a part of the log is lost: No space left on device"
        assert done.returncode == 1 and last.startswith("switchml: error: can't read nonsense_in.pcap")


def test_options_without_effect_are_reported_once(start):
    odd = ["--nanolog", "ipc:///tmp/x", "--debugger", "--what"]
    process, client = start(*odd, str(PATHS["l3"]), "--use-files", "0")
    with client:
        assert client.call("standard", "bm_get_config") == PATHS["l3"].read_text()
    process.terminate()
    output = process.communicate(timeout=100)[0]
    assert output.splitlines() == ["switchml: warning: ignored: --nanolog ipc:///tmp/x --debugger --what"]


def test_a_program_later(start):
    _, client = start("--no-p4", "--use-files", "0")
    with client:
        client.call("standard", "bm_load_new_config", config=PATHS["l3"].read_text())
        client.call("standard", "bm_swap_configs")
        assert client.call("standard", "bm_mt_get_num_entries", table="MyIngress.routes") == 0


@pytest.mark.slow
def test_state_is_restored(start, tmp_path):
    _, client = start("--use-files", "0", str(PATHS["registers"]))
    with client:
        client.call("standard", "bm_register_write", array="MyIngress.sums", index=2, value=77)
        (tmp_path / "state").write_text(client.call("standard", "bm_serialize_state"))
    _, client = start("--use-files", "0", "--restore-state", "state", str(PATHS["registers"]))
    with client:
        assert client.call("standard", "bm_register_read", array="MyIngress.sums", index=2) == 77


@pytest.mark.slow
def test_pcap_with_and_without_a_directory(start, tmp_path):
    udp = f"0@udp:127.0.0.1:{free_port()}"
    start("-i", udp, "--pcap", str(PATHS["l3"]), "--engine", "reference")
    assert [path.name.rpartition("_")[2] for path in sorted(tmp_path.glob("udp*.pcap"))] == ["in.pcap", "out.pcap"]
    (tmp_path / "dumps").mkdir()
    udp = f"0@udp:127.0.0.1:{free_port()}"
    start("-i", udp, "--pcap", "dumps", str(PATHS["l3"]), "--engine", "reference")
    assert len(list((tmp_path / "dumps").glob("*.pcap"))) == 2
