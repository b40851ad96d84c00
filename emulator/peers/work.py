"""Work handles returned to torch for collectives of emulated peers; waiting for them advances the world's clock."""

from datetime import timedelta

import torch
from torch._C._distributed_c10d import Work

from emulator.peers.world import CollectiveRecord, World
from host_agent.pytorch.work import NO_TIMEOUT, AllReduceWork, CallbackThreads


class PeersWork(AllReduceWork):
    """Handle of one collective. Waiting for it advances the world's clock to its end."""

    def __init__(self, world: World, tensors: list[torch.Tensor], callbacks: CallbackThreads):
        super().__init__(tensors, 1, callbacks)
        self.call: CollectiveRecord | None = None
        self._world = world

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Block until the collective would be done on the cluster, or jump there, and return True; raise its error if
        it failed."""
        self._world.wait([self], lambda: self.block(timeout))
        return True

    def block(self, timeout: timedelta = NO_TIMEOUT) -> None:
        """Wait until the collective is done on this machine, without advancing the clock."""
        super().wait(timeout)

    def is_completed(self) -> bool:
        """Return whether the collective would be done by now on the cluster."""
        if not super().is_completed():
            return False
        times = self.call.times if self.call is not None else None
        return times is None or self._world.clock.now_s() >= times.end_s[0]

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a future of the list of tensors, always the same object."""
        is_first = not self.has_future()
        future = super().get_future()
        if is_first:
            self._world.future_requested(self)
        return future


class PeersWorks(Work):
    """Combines several works."""

    def __init__(self, works: list[PeersWork]):
        super().__init__()
        self._works = works

    def wait(self, *timeout: timedelta) -> bool:
        for work in self._works:
            work.wait(*timeout)
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)
