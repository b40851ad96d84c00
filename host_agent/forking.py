"""Worker processes are forked from one that has imported for all of them."""

from __future__ import annotations

import signal
from multiprocessing import context, forkserver, get_context, resource_tracker


def fork_server(*preload: str) -> context.ForkServerContext:
    """A multiprocessing context whose fork server imports the modules `preload` while the caller goes on. There is one
    such server in a process: only the first call starts it.

    Ctrl-C in a terminal is for all processes in it, also for one that has just begun to import: it stays blocked in
    those that come from here, and the caller decides what ends when.
    """
    made = get_context("forkserver")
    made.set_forkserver_preload(list(preload))
    resource_tracker.ensure_running()  # starting it would unblock the signal
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return made
