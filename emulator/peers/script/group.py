"""Process groups of emulated ranks that all do what this one does. A collective is put on a stream of its group, with
what it costs on the cluster; tensors of the device have no values to exchange, and those of the host meet copies of
themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work

from emulator.cluster.cluster import Cluster
from emulator.cluster.collectives import cost
from emulator.cluster.topology import place
from emulator.peers.run import take_over
from emulator.peers.script.clock import Clock
from emulator.peers.script.cuda import replace
from emulator.peers.script.device import DeviceTensor, current
from emulator.peers.script.operators import Operator
from switchml.errors import EmulationError

BACKEND = "switchml-script"


@dataclass(frozen=True)
class Network:
    """What collectives run over. `allreduce`: an algorithm of `emulator.cluster.algorithms`."""

    cluster: Cluster
    clock: Clock
    world: int
    allreduce: str = "auto"
    launch_s: float = 20e-6
    """What a collective keeps the host."""


def install(network: Network) -> None:
    """Every process group that is made from here on is emulated."""

    def create(options: Any, _: Any) -> ScriptGroup:
        return ScriptGroup(network, options)

    dist.Backend.register_backend(BACKEND, create, extended_api=True, devices=["cpu", "cuda"])
    take_over(BACKEND, init_method=None, store=dist.HashStore(), rank=0, world_size=network.world)
    for module in (dist, dist.distributed_c10d):
        replace(module, {"get_backend": lambda group=None: "nccl", "is_nccl_available": lambda: True})
    # The first reads a timer of CUDA's, the second compares values between ranks.
    replace(dist.Logger, {"set_runtime_stats_and_log": lambda _: None})
    replace(torch.nn.parallel.distributed, {"_verify_param_shape_across_processes": lambda *_: None})


class _Done(Work):
    """A collective that ends at `end_s` on the device's clock."""

    def __init__(self, clock: Clock, tensors: list[torch.Tensor], end_s: float):
        super().__init__()
        self._clock, self._tensors, self._end_s = clock, tensors, end_s

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        self._clock.wait(self._clock.stream, self._end_s)
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        future.set_result(self._tensors)
        return future

    def result(self) -> list[torch.Tensor]:
        return self._tensors


if TYPE_CHECKING:
    # Torch calls most methods in two or three styles, of which its stub has other ones in each version.
    _ProcessGroup = Any
else:
    _ProcessGroup = dist.ProcessGroup


