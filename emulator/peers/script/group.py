"""Process groups of emulated ranks, most of which do the same as this one. A collective or message is enqueued on a
channel of its group, with its cost on the cluster. Messages and broadcasts carry the values known to their sender.
Other collectives combine known values, and those on the host, with copies of themselves, which running ranks must have
in common.
"""

import hashlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work
from torch.utils._pytree import tree_map

from emulator.cluster.cluster import Cluster
from emulator.cluster.collectives import cost
from emulator.cluster.topology import GroupLayout, place
from emulator.peers.collectives import Collectives, root_of
from emulator.peers.exchange import Exchange
from emulator.peers.run import take_over
from emulator.peers.script.channels import Channel, Ranks, Transfer
from emulator.peers.script.clock import Clock
from emulator.peers.script.cuda import replace
from emulator.peers.script.device import current
from emulator.peers.script.operators import Operator
from emulator.peers.script.rendezvous import Broadcast
from emulator.peers.script.tensors import DeviceTensor
from emulator.peers.script.values import COPIED
from emulator.peers.values import Values
from switchml.errors import EmulationError

BACKEND = "switchml-script"
FLOATS = 1 << 14
"""Maximum number of floating-point elements in a collective whose values are exchanged if known."""


@dataclass(frozen=True)
class Network:
    """The network of one of `world` ranks. `allreduce`: an algorithm of `emulator.cluster.algorithms`."""

    cluster: Cluster
    clock: Clock
    world: int
    ranks: Ranks
    allreduce: str = "auto"


def install(network: Network) -> None:
    """Make all process groups created from now on emulated."""

    def create(options: Any, _: Any) -> ScriptGroup:
        return ScriptGroup(network, options)

    dist.Backend.register_backend(BACKEND, create, extended_api=True, devices=["cpu", "cuda"])
    requested: dict[str, str] = {}

    def request(group: Any, backend: str | None) -> None:
        group = group or dist.group.WORLD
        if isinstance(group, dist.ProcessGroup):  # of which this rank is a member
            requested[group.group_name] = backend or backend_of()

    def backend_of(group: Any = None) -> str:
        every = [group, dist.group.WORLD]
        return next((requested[one.group_name] for one in every if one and one.group_name in requested), "nccl")

    initial = {"init_method": None, "store": dist.HashStore(), "rank": network.ranks.rank, "world_size": network.world}
    take_over(BACKEND, request, **initial)
    if dist.rpc.is_available():
        replace(dist.rpc, {"init_rpc": _refuse_rpc})
    for module in (dist, dist.distributed_c10d):
        replace(module, {"get_backend": backend_of, "is_nccl_available": lambda: True})
    # The second waits for keys of other ranks in a store (TORCH_DIST_INIT_BARRIER).
    alone = {"_set_pg_timeout": lambda timeout, group=None: None, "_store_based_barrier": lambda *_, **__: None}
    replace(dist.distributed_c10d, alone)
    # Gloo's barrier, which is for host tensors.
    replace(dist.ProcessGroup, {"monitored_barrier": lambda group, *_, **__: dist.barrier(group)})
    # The first reads a CUDA timer, the second compares values between ranks.
    replace(dist.Logger, {"set_runtime_stats_and_log": lambda _: None})
    replace(torch.nn.parallel.distributed, {"_verify_param_shape_across_processes": lambda *_: None})


def _refuse_rpc(*_: Any, **__: Any) -> None:
    raise EmulationError("torch.distributed.rpc can't be emulated: expected collectives, or send and recv")


