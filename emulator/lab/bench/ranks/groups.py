"""A rank's process groups for benchmarks of torch.distributed, with Gloo or the backend `switchml`, on CPU or GPU
tensors.

CPU tensors share the workload's memory. GPU tensors are copies, uploaded after each `fill` and downloaded before each
`check`, so that the copies are not timed.
"""

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from emulator.lab.bench.ranks.process import GROUP_TIMEOUT, RankPlace
from emulator.lab.bench.ranks.workload import Step, Workload
from host_agent.pytorch.process_group import SwitchMLProcessGroup

# torch 2.13 renamed these and warns about the old names.
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Groups:
    """The process groups of one rank. The default group is Gloo's, with its rendezvous at `rendezvous`. `device`: "cpu"
    or "cuda"; the ranks of a machine are assigned to its GPUs round-robin."""

    def __init__(self, place: RankPlace, rendezvous: str, device: str):
        torch.set_num_threads(1)
        self._is_cuda = device == "cuda"
        self._device = torch.device("cpu")
        if self._is_cuda:
            self._device = torch.device("cuda", place.rank % torch.cuda.device_count())
            torch.cuda.set_device(self._device)
        dist.init_process_group(
            "gloo", init_method=rendezvous, rank=place.rank, world_size=place.world_size, timeout=GROUP_TIMEOUT
        )

    def switchml(self, **settings: str) -> SwitchMLProcessGroup:
        """Create a group of all ranks through an aggregator. `settings`: environment variables without their prefix
        SWITCHML_."""
        os.environ |= {f"SWITCHML_{name.upper()}": text for name, text in settings.items()}
        group = dist.new_group(backend="switchml", timeout=GROUP_TIMEOUT)
        assert isinstance(group, SwitchMLProcessGroup)
        return group

    def prepare(self, work: Workload) -> None:
        """Allocate the tensors for each step of a case."""
        self._tensors: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        for step in (step for call in work.calls for step in call):
            source, target = (torch.from_numpy(x).view(getattr(torch, step.dtype)) for x in (step.source, step.target))
            if self._is_cuda:
                on_host, target = target, torch.empty_like(target, device=self._device)
                self._copies.append((on_host, target))
                source = target if step.source is step.target else source.to(self._device)
            self._tensors[id(step)] = source, target

    def put(self) -> None:
        """Copy the inputs that `fill` wrote to the GPU."""
        for host, placed in self._copies:
            placed.copy_(host)
        self.synchronize()

    def fetch(self) -> None:
        """Copy the results from the GPU, for `check`."""
        for host, placed in self._copies:
            host.copy_(placed)

    def synchronize(self) -> None:
        """Wait for the GPU."""
        if self._is_cuda:
            torch.cuda.synchronize()

    def begins(self, group: dist.ProcessGroup | None = None) -> Callable[[Step, bool], Any]:
        """Return the function that starts a step's collective in a group, by default Gloo's."""

        def begin(step: Step, async_op: bool) -> Any:
            source, target = self._tensors[id(step)]
            if step.kind == "all_reduce":
                return dist.all_reduce(target, group=group, async_op=async_op)
            if step.kind == "broadcast":
                return dist.broadcast(target, 0, group=group, async_op=async_op)
            if step.kind == "all_gather":
                return _gather(target, source, group=group, async_op=async_op)
            return _scatter(target, source, group=group, async_op=async_op)

        return begin

    def leave(self) -> None:
        """Destroy the process groups; all ranks must call it."""
        dist.destroy_process_group()
