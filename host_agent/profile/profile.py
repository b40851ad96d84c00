"""`switchml_profile`: selection of a job's iterations to capture, and the writing of the results to a folder."""

from __future__ import annotations

import atexit
import contextlib
import os
import platform
import signal
import statistics
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import torch

from host_agent.profile import files, heap, sizes
from host_agent.profile.capture import Capture
from host_agent.profile.iterations import Iterations, living
from host_agent.recording import MAX_PACKETS
from switchml import __version__
from switchml.errors import ConfigError

SKIP, STEPS = 3, 10
"""Number of warm-up iterations that are skipped, and number of iterations that are captured."""


class Kind(str, Enum):
    """Treatment of an iteration."""

    PLAIN = "plain"
    """Not captured."""
    LEAD_IN = "lead-in"
    """The capture runs, but the iteration doesn't count: ranks wait for the last one to begin, and the profiler's
    buffers are touched for the first time."""
    CAPTURED = "captured"
    GRAPH = "graph"
    """Its operators are recorded for the execution trace, which takes time: its durations don't count."""


@dataclass(frozen=True)
class _Iteration:
    """One iteration. `cpu_ns`: CPU time of the process."""

    number: int
    kind: Kind
    start_unix_ns: int
    end_unix_ns: int
    cpu_ns: int
    page_faults: int


def _now() -> tuple[int, int, int]:
    """Unix time and CPU time of the process in nanoseconds, and its page faults."""
    return time.time_ns(), time.process_time_ns(), heap.page_faults()


