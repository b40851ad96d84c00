"""Process groups of emulated ranks that all do what this one does. A collective is put on a stream of its group, with
what it costs on the cluster; tensors of the device have no values to exchange, and those of the host meet copies of
themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work

from emulator.cluster.cluster import Cluster
from emulator.cluster.collectives import cost
from emulator.cluster.topology import place
from emulator.peers.collectives import Collectives
from emulator.peers.exchange import Exchange
from emulator.peers.run import take_over
from emulator.peers.script.clock import Clock
from emulator.peers.script.cuda import replace
from emulator.peers.script.device import DeviceTensor, current
from emulator.peers.script.operators import Operator
from emulator.peers.values import Values
from switchml.errors import EmulationError

BACKEND = "switchml-script"


@dataclass(frozen=True)
class Network:
    """What collectives run over. `allreduce`: an algorithm of `emulator.cluster.algorithms`."""

    cluster: Cluster
    clock: Clock
    world: int
    allreduce: str = "auto"


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


class ScriptGroup(Collectives):
    """One group."""

    def __init__(self, network: Network, options: Any):
        self._store = options.store
        self._ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
        self._me = options.group_rank
        super().__init__(self._me, len(self._ranks))
        self._values = Exchange(tuple(self._ranks), self._me, (self._me,), None, Values("own"))
        self._network, self._name, self._description = network, str(options.group_id), "undefined"
        self._stream = network.clock.new_stream()
        stride = self._ranks[1] - self._ranks[0] if len(self._ranks) > 1 else 1
        self._where = place(len(self._ranks), stride, network.cluster.accelerators_per_node)
        self._number = 0

    def getBackendName(self) -> str:
        return "nccl"

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cuda"), torch.device("cpu")]

    def set_timeout(self, timeout: timedelta) -> None:
        return None

    _set_default_timeout = set_timeout

    def barrier(self, *args: Any, **kwargs: Any) -> Work:
        self.put("barrier", 0.0)
        self._network.clock.synchronize()
        return _Done(self._network.clock, [], 0.0)

    def send(self, *args: Any, **kwargs: Any) -> Work:
        raise EmulationError("send and recv: all ranks are taken to do what rank 0 does, which pipelines don't")

    recv = recv_anysource = send

    def _start_coalescing(self, device: Any) -> None:
        return None

    def _end_coalescing(self, device: Any) -> Work:
        return _Done(self._network.clock, [], self._network.clock.end_of(self._stream))

    def _exchange(self, operation: str) -> Exchange:
        return self._values

    def _cut(self, tensor: torch.Tensor, splits: Sequence[int] = ()) -> list[torch.Tensor]:
        return [tensor] if isinstance(tensor, DeviceTensor) else super()._cut(tensor, splits)

    def _call(
        self,
        name: str,
        size_bytes: float,
        outputs: list[torch.Tensor],
        acts: Sequence[Callable[[int], None]],
        inputs: Sequence[torch.Tensor] = (),
        operation: str = "",
    ) -> Work:
        clock = self._network.clock
        if not any(isinstance(one, DeviceTensor) for one in (*outputs, *inputs)):
            with torch.no_grad():
                for act in acts:
                    act(self._number)
            return _Done(clock, outputs, 0.0)
        for tensor in outputs if name != "broadcast" else ():
            current().known.forget(tensor.untyped_storage()._cdata)
        end_s = self.put(operation or name, size_bytes)
        if torch._C._current_graph_task_id() != -1:
            # DDP waits for a future in C++ that nothing shows: at the end of backward.
            main = clock.stream
            torch.autograd.Variable._execution_engine.queue_callback(lambda: clock.wait(main, end_s))
        return _Done(clock, outputs, end_s)

    def put(self, operation: str, size_bytes: float) -> float:
        """Begin a collective on the device; returns when it ends."""
        self._number += 1
        network = self._network
        algorithm = network.allreduce if operation == "all_reduce" else "auto"
        seconds = cost(network.cluster, operation, size_bytes, self._where, algorithm).seconds
        launch_s = network.cluster.software.launch_collective_s
        return network.clock.collective(
            self._stream, operation, size_bytes, (self._name, tuple(self._ranks)), launch_s, seconds
        )


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
