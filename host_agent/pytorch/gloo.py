"""Calls of Gloo: in contiguous memory, since it ignores strides; and, for collectives with an aggregator that supports
it, after a barrier with the call's signature, so that ranks whose calls differ, or use the agent, fail at once. (Gloo
itself aborts the process if sizes differ.)"""

from __future__ import annotations

import collections
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from host_agent.pytorch.collectives import OPS, kind_of
from host_agent.pytorch.store import Part
from host_agent.pytorch.work import AllReduceWork, CallbackThreads, copy_back, in_order, is_in_order
from host_agent.signatures import Signature

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Work

Done = Callable[["BaseException | None"], None]
_ONE_SIDED = ("send", "recv", "recv_anysource", "monitored_barrier")
"""Methods that not all ranks call, or that have their own timeout for waiting for them."""
_SHARES_OUT = ("scatter", "reduce_scatter")
"""Collectives whose outputs are one rank's share; in the others, the inputs are."""


def signature_of(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], notes: bool) -> Signature | None:
    """Signature of a call of ProcessGroup's method `name`, which must be equal on all ranks; None for calls that other
    ranks need not make. `notes`: include shapes and devices."""
    kind = kind_of(name)
    if kind is None or name in _ONE_SIDED:
        return None
    given = [*args, *kwargs.values()]
    lists = [tensors for each in given if (tensors := tensors_in(each))]
    if not lists:
        return Signature("barrier", None, "") if kind == "barrier" else None
    shares = lists[0] if kind in _SHARES_OUT or len(lists) == 1 else lists[1]
    numel = None if kind == "all_to_all" else sum(tensor.numel() for tensor in shares)
    op = next((each.reduceOp for each in given if hasattr(each, "reduceOp")), None)
    root = next((int(each.rootRank) for each in given if hasattr(each, "rootRank")), 0)
    note = note_of(shares) if notes and numel is not None else ""
    return Signature(kind, numel, str(shares[0].dtype).removeprefix("torch."), _name_of(op), root, note)


def note_of(tensors: list[torch.Tensor]) -> str:
    """Shapes and device, which TORCH_DISTRIBUTED_DEBUG=DETAIL compares in addition to sizes."""
    shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors)
    return f" of shape {shapes} on {tensors[0].device.type}"


def contiguous(value: Any, copies: list[tuple[torch.Tensor, torch.Tensor]]) -> Any:
    """An argument with its strided tensors replaced by contiguous copies; (copy, tensor) pairs are appended to
    `copies`."""
    if isinstance(value, list | tuple):
        return [contiguous(each, copies) for each in value]
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or is_in_order(value):
        return value
    copy = in_order(value)
    copies.append((copy, value))
    return copy


class Launches:
    """Calls of Gloo that wait until the ranks have agreed on them. They start in the order in which they were made, as
    Gloo requires."""

    def __init__(self) -> None:
        self._waiting: collections.deque[_Launch] = collections.deque()
        self._lock = threading.RLock()

    def add(self, begin: Done) -> Done:
        """Add a call; returns a function to be called with an error or None once the ranks have agreed, which `begin`
        is then called with, in order."""
        launch = _Launch(begin)
        self._waiting.append(launch)

        def agreed(error: BaseException | None) -> None:
            with self._lock:
                launch.error, launch.is_agreed = error, True
                while self._waiting and self._waiting[0].is_agreed:
                    first = self._waiting.popleft()
                    first.begin(first.error)

        return agreed


@dataclass
class _Launch:
    begin: Done
    is_agreed: bool = False
    error: BaseException | None = None


class GlooWork(AllReduceWork):
    """Work of a call of Gloo's `method`: started by `begin`, once, and done when Gloo is and its results are copied
    back."""

    def __init__(
        self,
        name: str,
        method: Callable[..., Work],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        callbacks: CallbackThreads,
        is_queued: bool = False,
    ):
        """`is_queued`: `begin` is called on another thread, whose calls of Gloo the caller's profiler does not see."""
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._args = tuple(contiguous(each, copies) for each in args)
        self._kwargs = {key: contiguous(each, copies) for key, each in kwargs.items()}
        self.has_copies = bool(copies)
        results = tensors_in(self._args[0]) if args and name != "send" else []
        strided = {id(copy): value for copy, value in copies}
        kind = kind_of(name) or name
        span = f"gloo:{kind}" if is_queued else kind
        inputs = tensors_in(args[1]) if len(args) > 1 else []  # of (outputs, inputs, options)
        super().__init__([strided.get(id(each), each) for each in results], 1, callbacks, span, inputs or None)
        self._method = method
        self._copies = [(each, strided[id(each)]) for each in results if id(each) in strided]

    def begin(self, error: BaseException | None = None) -> None:
        """Call the method, unless the ranks do not agree (`error`)."""
        if error is None:
            try:
                with self._modes():
                    work = self._method(*self._args, **self._kwargs)
            except Exception as failure:
                error = failure
            else:
                self._source_rank = work._source_rank  # type: ignore[method-assign]  # as Gloo has it
                self.before_finish += [work.wait, *(partial(copy_back, *pair) for pair in self._copies)]
        self.part_done(error)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Tensors in an argument: a tensor, a list of tensors, or of such lists."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for each in value for tensor in tensors_in(each)] if isinstance(value, list | tuple) else []


def _name_of(op: Any) -> str:
    if op is None:
        return "sum"
    names = OPS | {"PRODUCT": "product"}
    return next((ours for theirs, ours in names.items() if op == getattr(dist.ReduceOp, theirs)), "sum")


_latest: tuple[int, weakref.ref[dist.ProcessGroup]] | None = None
"""Process and latest group: a forked process has none of the threads of its parent's."""


def group_of(part: Part, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroup:
    """Create a process group over Gloo, as `init_process_group("gloo")` does. It must not outlive `part`.

    It shares the device of the group before it, if that still exists: a device of its own has a thread that wakes up a
    hundred times a second, which two hundred idle groups would notice."""
    global _latest
    group = dist.ProcessGroup(part.unsealed(), rank, size)
    kinds: Any = dist.ProcessGroupGloo
    cpu = torch.device("cpu")
    before = _latest[1]() if _latest is not None and _latest[0] == os.getpid() else None
    # Older releases of torch do not tell a group's devices.
    known = getattr(before._get_backend(cpu), "options", None) if before is not None else None
    if known is None:
        gloo = kinds(part, rank, size, timeout)
    else:
        options = kinds._Options()
        options._devices, options._timeout = known._devices, timeout
        options._threads = 2 * len(known._devices)
        gloo = kinds(part, rank, size, options)
    gloo._set_sequence_number_for_group()
    kind = dist.ProcessGroup.BackendType.GLOO
    group._set_default_backend(kind)
    for device in (cpu, torch.device("cuda")):
        group._register_backend(device, kind, gloo)
    _latest = os.getpid(), weakref.ref(group)
    return group


def op_and_timeout(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, timedelta | None]:
    """Op and timeout (None: the group's) of a call in either of ProcessGroup's calling conventions: options object, or
    separate arguments."""
    options = args[0] if args else kwargs.get("opts", kwargs.get("op", dist.ReduceOp.SUM))
    if hasattr(options, "reduceOp"):
        op, timeout = options.reduceOp, options.timeout
    else:
        op, timeout = options, args[1] if len(args) > 1 else kwargs.get("timeout")
    return op, timeout if timeout is not None and timeout > timedelta(0) else None