class ScriptGroup(_ProcessGroup):
    """One group."""

    def __init__(self, network: Network, options: Any):
        self._store = options.store
        self._ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
        super().__init__(options.group_rank, len(self._ranks))
        self._network, self._name, self._description = network, str(options.group_id), "undefined"
        self._stream = network.clock.new_stream()
        stride = self._ranks[1] - self._ranks[0] if len(self._ranks) > 1 else 1
        self._where = place(len(self._ranks), stride, network.cluster.accelerators_per_node)
        self._number = 0

    def getBackendName(self) -> str:
        return "nccl"

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cuda"), torch.device("cpu")]

    def get_group_store(self) -> Any:
        return self._store

    def set_timeout(self, timeout: timedelta) -> None:
        return None

    def _set_sequence_number_for_group(self) -> None:
        return None

    def _get_sequence_number_for_group(self) -> int:
        return self._number

    def allreduce(self, tensors: Any, *args: Any, **kwargs: Any) -> Work:
        tensors = _listed(tensors)
        operation = str(getattr(args[0] if args else kwargs.get("opts"), "reduceOp", "")).rpartition(".")[2]

        def exchange() -> None:
            for tensor in tensors:
                if operation == "SUM":
                    tensor.mul_(self.size())

        return self._collective("all_reduce", _bytes(tensors), tensors, exchange)

    def reduce(self, tensors: Any, *args: Any, **kwargs: Any) -> Work:
        return self._collective("reduce", _bytes(_listed(tensors)), _listed(tensors))

    def broadcast(self, tensors: Any, *args: Any, **kwargs: Any) -> Work:
        return self._collective("broadcast", _bytes(_listed(tensors)), _listed(tensors))

    def allgather(self, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Work:
        outputs = [outputs] if isinstance(inputs, torch.Tensor) else list(outputs)
        inputs = _listed(inputs)

        def exchange() -> None:
            for given, tensor in zip(outputs, inputs, strict=True):
                for one in given:
                    one.copy_(tensor)

        flat = [one for given in outputs for one in given]
        return self._collective("all_gather", _bytes(flat), flat, exchange)

    def _allgather_base(self, output: Any, input: Any, *args: Any, **kwargs: Any) -> Work:
        return self.allgather_into_tensor_coalesced([output], [input])

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Work:
        def exchange() -> None:
            for output, tensor in zip(outputs, inputs, strict=True):
                for chunk in output.view(-1).chunk(self.size()):
                    chunk.copy_(tensor.view(-1))

        return self._collective("all_gather", _bytes(outputs), list(outputs), exchange)

    def gather(self, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Work:
        return self._collective("all_gather", _bytes(_listed(inputs)) * self.size(), _listed(inputs))

    def scatter(self, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Work:
        return self._collective("all_gather", _bytes(_listed(outputs)) * self.size(), _listed(outputs))

    def reduce_scatter(self, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Work:
        return self._collective("reduce_scatter", _bytes(_listed(outputs)) * self.size(), _listed(outputs))

    def _reduce_scatter_base(self, output: Any, input: Any, *args: Any, **kwargs: Any) -> Work:
        return self._collective("reduce_scatter", _bytes([input]), [output])

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Work:
        return self._collective("reduce_scatter", _bytes(inputs), list(outputs))

    def alltoall(self, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Work:
        return self._collective("all_to_all", _bytes(inputs), list(outputs))

    def alltoall_base(self, output: Any, input: Any, *args: Any, **kwargs: Any) -> Work:
        return self._collective("all_to_all", _bytes([input]), [output])

    def barrier(self, *args: Any, **kwargs: Any) -> Work:
        work = self._collective("barrier", 0.0, [])
        self._network.clock.synchronize()
        return work

    def send(self, tensors: Any, dst: Any, tag: Any = 0) -> Work:
        raise EmulationError("send and recv: all ranks are taken to do what rank 0 does, which pipelines don't")

    def _start_coalescing(self, device: Any) -> None:
        return None

    def _end_coalescing(self, device: Any) -> Work:
        return _Done(self._network.clock, [], self._network.clock.end_of(self._stream))

    def _collective(
        self, operation: str, size_bytes: float, tensors: list[torch.Tensor], exchange: Callable[[], None] | None = None
    ) -> Work:
        clock = self._network.clock
        if tensors and not isinstance(tensors[0], DeviceTensor):
            if exchange is not None:
                with torch.no_grad():
                    exchange()
            return _Done(clock, tensors, 0.0)
        for tensor in tensors if operation != "broadcast" else ():
            current().known.forget(tensor.untyped_storage()._cdata)
        end_s = self.put(operation, size_bytes)
        if torch._C._current_graph_task_id() != -1:
            # DDP waits for a future in C++ that nothing shows: at the end of backward.
            main = clock.stream
            torch.autograd.Variable._execution_engine.queue_callback(lambda: clock.wait(main, end_s))
        return _Done(clock, tensors, end_s)

    def put(self, operation: str, size_bytes: float) -> float:
        """Begin a collective on the device; returns when it ends."""
        self._number += 1
        network = self._network
        algorithm = network.allreduce if operation == "all_reduce" else "auto"
        seconds = cost(network.cluster, operation, size_bytes, self._where, algorithm).seconds
        return network.clock.collective(self._stream, operation, size_bytes, self.size(), network.launch_s, seconds)


_SAME = {
    "_set_default_timeout": "set_timeout",
    "allreduce_coalesced": "allreduce",
    "all_gather_single": "_allgather_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "all_to_all_single": "alltoall_base",
    "recv": "send",
    "recv_anysource": "send",
}
"""Other names that torch's versions have for a method."""
for _name, _method in _SAME.items():
    setattr(ScriptGroup, _name, getattr(ScriptGroup, _method))

_FUNCTIONAL = {
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
    "broadcast_": "broadcast",
}
"""Collectives that are operators (torch.distributed._functional_collectives): DTensor's."""


class Functional:
    """Operators of `_c10d_functional`: each begins a collective, and `wait_tensor` waits for those before it."""

    def __init__(self, clock: Clock):
        self._clock = clock
        self._end_s = 0.0

    def launch(self, operator: Operator) -> None:
        """Begin or wait; EmulationError for one that is not known."""
        if operator.base in ("wait_tensor", "_wrap_tensor_autograd"):  # the latter waits at first use, which is next
            self._clock.wait(self._clock.stream, self._end_s)
            return
        if operator.base not in _FUNCTIONAL:
            raise EmulationError(f"{operator.name}: a collective that is not emulated")
        named: Any = dist.distributed_c10d._resolve_process_group(operator.options["group_name"])
        shapes = operator.outputs if "gather" in operator.base else operator.inputs
        self._end_s = max(self._end_s, named.put(_FUNCTIONAL[operator.base], float(sum(one.bytes for one in shapes))))


def _listed(tensors: Any) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _bytes(tensors: Any) -> float:
    return float(math.fsum(one.numel() * one.element_size() for one in tensors))
