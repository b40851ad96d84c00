"""Memory accounting of torch's tensors, on any device: counts a storage from the operator that returns it until it is
freed."""

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class Tracker(TorchDispatchMode):
    """While active, `now` is the number of bytes of live storages returned by operators, `peak` its maximum.
    Temporaries inside an operator's kernel are not counted."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types for it
        self.now = self.peak = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = function(*args, **(kwargs or {}))
        for tensor in tree_iter(outputs):
            if isinstance(tensor, torch.Tensor):
                self._note(tensor.untyped_storage())
        return outputs

    def _note(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._sizes:
            return
        self._sizes[key] = storage.nbytes()
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, key)

    def _gone(self, key: int) -> None:
        self.now -= self._sizes.pop(key)