class switchml_profile:
    """Profile the iterations of this rank in a `with` block; every rank must do so.

    `folder`: folder for the files (files.py), created if missing. `skip`: number of iterations that are skipped first;
    `steps`: number of iterations captured then; the block may be longer, without cost, or shorter. With `skip` of 2 or
    more the capture begins one iteration earlier, so that the first one that counts does not include its start. An
    iteration ends when the optimizer has stepped, or with `by_step` when the block calls `step()`. `execution_trace`:
    also record torch's execution trace, of one additional iteration. `shapes`: record the shapes of all operators'
    tensors, which costs memory and time. `packets`: maximum number of packets that an agent records; further ones are
    counted. `pairs`: number of repetitions, with `steps` iterations that are not captured before each, so that the two
    can be compared; the last capture is written.

    Files are written once the last iteration is over, at the end of the block, or when the process ends, including by
    SIGTERM. Raises ConfigError for invalid numbers and a folder that can't be created.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        skip: int = SKIP,
        steps: int = STEPS,
        execution_trace: bool = True,
        shapes: bool = False,
        packets: int = MAX_PACKETS,
        pairs: int = 0,
        by_step: bool = False,
    ) -> None:
        if skip < 0 or steps < 1 or pairs < 0 or packets < 1:
            raise ConfigError(
                f"skip={skip}, steps={steps}, pairs={pairs}, packets={packets}: expected at least 0, 1, 0 and 1"
            )
        self.folder = Path(folder).absolute()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"can't make the folder {self.folder}: {error.strerror}") from None
        window = [Kind.CAPTURED] * steps
        if pairs:
            window = ([Kind.PLAIN] * steps + [Kind.LEAD_IN] + window) * pairs
        self._plan = [Kind.PLAIN] * skip + window
        if skip > 1 and not pairs:
            self._plan[skip - 1] = Kind.LEAD_IN
        if execution_trace:
            self._plan.append(Kind.GRAPH)
        self._graph_file = self.folder / f".et.{os.getpid()}.json" if execution_trace else None
        self._packets, self._skip, self._pairs = packets, skip, pairs
        self._shapes = shapes or skip == 0  # the modules may not exist yet when sizes are determined
        self._overheads_s: list[tuple[float, float]] = []
        self._log: list[_Iteration] = []
        self._started = _now()
        self._capture: Capture | None = None
        self._iterations: Iterations | None = None
        self._by_step = by_step
        self._term = _OnTermination(self.finish)

    def __enter__(self) -> switchml_profile:
        self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def begin(self) -> None:
        """Begin, as `with` does. From now on, the end of the process counts as the end of the block."""
        atexit.register(self.finish)
        self._iterations = Iterations(self._boundary, watch=not self._by_step)
        if self._plan[0] is not Kind.PLAIN:
            self._iterations.expect()
            self._enter_next()

    def step(self) -> None:
        """With `by_step`, end an iteration. Raises ConfigError without `by_step`."""
        if not self._by_step:
            raise ConfigError("switchml_profile(…, by_step=True) lets step() tell iterations; else optimizers do")
        self._boundary()

    def finish(self) -> None:
        """Stop, and write the capture. Does nothing if called again."""
        if not self._close():
            return
        capture, self._capture = self._capture, None
        self._term.hold()
        try:
            if capture is not None:
                self._stop(capture, with_others=len(self._log) == len(self._plan))
            if capture is not None and len(self._log) >= self._plan.index(Kind.CAPTURED):
                files.write(capture, self.folder, self._graph_file, self._about(capture))
            else:
                warnings.warn(
                    f"nothing was captured: {len(self._log)} iterations were seen, and the capture begins after "
                    f"{self._plan.index(Kind.CAPTURED)}",
                    stacklevel=3,
                )
        finally:
            if self._graph_file is not None:
                self._graph_file.unlink(missing_ok=True)
            self._term.remove()

    def _close(self) -> bool:
        """Stop detecting iterations; returns False if that was done already."""
        iterations, self._iterations = self._iterations, None
        if iterations is None:
            return False
        iterations.close()
        atexit.unregister(self.finish)
        return True

    def _boundary(self, inside: bool = False) -> None:
        """End an iteration. `inside`: its optimizer's span is still open, and can't be crossed by a span of the
        capture."""
        if self._iterations is None or (inside and self._capture is not None):
            return
        number = len(self._log)
        (start_ns, *before), (end_ns, *after) = self._started, _now()
        growth = (now - then for then, now in zip(before, after, strict=True))
        self._log.append(_Iteration(number, self._plan[number], start_ns, end_ns, *growth))
        if self._capture is not None:
            self._capture.end_iteration()
        if len(self._log) == len(self._plan):
            self.finish()
        else:
            self._enter_next()

    def _enter_next(self) -> None:
        number = len(self._log)
        kind = self._plan[number]
        if kind is Kind.PLAIN and self._capture is not None:
            self._stop(self._capture)
            self._capture = None
        if kind is not Kind.PLAIN and self._capture is None:
            self._term.install()
            self._capture = Capture(self._packets, self._graph_file, self._shapes, self._is_settled())
        if self._capture is not None and kind is Kind.CAPTURED:
            self._capture.begin_iteration(number)
        if self._capture is not None and kind is Kind.GRAPH:
            self._capture.observe_execution()
        self._started = _now()

    def _is_settled(self) -> bool:
        """Whether the last iterations without a capture have touched no new memory."""
        faults = [one.page_faults for one in self._log if one.kind is Kind.PLAIN][-3:]
        return bool(faults) and statistics.median(faults) < heap.SETTLED_FAULTS

    def _stop(self, capture: Capture, *, with_others: bool = False) -> None:
        capture.stop(with_others=with_others)
        self._overheads_s.append((capture.start_s, capture.stop_s))

    def _about(self, capture: Capture) -> dict[str, Any]:
        ddp: list[dict[str, Any]] = []
        with contextlib.suppress(RuntimeError):  # its process group no longer exists
            ddp = sizes.describe_buckets()
        return {
            "rank": capture.rank,
            "world_size": capture.world_size,
            "host": capture.host,
            "backend": capture.backend,
            "clock": [{"monotonic_ns": monotonic, "unix_ns": unix} for monotonic, unix in capture.clock],
            "pings": capture.pings.columns(),
            "skip": self._skip,
            "pairs": self._pairs,
            "captures": [{"start_s": start_s, "stop_s": stop_s} for start_s, stop_s in self._overheads_s],
            "iterations": [asdict(one) for one in self._log],
            "ddp": ddp,
            "codec": _codec(),
            "loading": _loading(),
            "versions": {"python": platform.python_version(), "torch": torch.__version__, "switchml": __version__},
        }


def _codec() -> str:
    """Codec of the DDP hook in use, "" without one."""
    hooks = sys.modules.get("host_agent.pytorch.comm_hooks")
    states = living(hooks.CodecState) if hooks is not None else []
    return str(getattr(states[-1].compressor, "codec", "auto")) if states else ""


def _loading() -> dict[str, float]:
    """Counters of the planned loader in use since its start, empty without one."""
    module = sys.modules.get("host_agent.loading.loader")
    return module.latest_counters() if module is not None else {}


class _OnTermination:
    """SIGTERM handler: `torchrun` terminates the other ranks with SIGTERM when one has died, and their captures are
    still to be written."""

    def __init__(self, finish: Callable[[], None]) -> None:
        self._finish = finish
        self._pid = 0
        self._is_held = self._is_due = False

    def install(self) -> None:
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            self._pid = os.getpid()
            signal.signal(signal.SIGTERM, self._terminate)

    def hold(self) -> None:
        """Writing has begun: a signal from now on is deferred until `remove`."""
        self._is_held = True

    def remove(self) -> None:
        if self._is_due:
            self._die()
        if self._pid and threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGTERM) == self._terminate:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._pid = 0

    def _terminate(self, _number: int, _frame: object) -> None:
        if os.getpid() != self._pid:  # a forked child has nothing of its own to write
            self._die()
        elif self._is_held:
            self._is_due = True
        else:
            try:
                self._finish()
            finally:
                self._die()

    def _die(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
