"""Public names of a package that are imported on first use (PEP 562), so that importing the package itself costs
nothing; and packages that can be imported by a former name, too.

The names are listed once, in the package's `__init__.pyi`, which type checkers and editors also read: one line `from
module import name as name` for each. The stub is parsed, never executed.
"""

import importlib
import re
import sys
from collections.abc import Callable, Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

_LINE = re.compile(r"^from (\S+) import (\w+) as \2$", re.MULTILINE)


def attach(package: str, file: str, group: str = "") -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` for a package; pass its `__name__` and `__file__`.

    `group`: entry point group under which packages above this one register their names in the stub; this package does
    not import them itself.
    """
    stub = Path(file).with_suffix(".pyi").read_text()
    origins = {name: module for module, name in _LINE.findall(stub)}
    names = sorted(origins)

    def get(name: str) -> Any:
        if name not in origins:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if group and origins[name].partition(".")[0] != package:
            value = _registered(group, name)
        else:
            value = getattr(importlib.import_module(origins[name]), name)
        setattr(sys.modules[package], name, value)  # so that Python finds it the next time
        return value

    return get, lambda: names, names


def _registered(group: str, name: str) -> Any:
    from importlib.metadata import entry_points

    for entry in entry_points(group=group, name=name):
        return entry.load()
    raise AttributeError(f"{name!r} is not registered as an entry point of {group!r}: install the package again")


def moved(places: Mapping[str, str]) -> None:
    """Make `import` resolve each key of `places`, and every module in it, to the module of its value: the same
    object."""
    sys.meta_path.insert(0, _Moved(places))


class _Moved(MetaPathFinder, Loader):
    """Import hook that runs before Python's own finders, which would load a module of a moved package a second time by
    the package's path."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = places
        self._specs: dict[str, ModuleSpec | None] = {}

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        package = ".".join(fullname.split(".")[:2])
        return ModuleSpec(fullname, self) if package in self._places else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        package = ".".join(spec.name.split(".")[:2])
        module = importlib.import_module(self._places[package] + spec.name[len(package) :])
        self._specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._specs.pop(module.__spec__.name)  # type: ignore[union-attr]  # import has set its own
