"""One rank of a script on an emulated GPU: patches torch, detects iterations, and attributes memory. Runs in a separate
process (`program.py`), as it changes torch permanently.
"""

import importlib
import math
import os
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from emulator.cluster.cluster import Cluster
from emulator.peers.script import choices, cuda, driver, flex, group, nvidia_smi, spawning, tensors
from emulator.peers.script.allocator import Allocator, Block, Full
from emulator.peers.script.channels import Ranks
from emulator.peers.script.checkpoints import Checkpoints
from emulator.peers.script.clock import Clock
from emulator.peers.script.compiling import Compiled
from emulator.peers.script.costs import Costs
from emulator.peers.script.device import Device, Hooks
from emulator.peers.script.launch import PROFILED
from emulator.peers.script.memory import Ledger, Phase
from emulator.peers.script.modules import OUTSIDE, Modules
from emulator.peers.script.operators import Operator
from emulator.peers.script.plan_replayer import PlanReplayer
from emulator.peers.script.rounds import Rounds, parameters
from emulator.peers.script.updates import Updates
from switchml.units import memory_text

WORKSPACE_BYTES = {"Hopper": 32 << 20, "Blackwell": 32 << 20}
"""Size of cuBLAS's workspace, one for each thread that runs GEMMs: forward's and backward's
(at::cuda::getChosenWorkspaceSize; other architectures use about 8 MiB)."""


