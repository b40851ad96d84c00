"""Checkpoints of an emulated script, whose weights have no values. Distributed ones are neither written nor read, as
the shards of other ranks don't exist; files of safetensors have zeros, which take no space on disk. The modules take a
second to import, so they are patched only when a script imports them.
"""

import json
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from emulator.peers.script.tensors import DeviceTensor, owner


class Checkpoints:
    """A finder in `sys.meta_path` that patches modules after they are executed."""

    def __init__(self) -> None:
        self.skipped = 0
        """Number of checkpoints that the script would have written or read."""
        self._changes: dict[str, Callable[[ModuleType], None]] = {
            "torch.distributed.checkpoint": self._skip_all,
            "safetensors.torch": _save_zeros,
        }
        for name in [*self._changes]:
            if name in sys.modules:
                self._changes.pop(name)(sys.modules[name])
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find a module's spec, as importlib's finders do."""
        if name not in self._changes:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def changed(module: ModuleType) -> None:
                execute(module)
                self._changes[name](module)

            spec.loader.exec_module = changed  # type: ignore[method-assign]  # on this module's loader only
        return spec

    def _skip_all(self, module: ModuleType) -> None:
        names = ("save", "load", "save_state_dict", "load_state_dict")
        changed: dict[str, Any] = {**dict.fromkeys(names, self._skip), "async_save": self._skip_later}
        for part in (module, module.state_dict_saver, module.state_dict_loader):
            vars(part).update({name: change for name, change in changed.items() if hasattr(part, name)})

    def _skip(self, *_: Any, **__: Any) -> None:
        self.skipped += 1

    def _skip_later(self, *_: Any, **__: Any) -> Future[None]:
        self.skipped += 1
        done: Future[None] = Future()
        done.set_result(None)
        return done


def _save_zeros(module: ModuleType) -> None:
    """Replace `save_file`, which reads memory that tensors without values don't have."""
    save, names = module.save_file, {dtype: name for name, dtype in module._TYPES.items()}

    def saved(tensors: dict[str, Any], filename: Any, metadata: dict[str, str] | None = None) -> None:
        if not any(isinstance(one, DeviceTensor) for one in tensors.values()):
            save(tensors, filename, metadata)
            return
        header: dict[str, Any] = {"__metadata__": {**(metadata or {}), "emulated": "no values"}}
        end = 0
        for name, one in tensors.items():
            begin, end = end, end + one.numel() * one.element_size()
            header[name] = {"dtype": names[one.dtype], "shape": list(one.shape), "data_offsets": [begin, end]}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with Path(filename).open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for name, one in tensors.items():
                known = owner[0].known.payload(one)
                if known is not None:
                    file.seek(8 + len(text) + header[name]["data_offsets"][0])
                    file.write(known)
            file.truncate(8 + len(text) + end)

    vars(module)["save_file"] = saved
