"""The process group of the backend `switchml`: collectives through the aggregator, or else through Gloo.

A group has an agent, joined to a job of its own at the aggregator, and an ordinary torch process group over Gloo. An
all-reduce with SUM or AVG of a tensor whose dtype is supported goes to the agent, if it is dense or sparse (COO), and
so do other collectives if the aggregator supports them (collectives.py); all else is passed to Gloo unchanged. Both are
set up from the same store when the group is created, so sub-groups (`dist.new_group`) need no special treatment: their
ranks join a job of their own at the same aggregator. Only a sub-group of one rank joins none: its sums are its inputs.
With protocol v1, whose switch has one job, sub-groups use Gloo.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store, Work

from host_agent import recording
from host_agent.agent import HostAgent
from host_agent.base import Agent
from host_agent.loop import warm_up
from host_agent.pytorch import collectives, gloo, premultiplied
from host_agent.pytorch.compiling import never_compiled, never_compiled_methods
from host_agent.pytorch.counts import GLOO, Counts
from host_agent.pytorch.rendezvous import Invitation, Rendezvous, without_traceback
from host_agent.pytorch.store import asking, own_part
from host_agent.pytorch.work import AllReduceWork, CallbackThreads, flat_memory
from host_agent.signatures import Signature
from host_agent.v1.agent import DTYPES
from host_agent.v1.joining import protocol_of
from switchml.control.secret import given_secret
from switchml.errors import ConfigError, JobError, JoinError, PeerLost

if TYPE_CHECKING:
    from host_agent.pytorch.cuda import CallAgent, CudaStaging

Done = Callable[[BaseException | None], None]

WIRE_DTYPES = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int32: "int32",
    torch.int64: "int64",
}
"""Dtypes that the agent sums → its names for them."""
_V1_DTYPES = frozenset(dtype for dtype, name in WIRE_DTYPES.items() if name in DTYPES)
"""Dtypes that protocol v1 supports."""

GLOO_METHODS = (
    "broadcast", "allgather", "_allgather_base", "all_gather_single", "allgather_coalesced",
    "all_gather_single_coalesced", "allgather_into_tensor_coalesced", "reduce", "reduce_scatter",
    "_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced", "gather", "scatter", "alltoall", "alltoall_base", "all_to_all_single", "send",
    "recv", "recv_anysource", "barrier", "monitored_barrier", "get_group_store", "_get_backend", "_start_coalescing",
    "_end_coalescing", "_set_sequence_number_for_group", "_get_sequence_number_for_group",
)  # fmt: skip
"""Methods of ProcessGroup that are passed to Gloo, except for calls that collectives.py takes. A torch that lacks one
of them is supported."""

JOIN_TIMEOUT_S = 60.0
"""All ranks have started, since Gloo has connected them, so an unreachable aggregator need not take a timeout of half
an hour."""

_default: Invitation | None = None
"""Aggregator and secret of the default group, for its sub-groups."""
_open_groups: weakref.WeakSet[SwitchMLProcessGroup] = weakref.WeakSet()


@never_compiled_methods
class SwitchMLProcessGroup(dist.ProcessGroup):
    """Process group created by `dist.init_process_group("switchml")` and `dist.new_group()`.

    `timeout` limits joining and each all-reduce: after it, the agent leaves the job and all outstanding calls fail with
    CollectiveTimeout. Errors of the job (PeerLost, AggregatorLost, …) are raised by `Work.wait()`.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        timeout: timedelta,
        *,
        group_name: str = "",
        global_ranks: tuple[int, ...] = (),
        job: str = "",
    ):
        """`global_ranks`: the default group's rank of each rank; empty if this is the default group. `job`: prefix of
        the job's name, for a group that is neither the default one nor a part of it."""
        super().__init__(rank, size)  # type: ignore[call-arg]  # its stub takes no arguments
        self._timeout = timeout
        self._global_ranks = global_ranks
        self._is_default = not global_ranks and not job
        self._name = group_name
        self._description = "undefined"
        self._gloo: dist.ProcessGroup | None = None
        self.agent: Agent | None = None
        """The agent, for example for its statistics; None after shutdown and in a sub-group of one rank."""
        self._cuda: CudaStaging | None = None
        self.error: JobError | None = None
        """Error that ended the job, once a call has failed with it."""
        self._shutdown_lock = threading.Lock()
        self._submit_lock = threading.Lock()
        self._launches = gloo.Launches()
        self.callbacks = CallbackThreads(f"switchml-callbacks-{rank}")
        self._takes_all = _takes_all()
        self.notes_shapes = dist.get_debug_level() == dist.DebugLevel.DETAIL
        """Whether ranks must also agree on shapes and devices, as torch's own backends check."""
        is_v1 = protocol_of(None).version == "v1"
        self._sums = _V1_DTYPES if is_v1 else frozenset(WIRE_DTYPES)
        if is_v1 and not self._is_default:
            self._sums = frozenset()
        self._counts = Counts()
        address, secret = (None, "") if _default is None else (_default.address, _default.secret)
        # Ranks of the default group have its secret; a group outside it may have ranks of several default groups.
        secret = given_secret() or (secret if global_ranks else "")
        try:
            part = own_part(store, rank, size, timeout, secret)
        except JoinError:
            without_traceback()
            raise
        self._gloo_part = part.under("gloo")
        rendezvous = None
        if (size > 1 or self._is_default) and self._sums:
            rendezvous = Rendezvous(part.under("switchml"), rank, size, group_name, timeout, address, job, secret)
        self._rendezvous = rendezvous
        try:
            if rendezvous is not None:
                rendezvous.prepare()
            with asking("Gloo could not connect the group's ranks"):
                self._gloo = gloo.group_of(self._gloo_part, rank, size, timeout)
            if rendezvous is not None:
                self._join(rendezvous)
        except BaseException as error:
            self._leave(in_good_order=False)
            if isinstance(error, dist.DistError):  # unconverted, it might make torch's caller retry (torch_patches.py)
                error = JoinError(f"torch's store failed before the group was complete: {error}")
            if isinstance(error, JoinError):
                without_traceback()
            raise error
        self._pid = os.getpid()
        _open_groups.add(self)

    def _join(self, rendezvous: Rendezvous) -> None:
        global _default
        warm_up()
        invitation = rendezvous.meet()
        self.agent = HostAgent.join(
            invitation.address,
            job=invitation.job,
            rank=self.rank(),
            world_size=self.size(),
            secret=invitation.secret,
            timeout_s=min(self._timeout.total_seconds(), JOIN_TIMEOUT_S),
        )
        self._counts.report_to(self.agent)
        if self._is_default:
            _default = invitation
            if not self.rank():
                self._say_how(invitation.address)
        else:
            self.agent.global_ranks = self._global_ranks

    def _say_how(self, address: str) -> None:
        assert self.agent is not None
        transport = {"shm": "shared memory"}.get(name := str(self.agent.stats()["transport"]), name)
        wire = self.agent.wire + (" (half precision as it is)" if self.agent.sums_halves else "")
        print(f"switchml: {self.size()} ranks through {address}, {transport}, {wire}", file=sys.stderr, flush=True)

    # Properties of the group that torch queries.

    def getBackendName(self) -> str:
        return "switchml"

    # Names are stored in a group's backends, which only the Gloo group has.

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name
        self._require_gloo()._set_group_name(name)  # type: ignore[arg-type]  # text, too

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, description: str) -> None:
        self._description = description
        self._require_gloo()._set_group_desc(description)

    @property
    def _device_types(self) -> list[torch.device]:
        return self._require_gloo()._device_types

    def set_timeout(self, timeout: timedelta) -> None:
        self._require_gloo().set_timeout(timeout)

    _set_default_timeout = set_timeout

    def seconds(self, timeout: timedelta | None) -> float:
        """A call's own timeout, or else the group's, which torch sets on Gloo (`_set_pg_timeout`)."""
        if timeout is None:
            timeout = self._require_gloo()._get_backend(torch.device("cpu")).options._timeout
        return timeout.total_seconds()

    # Collectives that the aggregator supports.

    def allreduce(self, tensors: Any, *args: Any, **kwargs: Any) -> Work:  # type: ignore[override]  # has overloads
        """`allreduce([tensor], options)`, or `allreduce(tensor_or_list, op=SUM, timeout=None)`."""
        given, kwargs = premultiplied.plain("allreduce", (tensors, *args), kwargs, self.rank())
        tensors, args = given[0], given[1:]
        op, timeout = gloo.op_and_timeout(args, kwargs)
        listed = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        # Several tensors in one call mean one per device of this rank, all summed into each; left to Gloo.
        work = self._all_reduce(listed, op, timeout) if len(listed) == 1 else None
        self._counts.add("all_reduce", GLOO if work is None else "")
        return self.by_gloo("allreduce", (tensors, *args), kwargs) if work is None else work

    def _all_reduce(self, tensors: list[torch.Tensor], op: Any, timeout: timedelta | None) -> Work | None:
        """Submit an all-reduce of each tensor if the aggregator supports it, else return None."""
        if self._carries(tensors, op):
            return self._submit(tensors, op, timeout)
        takes_sparse = self.agent is not None and self.agent.takes_sparse
        if takes_sparse and len(tensors) == 1 and self._carries(tensors, op, torch.sparse_coo) and tensors[0].numel():
            return self._submit_sparse(tensors[0], op, timeout)
        if not self._takes_all:
            return None
        with self._submit_lock, recording.launching():
            return collectives.all_reduce(self, tensors, op, self.seconds(timeout))

    def dispatch(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Work | None:
        """Submit the call of another method if the aggregator supports it, else return None."""
        kind, work = collectives.kind_of(name), None
        if self._takes_all and kind is not None:
            with self._submit_lock, recording.launching():  # the lock keeps the parts of one call together
                work = collectives.dispatch(self, name, args, kwargs)
        if kind is not None:
            self._counts.add(kind, GLOO if work is None else "")
        return work

    def allreduce_coalesced(self, tensors: Any, *args: Any, **kwargs: Any) -> Work:
        """`allreduce_coalesced(tensors, options)`: each tensor is reduced separately."""
        given, kwargs = premultiplied.plain("allreduce_coalesced", (tensors, *args), kwargs, self.rank())
        tensors, args = given[0], given[1:]
        op, timeout = gloo.op_and_timeout(args, kwargs)
        work = self._all_reduce(list(tensors), op, timeout)
        self._counts.add("all_reduce", GLOO if work is None else "")
        return self.by_gloo("allreduce_coalesced", (tensors, *args), kwargs) if work is None else work

    def by_gloo(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Have Gloo perform a call of ProcessGroup's method `name`, once the ranks agree on it."""
        method = getattr(self._require_gloo(), name)
        agrees = self.agent is not None and self.agent.takes_collectives
        signature = gloo.signature_of(name, args, kwargs, self.notes_shapes) if agrees else None
        work = gloo.GlooWork(name, method, args, kwargs, self.callbacks, is_queued=signature is not None)
        if signature is None:
            if not work.has_copies:
                return method(*args, **kwargs)
            work.begin()
            return work
        timeout_s = self.seconds(None)

        def queue_barrier() -> None:
            self.call_agent(partial(_agree, signature, timeout_s), agreed)

        with self._submit_lock:
            agreed = self._launches.add(work.begin)
            self.in_turn(queue_barrier)
        return work

    def _carries(self, tensors: list[torch.Tensor], op: Any, layout: torch.layout = torch.strided) -> bool:
        """Whether the aggregator can sum tensors of this layout. Depends only on properties that are equal on all
        ranks."""
        # ReduceOp can compare itself with an enum member, but not the other way round, so `in` would always be False.
        return bool(op == dist.ReduceOp.SUM or op == dist.ReduceOp.AVG) and all(
            tensor.layout == layout and tensor.dtype in self._sums and tensor.device.type in ("cpu", "cuda")
            for tensor in tensors
        )

    def _submit_sparse(self, tensor: torch.Tensor, op: Any, timeout: timedelta | None) -> Work:
        """Sum a sparse tensor; as with Gloo, the result is copied into `tensor`. On the CPU it waits until all ranks
        have exchanged their row numbers; once the group has seen a CUDA tensor, that happens in its call queue."""
        from host_agent.pytorch.sparse import Rows, spread, union_of_rows

        timeout_s = self.seconds(timeout)
        work = self.work_type([tensor])([tensor], 1, self.callbacks)
        rows = Rows(tensor)
        put_back = self._cuda.on_stream(tensor) if self._cuda is not None and tensor.is_cuda else contextlib.nullcontext

        def replace(union: np.ndarray, values: torch.Tensor) -> None:
            with put_back():
                rows.replace(tensor, union, values)

        def submit() -> None:
            try:
                assert self.agent is not None
                union = union_of_rows(self.agent, rows.numbers, rows.count, timeout_s)
                values = spread(rows, union)
            except Exception as error:
                self._note(error)
                work.part_done(self._in_global_ranks(error))
                return
            work.before_finish.append(lambda: replace(union, values))
            note = gloo.note_of([tensor])
            self._call_agent(values, op == dist.ReduceOp.AVG, timeout_s, work.part_done, sparse=True, note=note)

        with self._submit_lock, recording.launching():
            self.in_turn(submit)
        return work

    def staging(self, tensors: Sequence[torch.Tensor]) -> CudaStaging | None:
        """The staging of CUDA tensors, once the group has seen any."""
        if self._cuda is None and any(tensor.is_cuda for tensor in tensors):
            from host_agent.pytorch.cuda import CudaStaging

            self._cuda = CudaStaging(f"switchml-cuda-{self.rank()}")
        return self._cuda

    def work_type(self, tensors: list[torch.Tensor]) -> Callable[..., AllReduceWork]:
        """Factory of the Work of a call whose results are in `tensors`, with AllReduceWork's arguments."""
        cuda = self.staging(tensors)
        on_gpu = any(tensor.is_cuda for tensor in tensors)
        return cuda.work_type(tensors) if cuda is not None and on_gpu else AllReduceWork

    def stage(
        self, source: torch.Tensor, target: torch.Tensor, numel: int, work: AllReduceWork, call_agent: CallAgent
    ) -> None:
        """Make `call_agent` for a part of `work`, in order: with the tensors themselves, or with copies of CUDA tensors
        on the host (`CudaStaging.move`)."""
        if self._cuda is not None and source.is_cuda:
            self._cuda.move(source, target, numel, work, call_agent)
        else:
            self.in_turn(partial(call_agent, source, target, numel, "", work.part_done))

    def in_turn(self, call: Callable[[], None]) -> None:
        """Make `call` after those whose tensors are still being copied from a GPU: all ranks must call their agents in
        the same order."""
        if self._cuda is not None:
            self._cuda.call(call)
        else:
            call()

    def _submit(self, tensors: list[torch.Tensor], op: Any, timeout: timedelta | None) -> Work:
        mean = op == dist.ReduceOp.AVG
        summed = tensors if self.agent is not None else []
        work = self.work_type(tensors)(tensors, len(summed), self.callbacks)
        timeout_s = self.seconds(timeout)
        # The lock keeps the tensors of one call together, in an order that is the same on all ranks.
        with self._submit_lock, recording.launching():
            for tensor in summed:
                alike = gloo.note_of([tensor]) if self.notes_shapes else ""
                flat = flat_memory(tensor, work)
                self.stage(flat, flat, flat.numel(), work, partial(self._sum_on_host, mean, timeout_s, alike))
        return work

    def _sum_on_host(
        self, mean: bool, timeout_s: float, alike: str, source: torch.Tensor, target: torch.Tensor, numel: int,
        note: str, done: Done,
    ) -> None:  # fmt: skip
        self._call_agent(source, mean, timeout_s, done, note=alike + note)

    def _call_agent(
        self, tensor: torch.Tensor, mean: bool, timeout_s: float, done: Done, sparse: bool | None = None, note: str = ""
    ) -> None:
        """Sum a contiguous CPU tensor in place, then call `done`. After `timeout_s` the agent leaves the job. `sparse`:
        None for the agent's default. `note`: further properties that must be equal on all ranks."""
        address = tensor.data_ptr()

        def submit(agent: Agent, on_done: Done) -> None:
            agent.allreduce_address(
                address,
                address,
                tensor.numel(),
                WIRE_DTYPES[tensor.dtype],
                "mean" if mean else "sum",
                on_done,
                timeout_s=timeout_s,
                keep=tensor,
                sparse=sparse,
                note=note,
            )

        self.call_agent(submit, done)

    def call_agent(self, submit: Callable[[Agent, Done], None], done: Done) -> None:
        """Call `submit` with the agent; `done` is called once, even if that fails."""
        agent = self.agent

        def on_done(error: BaseException | None) -> None:
            self._note(error)
            done(self._in_global_ranks(error))

        if agent is None:
            on_done(JobError("the process group was destroyed"))
            return
        try:
            submit(agent, on_done)
        except Exception as error:
            on_done(error)

    def _note(self, error: BaseException | None) -> None:
        if isinstance(error, JobError) and self.error is None:
            self.error = error

    def _in_global_ranks(self, error: BaseException | None) -> BaseException | None:
        """Convert an error's ranks: a sub-group's agent reports its own rank numbers; users know the default
        group's."""
        if isinstance(error, PeerLost) and self._global_ranks:
            lost = tuple(self._global_ranks[rank] for rank in error.ranks)
            renamed = PeerLost(f"{error} (in the default group: {', '.join(f'rank {rank}' for rank in lost)})", lost)
            renamed.__cause__ = error
            return renamed
        return error

    # Shutdown.

    def shutdown(self) -> None:
        """Leave the job and release threads, sockets and the aggregator if this process started it. Outstanding calls
        fail. May be called twice.
        """
        self._leave(in_good_order=True)

    def abort(self) -> None:
        """Fail outstanding calls at once, then shut down."""
        if self.agent is not None:
            self.agent.abort(JobError("the process group was aborted"))
        self._leave(in_good_order=False)

    def _leave(self, in_good_order: bool) -> None:
        global _default
        with self._shutdown_lock:
            rendezvous, self._rendezvous = self._rendezvous, None
            agent, self.agent = self.agent, None
            cuda, self._cuda = self._cuda, None
            group, self._gloo = self._gloo, None
        _open_groups.discard(self)
        if cuda is not None:
            cuda.close()
        in_good_order = in_good_order and self.error is None
        if rendezvous is not None and in_good_order:
            in_good_order = rendezvous.await_others("done")
        self._counts.close()
        if agent is not None:
            agent.leave()
        if rendezvous is not None and self._is_default:
            _default = None
        self.callbacks.close()
        if group is not None:
            group.shutdown()
        if rendezvous is not None:
            rendezvous.part(in_good_order)

    def _require_gloo(self) -> dist.ProcessGroup:
        group = self._gloo
        if group is None:
            raise JobError("this process group was destroyed")
        return group


def _agree(signature: Signature, timeout_s: float, agent: Agent, done: Done) -> None:
    agent.agree(signature, done, timeout_s=timeout_s)


def _gloo_method(name: str) -> Callable[..., Any]:
    def method(self: SwitchMLProcessGroup, *args: Any, **kwargs: Any) -> Any:
        self._require_gloo()
        args, kwargs = premultiplied.plain(name, args, kwargs, self.rank())
        work = self.dispatch(name, args, kwargs)
        return work if work is not None else self.by_gloo(name, args, kwargs)

    method.__name__ = name
    method.__doc__ = getattr(dist.ProcessGroup, name).__doc__
    return never_compiled(method)


for _name in GLOO_METHODS:
    if hasattr(dist.ProcessGroup, _name):
        setattr(SwitchMLProcessGroup, _name, _gloo_method(_name))


def _takes_all() -> bool:
    """Whether collectives other than sums may use the aggregator. Raises ConfigError."""
    text = os.environ.get("SWITCHML_COLLECTIVES") or "1"
    if text not in ("0", "1"):
        raise ConfigError(f"SWITCHML_COLLECTIVES={text}: expected 0 or 1")
    return text == "1"


def _shut_down_open_groups() -> None:
    """For scripts that never destroy their group, or end with an exception, of which the other ranks should be notified
    at once."""
    crashed = getattr(sys, "last_value", None) is not None
    for group in list(_open_groups):
        if group._pid == os.getpid():  # a forked child does not own the group
            group._leave(in_good_order=not crashed)


atexit.register(_shut_down_open_groups)
