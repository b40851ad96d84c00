"""Distributed checkpoints of an emulated script are neither written nor read: weights have no values, and the shards of
other ranks don't exist. `torch.distributed.checkpoint` takes a second to import, so it is patched only when a script
imports it.
"""

import sys
from collections.abc import Sequence
from concurrent.futures import Future
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

MODULE = "torch.distributed.checkpoint"


class Checkpoints:
    """A finder in `sys.meta_path` that patches the module after it is executed."""

    def __init__(self) -> None:
        self.skipped = 0
        """Number of checkpoints that the script would have written or read."""
        if MODULE in sys.modules:
            self._change(sys.modules[MODULE])
        else:
            sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find the module's spec, as importlib's finders do."""
        if name != MODULE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def changed(module: ModuleType) -> None:
                execute(module)
                self._change(module)

            spec.loader.exec_module = changed  # type: ignore[method-assign]  # on this module's loader only
        return spec

    def _change(self, module: ModuleType) -> None:
        vars(module).update(save=self._skip, load=self._skip, async_save=self._skip_later)

    def _skip(self, *_: Any, **__: Any) -> None:
        self.skipped += 1

    def _skip_later(self, *_: Any, **__: Any) -> Future[None]:
        self.skipped += 1
        done: Future[None] = Future()
        done.set_result(None)
        return done
