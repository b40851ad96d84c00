"""One capture window of a job: torch's profiler, its execution trace for the last of the iterations, the agents' packet
logs, and spans of waiting for communication, which torch does not record.
"""

import contextlib
import os
import socket
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.profiler import record_function
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile

from host_agent import recording
from host_agent.profile.clocks import Pings
from host_agent.profile.heap import RESERVE_BYTES, Reserve
from host_agent.profile.iterations import living
from host_agent.profile.sizes import Sizes, need_shapes
from host_agent.recording import WAIT, WAIT_FOR_BUCKETS

ITERATION = "ProfilerStep"
"""torch's name of an iteration's span; its number follows after #."""


class Capture:
    """A capture, from `Capture(…)` to `stop`, which take `start_s` and `stop_s`. `execution_trace`: the file that
    `observe_execution` writes."""

    def __init__(self, most_packets: int, execution_trace: Path | None, shapes: bool, reserve: bool) -> None:
        """`shapes`: record the shapes of all operators' tensors. `reserve`: reserve heap memory, see heap.py."""
        self.rank, self.world_size, self.backend = _place()
        self.host = socket.gethostname()
        self.clock = [_clock()]
        self.pings = Pings(self.rank, self.world_size)
        self.pings.exchange()
        began_s = time.perf_counter()
        self._iteration: record_function | None = None
        self._observer: ExecutionTraceObserver | None = None
        self._execution_trace = execution_trace
        modules, parameters = _modules_and_parameters()
        self._spans = _spans(modules)
        self.sizes = Sizes(parameters)
        self.recording = recording.start(most_packets, record_function)
        self._reserve = Reserve(RESERVE_BYTES if reserve else 0)
        shapes = shapes or need_shapes(self.backend, self.world_size)
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
        self.profiler = profile(activities=activities, record_shapes=shapes, **_lean())
        self.profiler.start()
        self.start_s, self.stop_s = time.perf_counter() - began_s, 0.0

    def begin_iteration(self, number: int) -> None:
        """Mark the beginning of an iteration of the job."""
        self._iteration = record_function(f"{ITERATION}#{number}")
        self._iteration.__enter__()

    def end_iteration(self) -> None:
        if self._iteration is not None:
            self._iteration.__exit__(None, None, None)
            self._iteration = None

    def observe_execution(self) -> None:
        """Record the graph of operators, which doubles their cost, from now to the end of the capture."""
        if self._execution_trace is not None:
            self._observer = ExecutionTraceObserver().register_callback(str(self._execution_trace))
            self._observer.start()

    def stop(self, *, with_others: bool = False) -> None:
        """Stop; the results are then in `profiler`, `recording`, `sizes` and the execution trace's file. `with_others`:
        all ranks stop at the same point."""
        began_s = time.perf_counter()
        self.end_iteration()
        if self._observer is not None:
            self._observer.stop()
            self._observer.unregister_callback()
        self.profiler.stop()
        self._reserve.release()
        recording.stop(self.recording)
        self._spans.close()
        self.sizes.stop()
        self.stop_s = time.perf_counter() - began_s
        if with_others:
            self.pings.exchange()
        self.clock.append(_clock())


def _spans(modules: list[Any]) -> contextlib.ExitStack:
    """Until closed: add a span around `Work.wait`, and one around the wait of each DistributedDataParallel module for
    all buckets at the end of a backward pass, which happens in C++ where the profiler does not see it."""
    undo = contextlib.ExitStack()
    if not dist.is_available():
        return undo
    from torch._C._distributed_c10d import Work

    plain = Work.wait

    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        with record_function(WAIT):
            return plain(work, *args, **kwargs)

    setattr(Work, "wait", wait)  # noqa: B010 - as its type is another
    undo.callback(setattr, Work, "wait", plain)
    for module in modules:
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if trained:
            undo.callback(trained[-1].register_post_accumulate_grad_hook(_expect_the_wait).remove)
    return undo


def _expect_the_wait(_parameter: torch.Tensor) -> None:
    """Queue a callback that opens the span. The engine runs callbacks in the order they were queued: this one before
    DDP's, which is queued once all buckets have been launched; callbacks queued by a callback run after that."""
    engine = torch.autograd.Variable._execution_engine

    def before() -> None:
        span = record_function(WAIT_FOR_BUCKETS)
        span.__enter__()
        engine.queue_callback(lambda: span.__exit__(None, None, None))

    engine.queue_callback(before)


def _modules_and_parameters() -> tuple[list[Any], list[torch.nn.Parameter]]:
    """DDP's modules and all parameters, in one search, which takes some 50 ms."""
    if not dist.is_available():
        return [], living(torch.nn.Parameter)
    from torch.nn.parallel import DistributedDataParallel

    objects = living(DistributedDataParallel, torch.nn.Parameter)
    modules = [thing for thing in objects if isinstance(thing, DistributedDataParallel)]
    return modules, [thing for thing in objects if not isinstance(thing, DistributedDataParallel)]


def _place() -> tuple[int, int, str]:
    """Rank, world size and backend, as far as known."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size(), dist.get_backend()
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)), ""


def _lean() -> dict[str, Any]:
    """Profiler options that avoid the creation of Python objects for all events at the end, if torch supports that."""
    from torch._C._profiler import _ExperimentalConfig

    with contextlib.suppress(TypeError):  # an older torch
        return {"experimental_config": _ExperimentalConfig(trace_only=True)}
    return {}


def _clock() -> tuple[int, int]:
    """The same moment in CLOCK_MONOTONIC and in Unix time, in nanoseconds."""
    before, unix, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
    return (before + after) // 2, unix
