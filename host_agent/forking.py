"""Worker processes, forked from one that has done their imports."""

from __future__ import annotations

import signal
from multiprocessing import context, forkserver, get_context, resource_tracker


def fork_server(*preload: str) -> context.ForkServerContext:
    """A multiprocessing context whose fork server imports the modules `preload` in the background. There is one such
    server per process: only the first call starts it.

    Ctrl-C in a terminal reaches all of its processes, even while they import: SIGINT stays blocked in the server and
    its children, and the caller decides when they end.
    """
    server_context = get_context("forkserver")
    server_context.set_forkserver_preload(list(preload))
    resource_tracker.ensure_running()  # starting it would unblock the signal
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return server_context
