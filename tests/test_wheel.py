"""The wheel and the source distribution hold what stands in the packages. `scripts/test` runs this beside the tests."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from switchml import share

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("switchml", "host_agent", "emulator")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Names in the wheel and in the source distribution, both built from a copy."""
    folder = tmp_path_factory.mktemp("build")
    source, output = folder / "source", folder / "output"
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", ".*", "build")
    shutil.copytree(ROOT, source, symlinks=True, ignore=ignore)
    build = "import sys, setuptools.build_meta as b; [_, to] = sys.argv; b.build_sdist(to); b.build_wheel(to)"
    subprocess.run([sys.executable, "-c", build, output], cwd=source, check=True, capture_output=True)
    [wheel], [archive] = output.glob("*.whl"), output.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        unpacked = {name.partition("/")[2] for name in files.getnames()}
    return source, set(zipfile.ZipFile(wheel).namelist()), unpacked


def test_wheel_holds_data_and_type_markers(built):
    """What stands in the packages is in a wheel, too: code, data, what a link leads to, `py.typed`."""
    source, packaged, _ = built
    here = {
        str(path.relative_to(source))
        for package in PACKAGES
        for pattern in (f"{package}/**/*", "switchml/control/p4/compiled/*")  # ** passes over links
        for path in source.glob(pattern)
        if path.is_file() and path.suffix != ".md"
    }
    assert here - packaged == set()
    assert {f"{package}/py.typed" for package in PACKAGES} <= packaged


def test_wheel_holds_examples_programs_and_documentation(built):
    _, packaged, _ = built
    here = {f"switchml/share/{path.relative_to(share.HERE)}" for file in share.files() for path in _files(file.path)}
    assert {"ddp_digits.py", "two-racks", "switchml.lua", "simple_switch"} <= {Path(name).name for name in here}
    pages = {
        f"switchml/share/docs/{path.relative_to(share.DOCS)}"
        for path in share.DOCS.rglob("*.*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert (here | pages) - packaged == set()


def _files(path):
    return [path] if path.is_file() else [each for each in path.rglob("*.*") if each.suffix != ".pyc"]


def test_source_distribution_is_complete(built):
    source, _, unpacked = built
    wanted = {
        str(path.relative_to(source))
        for pattern in ("*.md", "docs/**/*", "p4/**/*", "scripts/**/*", "tests/**/*", *(f"{p}/**/*" for p in PACKAGES))
        for path in source.glob(pattern)
        if path.is_file()
    }
    assert wanted - unpacked == set()
    assert {"LICENSE", "pyproject.toml", "CHANGELOG.md"} <= unpacked
