"""A world of its own: what comes back from it, and that nothing is left of it, however it ends. test_world.py runs
this."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from emulator.networks.testbed import world
from switchml.errors import ConfigError, SwitchMLError

pytestmark = pytest.mark.root
ROOT = Path(__file__).parents[4]
DEADLINE_S = 60


def test_what_is_returned_comes_back():
    assert world.call(lambda: {"pid": os.getpid(), "children": 0}) == {"pid": 1, "children": 0}


def test_what_is_raised_comes_back():
    def fail():
        raise ConfigError("a switch of 3 ports: expected 4")

    with pytest.raises(ConfigError, match="^a switch of 3 ports: expected 4$"):
        world.call(fail)


def test_surprises_come_back_as_errors(capfd):
    with pytest.raises(SwitchMLError, match="^ZeroDivisionError: integer .* by zero$"):
        world.call(lambda: 1 // 0)
    assert "Traceback" in capfd.readouterr().err


def test_a_process_that_is_killed_inside():
    with pytest.raises(world.WorldLost, match="without an answer"):
        world.call(lambda: os._exit(3))


def test_network_files_and_processes_are_its_own():
    def look():
        for line in (["link", "add", "x0", "type", "veth", "peer", "name", "x1"], ["netns", "add", "inside"]):
            path = os.environ["PATH"] + ":/usr/sbin:/sbin"
            subprocess.run(["ip", *line], check=True, env=os.environ | {"PATH": path})
        with tempfile.NamedTemporaryFile(delete=False) as file:
            pids = [name for name in os.listdir("/proc") if name.isdecimal()]
            return sorted(os.listdir("/sys/class/net")), os.listdir("/run/netns"), file.name, pids

    interfaces, names, file, pids = world.call(look)
    assert interfaces == ["lo", "x0", "x1"] and names == ["inside"] and pids == ["1"]
    assert not Path(file).exists() and not Path("/run/netns/inside").exists()
    assert "x0" not in os.listdir("/sys/class/net")


def test_programs_inside_can_be_told_to_end():
    def end_one():
        process = subprocess.Popen(["sleep", "1000"])
        process.terminate()
        return process.wait(DEADLINE_S)

    assert world.call(end_one) == -signal.SIGTERM


def test_the_caller_can_still_start_processes():
    world.call(lambda: None)
    assert subprocess.run(["true"]).returncode == 0


LASTING = """
import os, subprocess, sys, time
from emulator.networks.testbed import world

def work():
    subprocess.Popen(["sleep", sys.argv[1]], start_new_session=True)
    print("started", flush=True)
    time.sleep(1000)

try:
    world.call(work)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_it_ends_with_its_maker(number):
    seconds = f"{1000 + os.getpid()}.{number}"
    process = subprocess.Popen([sys.executable, "-c", LASTING, seconds], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "started\n"
    assert wait_for(lambda: running(seconds) == 1)
    process.send_signal(number)
    code = process.wait(DEADLINE_S)
    assert code == {signal.SIGINT: 130, signal.SIGKILL: -9}.get(number, 128 + number)
    assert wait_for(lambda: running(seconds) == 0)


def running(argument: str) -> int:
    """Sleeping processes with this argument."""
    count = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            count += path.read_bytes() == f"sleep\0{argument}\0".encode()
    return count


def wait_for(condition) -> bool:
    """Whether it comes true."""
    give_up_at = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > give_up_at:
            return False
        time.sleep(0.01)
    return True
