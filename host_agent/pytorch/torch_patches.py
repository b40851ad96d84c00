"""Features that torch provides only for its own backends, selected by name or in C++, extended to the backend
`switchml`.

`install()` replaces `init_process_group`, `monitored_barrier`, a method of DistributedDataParallel and one of its
Reducer; for other backends they work as before. Imports nothing heavy, since it runs at every `import torch`.
"""

import functools
import inspect
import time
import weakref
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

BACKEND_NAME = "switchml"
_NOT_A_MEMBER: Any = dist.GroupMember.NON_GROUP_MEMBER
_forward_works: weakref.WeakKeyDictionary[dist.Reducer, dist.Work] = weakref.WeakKeyDictionary()
"""The Work of each Reducer's last forward pass: see `_keeping_the_work`."""


def install() -> None:
    """Install the replacements; may be called again."""
    if not hasattr(dist.monitored_barrier, "__wrapped__"):
        dist.init_process_group = c10d.init_process_group = _outliving_old_stores(dist.init_process_group)
        dist.monitored_barrier = c10d.monitored_barrier = _monitored_barrier(dist.monitored_barrier)
        DistributedDataParallel._register_builtin_comm_hook = _builtin_hook(  # type: ignore[method-assign]  # replaced
            DistributedDataParallel._register_builtin_comm_hook
        )
        dist.Reducer._set_forward_pass_work_handle = _keeping_the_work(  # type: ignore[method-assign]  # replaced
            dist.Reducer._set_forward_pass_work_handle
        )


def _outliving_old_stores(of_torch: Any) -> Any:
    """Retry on a stale store: a rank that creates its next group early connects to the store of the previous group,
    which rank 0 is about to close. It reconnects until rank 0 has its new store, for as long as the group's timeout.
    Also, an attempt that failed, or was interrupted as in a notebook, leaves no trace in the next group's name."""
    signature = inspect.signature(of_torch)

    @functools.wraps(of_torch)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        given = signature.bind(*args, **kwargs).arguments
        if BACKEND_NAME not in str(given.get("backend")).lower() or given.get("store") is not None:
            of_torch(*args, **kwargs)
            return
        patience = given.get("timeout") or c10d.default_pg_timeout
        deadline, groups = time.monotonic() + patience.total_seconds(), c10d._world.group_count
        while True:
            try:
                of_torch(*args, **kwargs)
                return
            except BaseException as error:
                if not dist.is_initialized():  # otherwise there has been one for long
                    c10d._world.group_count = groups  # names the group: of the next attempt as on the other ranks
                if not isinstance(error, dist.DistNetworkError) or time.monotonic() >= deadline:
                    raise

    return init_process_group


def _monitored_barrier(of_torch: Any) -> Any:
    @functools.wraps(of_torch)
    def monitored_barrier(
        group: dist.ProcessGroup | None = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
    ) -> None:
        refused = not isinstance(timeout, (timedelta, float, type(None)))
        if refused or group == _NOT_A_MEMBER or dist.get_backend(group) != BACKEND_NAME:
            of_torch(group, timeout, wait_all_ranks)
            return
        if isinstance(timeout, float):
            timeout = timedelta(seconds=timeout)
        ours: Any = c10d._get_default_group() if group is None else group
        ours.monitored_barrier(timeout or c10d.default_pg_timeout, wait_all_ranks)

    return monitored_barrier


def _builtin_hook(of_torch: Any) -> Any:
    """Replace DDP's two built-in C++ hooks by their Python equivalents with the same numerics: the C++ ones accept only
    typed futures, which can't be created from Python."""

    @functools.wraps(of_torch)
    def register(ddp: DistributedDataParallel, comm_hook_type: dist.BuiltinCommHookType) -> None:
        if dist.get_backend(ddp.process_group) != BACKEND_NAME:
            of_torch(ddp, comm_hook_type)
            return
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        hook = {
            dist.BuiltinCommHookType.ALLREDUCE: default_hooks.allreduce_hook,
            dist.BuiltinCommHookType.FP16_COMPRESS: default_hooks.fp16_compress_hook,
        }[comm_hook_type]
        assert ddp.logger is not None
        ddp.logger._set_comm_hook_name(str(comm_hook_type))
        dist._register_comm_hook(ddp.reducer, ddp.process_group, hook)

    return register


def _keeping_the_work(of_torch: Any) -> Any:
    """Keep the Work of `DDP.join` alive until the next forward pass: the Reducer references only its C++ half, and
    without its Python half a Work of this backend has no methods."""

    @functools.wraps(of_torch)
    def set_forward_pass_work_handle(reducer: dist.Reducer, work: dist.Work, *args: Any, **kwargs: Any) -> None:
        of_torch(reducer, work, *args, **kwargs)
        _forward_works[reducer] = work

    return set_forward_pass_work_handle