def _may_be_known(tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether a collective exchanges the values of device tensors: fewer of gradients and weights, which are
    rarely known."""
    most = FLOATS if any(one.is_floating_point() for one in tensors) else COPIED
    return sum(one.numel() for one in tensors) <= most


class _Done(Work):
    """A collective or message. `received`: fills tensors with received data."""

    def __init__(
        self,
        clock: Clock,
        tensors: list[torch.Tensor],
        transfers: Sequence[Transfer] = (),
        received: Callable[[], None] | None = None,
    ):
        super().__init__()
        self._clock, self._tensors, self._transfers, self._received = clock, tensors, transfers, received

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        for transfer in self._transfers:
            self._clock.wait(self._clock.stream, transfer.end())
        if self._received is not None:
            self._received()
        self._transfers, self._received = (), None
        return True

    def synchronize(self) -> None:
        self.wait()

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
    """An emulated process group."""

    def __init__(self, network: Network, options: Any):
        self._store = options.store
        self._ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
        self._me = options.group_rank
        super().__init__(self._me, len(self._ranks))
        self._values = Exchange(tuple(self._ranks), self._me, (self._me,), None, Values("own"))
        self._network, self._name, self._description = network, str(options.group_id), "undefined"
        self._channel = Channel(network.clock, network.ranks, self._name, tuple(self._ranks))
        self._messages: dict[tuple[int, int], Channel] = {}
        """Message channels by sender and receiver."""
        stride = self._ranks[1] - self._ranks[0] if len(self._ranks) > 1 else 1
        self._where = place(len(self._ranks), stride, network.cluster.accelerators_per_node)
        self._number = self._host_calls = self._broadcasts = 0

    def getBackendName(self) -> str:
        return "nccl"

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cuda"), torch.device("cpu")]

    def set_timeout(self, timeout: timedelta) -> None:
        return None

    _set_default_timeout = set_timeout

    def broadcast(self, tensors: Sequence[torch.Tensor] | torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Broadcast; values that a script may read come from the root, if it runs."""
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        done, root = super().broadcast(tensors, *args, **kwargs), self._ranks[root_of(args, kwargs)]
        ranks, known = self._network.ranks, current().known
        for tensor in tensors:
            if isinstance(tensor, DeviceTensor) and tensor.numel() > COPIED:
                continue
            self._broadcasts += 1
            key = Broadcast(self._name, root, self._broadcasts)
            if root == ranks.rank:
                ranks.publish(key, known.payload(tensor))
            elif root in (answer := ranks.wait(key, 0.0)).payloads:
                known.receive(tensor, answer.payloads[root])
        return done

    def barrier(self, *args: Any, **kwargs: Any) -> Work:
        self.put("barrier", 0.0)
        self._network.clock.synchronize()
        return _Done(self._network.clock, [])

    def send(self, tensors: list[torch.Tensor], to: int, tag: int = 0) -> Work:
        """Send to a member of the group. As in NCCL, a message waits for its receiver, and tags are ignored."""
        return _Done(self._network.clock, tensors, [self._message(one, self._me, to) for one in tensors])

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int = 0) -> Work:
        """Receive from a member of the group."""
        transfers = [self._message(one, source, self._me) for one in tensors]
        sender = self._ranks[source]

        def fill() -> None:
            for tensor, transfer in zip(tensors, transfers, strict=True):
                known = transfer.answer.payloads.get(sender) if transfer.answer is not None else None
                current().known.receive(tensor, known)

        return _Done(self._network.clock, tensors, transfers, fill)

    def recv_anysource(self, *args: Any, **kwargs: Any) -> Work:
        raise EmulationError("a recv without a source: expected src=")

    def _message(self, tensor: torch.Tensor, source: int, to: int) -> Transfer:
        ends = self._ranks[source], self._ranks[to]
        current().hooks.share([tensor])
        network = self._network
        if ends not in self._messages:
            self._messages[ends] = Channel(network.clock, network.ranks, self._name, tuple(self._ranks), ends)
        per_node = network.cluster.accelerators_per_node
        nodes = abs(ends[0] // per_node - ends[1] // per_node)
        size = float(tensor.numel() * tensor.element_size())
        payload = current().known.payload(tensor) if source == self._me else None
        return self._put(self._messages[ends], "p2p", size, place(2, nodes * per_node or 1, per_node), payload=payload)

    def _start_coalescing(self, device: Any) -> None:
        return None

    def _end_coalescing(self, device: Any) -> Work:
        clock = self._network.clock
        clock.wait(clock.stream, self._channel.ends_s)
        return _Done(clock, [])

    def _exchange(self, operation: str) -> Exchange:
        return self._values

    def _cut(self, tensor: torch.Tensor, splits: Sequence[int] = ()) -> list[torch.Tensor]:
        is_cut = not isinstance(tensor, DeviceTensor) or _may_be_known([tensor])
        return super()._cut(tensor, splits) if is_cut else [tensor]

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
        current().hooks.share([*outputs, *inputs])
        if not any(isinstance(one, DeviceTensor) for one in (*outputs, *inputs)):
            self._host_calls += 1
            self._report_inputs(name, inputs or outputs)
            with torch.no_grad():
                for act in acts:
                    act(self._number)
            return _Done(clock, outputs)
        if not self._with_values(name, outputs, inputs, acts):
            for tensor in outputs if name != "broadcast" else ():
                current().known.forget(tensor.untyped_storage()._cdata)
        transfer = self.put(operation or name, size_bytes)
        if torch._C._current_graph_task_id() != -1:
            # At the end of backward, DDP waits in C++ for a future that is not visible here.
            main = clock.stream
            torch.autograd.Variable._execution_engine.queue_callback(lambda: clock.wait(main, transfer.end()))
        return _Done(clock, outputs, [transfer])

    def _report_inputs(self, name: str, tensors: Sequence[torch.Tensor]) -> None:
        """Report the input values of a collective that this rank knows; a broadcast's come from its root."""
        if name == "broadcast":
            return
        data = b"".join(current().known.payload(one) or b"" for one in tensors)
        key = (self._name, "values", self._number, self._host_calls)
        is_exact = not (all(one.is_floating_point() for one in tensors) or _gathers_objects())
        self._network.ranks.report_inputs(key, name.replace("_", "-"), hashlib.sha256(data).digest(), is_exact)

    def _with_values(
        self,
        name: str,
        outputs: list[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        acts: Sequence[Callable[[int], None]],
    ) -> bool:
        """Exchange the values of device tensors if all inputs are known. Return whether they are."""
        known = current().known
        if not (known.are_known(list(inputs or outputs)) and _may_be_known(inputs) and _may_be_known(outputs)):
            return False
        self._report_inputs(name, inputs or outputs)
        real: dict[int, torch.Tensor] = {}

        def host(one: Any) -> Any:
            if not isinstance(one, torch.Tensor):
                return one
            return real.setdefault(id(one), known.real(one).clone())

        with torch.no_grad():
            for act in acts:
                function: Any = getattr(act, "func", act)
                function(*tree_map(host, getattr(act, "args", ())), self._number)
        for one in outputs:
            known.store(one, real.get(id(one), host(one)))
        return True

    def put(self, operation: str, size_bytes: float) -> Transfer:
        """Begin a collective on the device."""
        self._number += 1
        algorithm = self._network.allreduce if operation == "all_reduce" else "auto"
        return self._put(self._channel, operation, size_bytes, self._where, algorithm)

    def _put(
        self,
        channel: Channel,
        operation: str,
        size_bytes: float,
        where: GroupLayout,
        algorithm: str = "auto",
        payload: bytes | None = None,
    ) -> Transfer:
        cluster = self._network.cluster
        seconds = cost(cluster, operation, size_bytes, where, algorithm).seconds
        return channel.put(operation, size_bytes, cluster.software.launch_collective_s, seconds, payload)


def _gathers_objects() -> bool:
    """Return whether a collective is part of torch's for objects."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name in ("all_gather_object", "gather_object"):
            return True
        frame = frame.f_back
    return False


_FUNCTIONAL = {
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
    "broadcast_": "broadcast",
}
"""Collectives that are operators (torch.distributed._functional_collectives), used by DTensor."""


class Functional:
    """Operators of `_c10d_functional`: each begins a collective, and `wait_tensor` waits for the preceding ones."""

    def __init__(self, clock: Clock):
        self._clock = clock
        self._transfers: list[Transfer] = []

    def launch(self, operator: Operator) -> None:
        """Begin a collective, or wait. Raises EmulationError for an unknown operator."""
        if operator.base in ("wait_tensor", "_wrap_tensor_autograd"):  # the latter waits at first use, which is next
            for transfer in self._transfers:
                self._clock.wait(self._clock.stream, transfer.end())
            self._transfers.clear()
            return
        if operator.base not in _FUNCTIONAL:
            raise EmulationError(f"{operator.name}: a collective that is not emulated")
        named: Any = dist.distributed_c10d._resolve_process_group(operator.options["group_name"])
        shapes = operator.outputs if "gather" in operator.base else operator.inputs
        self._transfers.append(named.put(_FUNCTIONAL[operator.base], float(sum(one.bytes for one in shapes))))
