"""The distribution's metadata, and what importing it brings along."""

import subprocess
import sys
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path

import pytest

import switchml

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it there

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("switchml", "host_agent", "emulator")


# Metadata


def test_version_is_the_same_everywhere():
    assert metadata.version("switchml") == switchml.__version__


def test_metadata():
    about = metadata.metadata("switchml")
    assert about["License-Expression"] == "Apache-2.0"
    assert about["Requires-Python"] == ">=3.10"
    assert set(about.get_all("Provides-Extra")) >= {"all", "torch", "train", "dev"}


def test_core_needs_no_optional_package():
    core = [line for line in metadata.requires("switchml") if "extra ==" not in line]
    assert core
    assert not [line for line in core if line.startswith(("torch", "pytest"))]


def test_entry_points():
    ours = {(entry.group, entry.name, entry.value) for entry in metadata.distribution("switchml").entry_points}
    assert ("console_scripts", "switchml", "switchml.cli.main:main") in ours
    assert ("torch.backends", "switchml", "host_agent.pytorch.backend:autoload") in ours
    assert ("torch.backends", "switchml-emulated", "emulator.peers.backend:autoload") in ours


def test_every_data_file_is_packaged():
    """A data file whose ending pyproject.toml does not list would be there in a checkout, but not in a wheel."""
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["*"]
    left_out = [
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and path.suffix not in (".py", ".pyi", ".md")
        and not any(fnmatch(path.name, pattern) for pattern in patterns)
    ]
    assert left_out == []


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_without_torch(package):
    program = f"import sys, {package}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
