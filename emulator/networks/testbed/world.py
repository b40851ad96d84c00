"""An isolated world for an experiment: processes, network and mounts that end with the process that created them.

    result = call(experiment)          # experiment() runs inside; its result or exception is passed back

Inside, the network has only a loopback, `ip netns` is empty, /dev/shm and temporary files are private, and the caller
is process 1. When it ends, is interrupted or killed, the kernel kills every process of that world and releases its
interfaces, switches and files, so no cleanup is needed. Needs root (namespaces(7)).
"""

import os
import pickle
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

from emulator.networks.testbed.namespaces import ENDING_SIGNALS, NETNS_DIR, call_libc, raise_exit, run
from switchml.errors import ConfigError, SwitchMLError
from switchml.runtime.raising import acknowledge

_CLONE_NEWNS, _CLONE_NEWPID, _CLONE_NEWNET = 0x0002_0000, 0x2000_0000, 0x4000_0000
_MS_REC, _MS_PRIVATE = 1 << 14, 1 << 18
PRIVATE_DIR = Path("/dev/shm")
"""Folder of temporary files inside: a private file system."""

Result = TypeVar("Result")


class WorldLost(SwitchMLError):
    """The process inside ended without a result."""


def call(function: Callable[[], Result]) -> Result:
    """Run `function` in an isolated world and return its result, or raise its exception; both must pickle.

    Ctrl-C, SIGTERM and SIGHUP end that world, and then this process in the usual way. To be called from the main
    thread, before gRPC or another library whose threads would not survive a fork is in use. Raises ConfigError without
    root.
    """
    if os.geteuid() != 0:
        raise ConfigError("creating network namespaces needs root: run this with sudo")
    sys.stdout.flush()
    sys.stderr.flush()
    reader, writer = os.pipe()
    parent = os.getpid()
    handlers = {number: signal.signal(number, raise_exit) for number in ENDING_SIGNALS}
    child = _fork_into_own_processes()
    if child == 0:
        os.close(reader)
        _inside(function, parent, writer)
    os.close(writer)
    try:
        answer = bytearray()
        while piece := os.read(reader, 1 << 16):
            answer += piece
    finally:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)  # returns when the last process of that world has ended
        os.close(reader)
        acknowledge()
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if not answer:
        raise WorldLost(f"the process inside ended without an answer, with status {status:#x}")
    result, error = pickle.loads(answer)
    if error is not None:
        raise error
    return cast("Result", result)


def _fork_into_own_processes() -> int:
    """fork(2) with the child as process 1 of a new PID namespace. Later children of the caller are ordinary ones."""
    here = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    try:
        call_libc("unshare", _CLONE_NEWPID)
        child = os.fork()
        if child:
            call_libc("setns", here, _CLONE_NEWPID)
        return child
    finally:
        os.close(here)


def _inside(function: Callable[[], object], parent: int, writer: int) -> None:
    """Body of the child; never returns."""
    code = 1
    try:
        for number in (signal.SIGINT, *ENDING_SIGNALS):
            # The parent decides. (Not SIG_IGN, which child processes would inherit.)
            signal.signal(number, lambda *_: None)
        # In this namespace the parent has no pid; if it has ended already, nobody reads the pipe.
        call_libc("prctl", 1, signal.SIGKILL, 0, 0, 0)
        if not Path(f"/proc/{parent}").exists():  # /proc is still the outer one
            os._exit(1)
        _mount()
        try:
            answer: tuple[object, SwitchMLError | None] = function(), None
        except SwitchMLError as error:
            answer = None, error
        except Exception as error:
            traceback.print_exc()
            answer = None, SwitchMLError(f"{type(error).__name__}: {error}")
        with os.fdopen(writer, "wb") as pipe:
            pickle.dump(answer, pipe)
        sys.stdout.flush()
        sys.stderr.flush()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)  # skips the parent's exit handlers


def _mount() -> None:
    call_libc("unshare", _CLONE_NEWNS | _CLONE_NEWNET)
    call_libc("mount", b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
    call_libc("mount", b"proc", b"/proc", b"proc", 0, None)
    call_libc("mount", b"sysfs", b"/sys", b"sysfs", 0, None)
    NETNS_DIR.mkdir(parents=True, exist_ok=True)
    for folder in (NETNS_DIR, PRIVATE_DIR):
        call_libc("mount", b"tmpfs", bytes(folder), b"tmpfs", 0, None)
    os.environ["TMPDIR"] = tempfile.tempdir = str(PRIVATE_DIR)
    run(["ip", "link", "set", "lo", "up"])
