"""Sizes of collectives and gradients. torch's profile includes them only if it records the shapes of all operators,
which keeps every tensor's header until the end: the heap fragments, and each iteration touches new memory. Instead:

- Collectives of Gloo are in torch's flight recorder, which is always on.
- Its sends and receives are not, so a capture intercepts those called from Python.
- Gradients are recorded in the order in which they become final, by hooks that are a list's `append`.

NCCL's collectives have their sizes in any profile, and switchml's in the agents' logs.
"""

import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from host_agent.profile.iterations import living

_SIZED = {"gloo", "nccl", "switchml", "fake"}
"""Backends whose collectives' sizes are known without the shapes of all operators."""


def need_shapes(backend: str, world_size: int) -> bool:
    """Whether sizes require the shapes of all operators: for another backend, one that is not known yet, or a torch
    whose flight recorder does not include Gloo (before 2.8), or is disabled."""
    names = {part.rpartition(":")[2] for part in backend.split(",")} - {""}
    if not names:
        return world_size > 1
    return not names <= _SIZED or ("gloo" in names and not _flight_records())


class Sizes:
    """Recorder of sizes, from `Sizes(…)` to `stop`."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        """`parameters`: all existing parameters."""
        self._since_ns = time.time_ns()
        self._undo = contextlib.ExitStack()
        self._final: list[torch.Tensor] = []
        self._messages: list[tuple[dist.ProcessGroup, int, dict[str, Any]]] = []
        self._watch_gradients(parameters)
        self._watch_messages()

    def _watch_gradients(self, parameters: list[torch.nn.Parameter]) -> None:
        for parameter in parameters:
            with contextlib.suppress(RuntimeError):  # it needs no gradient, or is not a leaf
                self._undo.callback(parameter.register_post_accumulate_grad_hook(self._final.append).remove)

    def _watch_messages(self) -> None:
        if not dist.is_available():
            return
        from torch.distributed import ProcessGroup

        def watched(what: str, plain: Callable[..., Any]) -> Callable[..., Any]:
            def method(group: Any, tensors: Any, peer: int, *args: Any, **kwargs: Any) -> Any:
                if tensors[0].device.type == "cpu":
                    shapes = [list(tensor.shape) for tensor in tensors]
                    types = [str(tensor.dtype).removeprefix("torch.") for tensor in tensors]
                    call = {"name": f"gloo:{what}", "at_ns": time.time_ns(), "in": shapes, "in_types": types}
                    self._messages.append((group, peer, call))
                return plain(group, tensors, peer, *args, **kwargs)

            return method

        for what in ("send", "recv"):
            # Not the result of getattr, which would no longer be bound to instances.
            self._undo.callback(setattr, ProcessGroup, what, vars(ProcessGroup)[what])
            setattr(ProcessGroup, what, watched(what, getattr(ProcessGroup, what)))

    def stop(self) -> None:
        """Stop recording and remove all hooks."""
        self._undo.close()

    def as_json(self) -> dict[str, Any]:
        """The recorded sizes, for JSON. `calls`: for each collective of Gloo, the time of the call (Unix time), its
        group, shapes and types of input and output tensors, and for point-to-point messages the other rank;
        `gradients`: indices in `parameters`, in the order in which they became final."""
        names = _names_of_parameters()
        final = {id(parameter): parameter for parameter in self._final}
        place = {number: at for at, number in enumerate(final)}
        return {
            "groups": _groups(),
            "calls": sorted([*self._collectives(), *self._sent_and_received()], key=lambda call: call["at_ns"]),
            "parameters": [
                {"name": names.get(number, ""), "bytes": parameter.numel() * parameter.element_size()}
                for number, parameter in final.items()
            ],
            "gradients": [place[id(parameter)] for parameter in self._final],
        }

    def _collectives(self) -> list[dict[str, Any]]:
        return [
            {
                "name": one["profiling_name"],
                "at_ns": one["time_created_ns"],
                "group": one["process_group"][0],
                "in": one["input_sizes"],
                "in_types": one["input_dtypes"],
                "out": one["output_sizes"],
                "out_types": one["output_dtypes"],
            }
            for one in _flight_records()
            if one["time_created_ns"] >= self._since_ns
        ]

    def _sent_and_received(self) -> list[dict[str, Any]]:
        messages = []
        for group, peer, call in self._messages:
            with contextlib.suppress(RuntimeError, ValueError):  # the group no longer exists
                messages.append(call | {"group": group.group_name, "peer": dist.get_global_rank(group, peer)})
        return messages


def _flight_records() -> list[dict[str, Any]]:
    """Calls of Gloo in the flight recorder, the oldest first."""
    try:
        from torch._C._distributed_c10d import _dump_fr_trace_json  # type: ignore[attr-defined]  # not in its stub

        entries = json.loads(_dump_fr_trace_json(True, False)).get("entries", [])
        return [one for one in entries if one["profiling_name"].startswith("gloo:") and "input_sizes" in one]
    except (ImportError, RuntimeError, TypeError, KeyError, ValueError):
        return []


def _groups() -> dict[str, list[int]]:
    """Name of a process group → its ranks in the job, in the order of the group."""
    if not (dist.is_available() and dist.is_initialized()):
        return {}
    groups = [group for group in dist.distributed_c10d._world.pg_names if isinstance(group, dist.ProcessGroup)]
    return {group.group_name: list(dist.get_process_group_ranks(group)) for group in groups}


# DDP's information on its buckets: their parameters, and the order in which gradients become final


def _names_of_parameters() -> dict[int, str]:
    """`id` of a parameter → its name, if there is exactly one DistributedDataParallel, so that names are
    unambiguous."""
    modules = _modules()
    return {id(one): name for name, one in modules[0].module.named_parameters()} if len(modules) == 1 else {}


def describe_buckets() -> list[dict[str, Any]]:
    """One entry per DistributedDataParallel module of this process. Sizes are in bytes; `gradients`: names in the order
    in which they became final, if DDP knows it (from the second iteration on)."""
    return [_describe(module) for module in _modules()]


def _modules() -> list[Any]:
    if not dist.is_available():
        return []
    from torch.nn.parallel import DistributedDataParallel

    return living(DistributedDataParallel)


def _describe(module: Any) -> dict[str, Any]:
    logged = module._get_ddp_logging_data()
    names = {id(parameter): name for name, parameter in module.module.named_parameters()}
    parameters = list(module._module_parameters)
    named = [names.get(id(parameter), f"parameter {number}") for number, parameter in enumerate(parameters)]

    def listed(text: str) -> list[str]:
        return [named[int(number)] for number in text.replace(",", " ").split()]

    rebuilt = logged.get("rebuilt_per_bucket_param_indices") or ""
    return {
        "module": logged.get("module_name", ""),
        "bucket_cap_bytes": int(logged.get("bucket_cap_bytes", 0)),
        "comm_hook": logged.get("comm_hook", ""),
        "buckets": [listed(bucket) for bucket in rebuilt.split(",") if bucket.strip()],
        "gradients": listed(logged.get("prev_iteration_grad_ready_order_indices") or ""),
        "parameters": {
            name: {
                "shape": list(parameter.shape),
                "dtype": str(parameter.dtype).removeprefix("torch."),
                "bytes": parameter.numel() * parameter.element_size(),
            }
            for name, parameter in zip(named, parameters, strict=True)
        },
    }
