"""Processes forked from one that has done their imports, and parallel calls on several of them.

They never outlive their parent, however it ends: work is sent through pipes alone, because semaphores (a
ProcessPoolExecutor has four) have files in /dev/shm, which stay when all processes that know of them are killed.
"""

import atexit
import functools
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from multiprocessing import connection, context, forkserver, get_context, process, resource_tracker
from typing import Any, TypeVar

from switchml.runtime import cache
from switchml.runtime.children import die_with_parent
from switchml.runtime.folders import TemporaryFolder

Item = TypeVar("Item")
Result = TypeVar("Result")


def fork_server(*preload: str) -> context.ForkServerContext:
    """Return a multiprocessing context whose fork server imports the modules `preload` in the background. There is one
    such server per process: only the first call starts it.

    Ctrl-C in a terminal reaches all of its processes, even during imports: SIGINT stays blocked in the server and its
    children, and the caller decides when they end.
    """
    cache.share()
    server_context = get_context("forkserver")
    server_context.set_forkserver_preload(list(preload))
    _keep_sockets_in_our_folder()
    resource_tracker.ensure_running()  # starting it would unblock the signal
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return server_context


@functools.cache
def _keep_sockets_in_our_folder() -> None:
    """Place the socket of the fork server in a TemporaryFolder: multiprocessing's own folder would remain if this
    process were killed."""
    folder = TemporaryFolder("fork")
    atexit.register(folder.cleanup)
    process.current_process()._config["tempdir"] = folder.name  # type: ignore[attr-defined]  # private


def spread(
    work: Callable[[Item], Result], items: Iterable[Item], processes: int, *preload: str
) -> Iterator[tuple[int, Result]]:
    """Call `work(item)` for each item, on up to `processes` processes at once, which have imported `preload`; yield
    each item's number and result in order of completion. Exceptions of `work` are raised here. `work`, items and
    results are pickled. Raises ChildProcessError if a process died."""
    server = fork_server(*preload)
    numbered = enumerate(items)
    with ExitStack() as stack:
        busy: dict[Any, int] = {}
        pipe: Any
        for number, item in numbered:
            pipe = stack.enter_context(_Worker(server, work)).pipe
            pipe.send(item)
            busy[pipe] = number
            if len(busy) == processes:
                break
        while busy:
            for pipe in connection.wait(list(busy)):
                number = busy.pop(pipe)
                try:
                    result, error = pipe.recv()
                except (EOFError, OSError):
                    raise ChildProcessError("a process has ended") from None
                if error is not None:
                    raise error
                for following, item in numbered:
                    pipe.send(item)
                    busy[pipe] = following
                    break
                yield number, result


class _Worker:
    """A process that calls `work` on the items received through `pipe`; `with` ends it."""

    def __init__(self, server: context.ForkServerContext, work: Callable[[Any], Any]):
        self.pipe, theirs = server.Pipe()
        self._process = server.Process(target=_serve, args=(work, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> "_Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.pipe.close()
        self._process.kill()
        self._process.join()


def _serve(work: Callable[[Any], Any], pipe: connection.Connection) -> None:
    die_with_parent(os.getppid())  # the fork server, which ends with the process that it forks for
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            item = pipe.recv()
        except (EOFError, OSError):
            return
        result, failure = None, None
        try:
            result = work(item)
        except Exception as error:
            failure = error
        pipe.send((result, failure))
