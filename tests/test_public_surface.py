"""Each package's public names: documented in docs/api.md, importable, and cheap until they are used."""

import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("switchml", "host_agent", "emulator")
REFERENCE = (ROOT / "docs" / "api.md").read_text()


def documented() -> dict[str, set[str]]:
    """Package → the names in its table of the API reference."""
    names: dict[str, set[str]] = {}
    for line in REFERENCE.splitlines():
        if heading := re.fullmatch(r"## `([\w.]+)`", line):
            package = heading[1]
            names[package] = set()
        elif row := re.fullmatch(r"\| (`\w+`(?:, `\w+`)*) \| \S.* \|", line):
            names[package] |= set(re.findall(r"\w+", row[1]))
    return names


def with_surface() -> list[str]:
    """Packages that say what is public: those with `__all__` in their `__init__`."""
    inits = (path for package in PACKAGES for path in (ROOT / package).rglob("__init__.py"))
    return sorted(".".join(path.parent.relative_to(ROOT).parts) for path in inits if "__all__" in path.read_text())


def test_api_reference_lists_every_package_that_has_a_surface():
    assert sorted(documented()) == with_surface()


@pytest.mark.parametrize("package", with_surface())
def test_surface(package):
    module = importlib.import_module(package)
    assert documented()[package] == set(module.__all__)
    assert set(module.__all__) <= set(dir(module))
    submodules = {each.name for each in pkgutil.iter_modules(module.__path__)}
    assert not submodules & set(module.__all__), "importing the submodule would replace the name"
    if package.startswith("host_agent.pytorch"):
        pytest.importorskip("torch")
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        module.no_such_name  # noqa: B018


def test_packages_are_found_where_they_were():
    old, new = (importlib.import_module(f"emulator.{each}") for each in ("testbed.star", "networks.testbed.star"))
    assert old is new and new.__spec__.name == "emulator.networks.testbed.star"
    with pytest.raises(ModuleNotFoundError, match="emulator.jobs.workload.no_such_module"):
        importlib.import_module("emulator.workload.no_such_module")


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_a_package_loads_nothing(package):
    program = f"import sys, {package}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert not {"numpy", "numba", "torch", "grpc", "click"} & set(loaded)
