"""Child processes that end with their parent, and descriptions of how a process ended."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Make the kernel send this process a signal when the thread that started it ends (prctl(2), PR_SET_PDEATHSIG).
    `parent`: process id of the parent when it started this process; if it has already ended, this process exits."""
    _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


_DYING = f"""
import ctypes, os, signal, sys
parent, number, *command = sys.argv[1:]
ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, int(number), 0, 0, 0)
if os.getppid() != int(parent):
    os._exit(1)
for ignored in signal.SIGPIPE, signal.SIGXFSZ:  # by Python, and by the program if it stays so
    signal.signal(ignored, signal.SIG_DFL)
try:
    os.execvp(command[0], command)
except OSError as error:
    sys.exit(command[0] + ": " + error.strerror)
"""


def dying_with_us(command: Sequence[str], number: int = signal.SIGKILL) -> list[str]:
    """Return a command line for subprocess.Popen that becomes `command`, which receives this signal when the thread
    that starts it ends. (A `preexec_fn` would run Python between fork and exec, where it waits forever for locks that
    other threads held at the fork.)"""
    return [sys.executable, "-ISc", _DYING, str(os.getpid()), str(int(number)), *command]


def how_it_ended(exit_code: int | None) -> str:
    """Return a description of a process's end."""
    if exit_code is not None and exit_code < 0:
        return f"was killed by {signal.Signals(-exit_code).name}"
    return f"ended with exit code {exit_code}"


def reap(process: subprocess.Popen[Any], grace_s: float) -> None:
    """Wait for a process that is about to end; kill it after `grace_s`, or when the wait is interrupted."""
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
    finally:
        process.kill()
        process.wait()


def end(process: subprocess.Popen[Any], grace_s: float) -> None:
    """Send SIGTERM to a running process, and SIGKILL after `grace_s`."""
    process.terminate()
    reap(process, grace_s)