class Session:
    """The emulated environment of a script. `ranks`: this rank and connections to others. `iterations`: number to
    run."""

    def __init__(self, cluster: Cluster, world: int, ranks: Ranks, allreduce: str, iterations: int):
        accelerator, local_rank = cluster.device, ranks.rank % cluster.accelerators_per_node
        driver.install(local_rank)
        choices.install(accelerator)
        tensors.install()
        self.cluster, self.world, self.ranks, self._iterations = cluster, world, ranks, iterations
        self.clock = Clock()
        self.memory = Allocator(accelerator.memory_bytes, _is_expandable())
        self.ledger = Ledger()
        self.modules = Modules()
        self._module = OUTSIDE
        """Module of the last operator: the next allocations are for its results."""
        self.boundaries: list[tuple[float, int]] = []
        """(seconds, number of spans so far) at the end of each iteration."""
        self.scopes: list[tuple[str, float, float]] = []
        """Host activities as named by the profiler, with start and end."""
        self._costs = Costs(accelerator, cluster.software, cluster.host_link_bytes_per_s)
        self._blocks: dict[int, Block | None] = {}
        self._workspaces: set[bool] = set()
        self._updates = Updates(self._mark, self.modules.parameters)
        self.rounds = Rounds(self._updates.optimizers)
        self._early: defaultdict[int, list[tuple[float, int]]] = defaultdict(list)
        """As `boundaries`: steps before the second iteration has ended, by the optimizer's identity."""
        self._in_optimizer = False
        self.host_steps = 0
        """Steps of optimizers whose weights are on the host."""
        self._called_s = self._stepped_s = 0.0
        self.compiled = Compiled(self._learn_first)
        flex.install(lambda: self.compiled.segment(_is_backward()) is not None)
        self.replayer = PlanReplayer(self._costs)
        self.device = Device(Hooks(self._launch, self._allocate, self._free, self._read, self._share), local_rank)
        devices = min(world, cluster.accelerators_per_node)
        cuda.install(accelerator, devices, local_rank, self.clock, self.memory)
        nvidia_smi.install(accelerator.title, devices)
        group.install(group.Network(cluster, self.clock, world, ranks, allreduce))
        spawning.install(ranks.rank, world, cluster.accelerators_per_node)
        self.checkpoints = Checkpoints()
        self._functional = group.Functional(self.clock)
        torch.__future__.set_swap_module_params_on_conversion(True)
        for module in ("torch.optim.optimizer", "torch.utils._foreach_utils"):
            importlib.import_module(module)._foreach_supported_types.append(tensors.DeviceTensor)
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._stepped)

    def title_of(self, operator: int) -> str:
        """Return the display name of an operator's kind of kernel."""
        return self._costs.title(self.device.operators[operator])

    def _learn_first(self) -> None:
        """Remove the memory limit until the compiled iteration is known, as eager execution uses more. The third
        iteration is recorded, because DDP rebuilds its buckets in the second."""
        self.memory.capacity_bytes = math.inf
        self._iterations += 1

    def _launch(self, operator: Operator, arguments: list[Any]) -> None:
        is_backward = _is_backward()
        if self._updates.have_ended(operator, arguments, is_backward):
            self._end_iteration()
        step, segment = None, None
        if self.compiled.is_used:
            segment = self.compiled.segment(is_backward)
            step = self.replayer.launch(operator, segment, lambda: self._storages(arguments))
            for number in self.replayer.late():
                self._give_back(number)
        if operator.name.startswith("_c10d_functional"):
            self._functional.launch(operator)
            return
        if self._costs.multiplies(operator) and is_backward not in self._workspaces:
            self._workspaces.add(is_backward)
            self._allocate(-1 - is_backward, WORKSPACE_BYTES.get(self.cluster.device.architecture, 8519680))
        if self.boundaries:
            self._costs.check(operator)
        self._module = self.modules.current(is_backward)
        if step is None:
            host_s = self._costs.host_s(operator, is_backward)
            self.clock.launch(operator.number, host_s, self._costs.device_s(operator), self._module)
        elif step.seconds:
            host_s = self._costs.compiled_host_s() if self.compiled.is_launched(segment) else 0.0
            self.clock.launch(step.operator, host_s, step.seconds, self._module)

    def _storages(self, arguments: list[Any]) -> tuple[int | None, ...]:
        tensors = (one for one in arguments if isinstance(one, torch.Tensor))
        return tuple(self.device.storage_number(one) for one in tensors)

    def _share(self, tensors: Sequence[torch.Tensor]) -> None:
        if self.compiled.is_used:
            self.replayer.share([self.device.storage_number(one) for one in tensors])

    def _phase(self) -> Phase:
        if self._in_optimizer:
            return Phase.OPTIMIZER
        return Phase.BACKWARD if _is_backward() else Phase.FORWARD

    def _allocate(self, number: int, size: int) -> None:
        if number >= 0 and self.compiled.is_used and not self.replayer.allocate(number):
            size = 0
        try:
            block = self.memory.take(size, self.clock.stream)
        except Full as full:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {memory_text(full.bytes)}. The GPU has a total capacity "
                f"of {memory_text(self.memory.capacity_bytes)}, of which {memory_text(self.memory.allocated_bytes)} is "
                f"allocated and {memory_text(self.memory.reserved_bytes)} reserved by PyTorch."
            ) from None
        self._blocks[number] = block
        size, reserved = 0 if block is None else block.bytes, self.memory.reserved_bytes
        self.ledger.allocated(number, size, self._phase(), self._module, self.clock.host_s, reserved)

    def _free(self, number: int) -> None:
        if self.replayer.free(number):
            self._give_back(number)

    def _give_back(self, number: int) -> None:
        self.memory.give_back(self._blocks.pop(number, None))
        self.ledger.freed(number, self.clock.host_s, self.memory.reserved_bytes)

    def _read(self) -> None:
        self.clock.synchronize(self.clock.stream)

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        self._in_optimizer, self._called_s = True, self.clock.host_s
        own = parameters(optimizer)
        if isinstance(optimizer, torch.optim.LBFGS) and any(map(self.device.storage_number, own)):
            for entry in optimizer.param_groups:  # losses that are all the same would have converged
                entry |= dict.fromkeys(("tolerance_grad", "tolerance_change"), -math.inf)
        self.host_steps += any(one.grad is not None and one.device.type == "cpu" for one in own)
        for parameter in own:
            self._mark("weights", parameter)
            self._mark("gradients", parameter.grad)

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        self._in_optimizer = False
        self.scopes.append((f"Optimizer.step#{type(optimizer).__name__}.step", self._called_s, self.clock.host_s))
        for state in optimizer.state.values():
            for value in state.values() if isinstance(state, dict) else ():
                self._mark("optimizer states", value)
        if len(self.boundaries) < 2:
            self._early[id(optimizer)].append((self.clock.now_s, len(self.clock.spans)))
        if self.rounds.ends(optimizer):
            self._end_iteration()

    def end(self) -> None:
        """Called when the script has ended: if it has made no two iterations, the most frequent optimizer's steps count
        as such."""
        if len(self.boundaries) < 2:
            self.boundaries = max(self.boundaries, *self._early.values(), [], key=len)

    def _end_iteration(self) -> None:
        if len(self.boundaries) == self._iterations:
            self.ranks.finish()
            return
        for frozen in self.modules.parameters():
            self._mark("weights", frozen)
        self.ledger.mark_rest("buffers and buckets")
        self.scopes.append((f"ProfilerStep#{len(self.boundaries)}", self._stepped_s, self.clock.host_s))
        self.boundaries.append((self.clock.now_s, len(self.clock.spans)))
        if self._iterations - len(self.boundaries) == PROFILED:
            self.clock.synchronize()  # as the profiler does when it starts, so that no earlier work is in the profile
        self._stepped_s = self.clock.host_s
        self.modules.next_iteration()
        if self.compiled.is_used and len(self.boundaries) < self._iterations:
            self._next_compiled()
        if len(self.boundaries) == self._iterations:
            self.ranks.finish()

    def _next_compiled(self) -> None:
        """Begin recording the next iteration, or replaying it as compiled: the first such iteration restarts the peak
        counters."""
        was_ready = self.replayer.is_ready
        self.compiled.next_iteration()
        if len(self.boundaries) > 1:
            self.replayer.begin()
        if self.replayer.is_ready and not was_ready:
            self.memory.capacity_bytes = self.cluster.device.memory_bytes
            self.memory.empty_cache()
            self.memory.reset_peaks()
            self.ledger.restart()

    def _mark(self, use: str, tensor: Any) -> None:
        tensor = getattr(tensor, "_local_tensor", tensor)
        if isinstance(tensor, tensors.DeviceTensor) and tensor.device.type == "cuda":
            number = self.device.storage_number(tensor)
            if number is not None:
                self.ledger.mark(number, use)


def _is_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _is_expandable() -> bool:
    """Return whether the environment enables expandable segments (torch's notes on CUDA semantics, "Optimizing memory
    usage")."""
    options = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""
    return "expandable_segments:true" in options.replace(" ", "").lower()
