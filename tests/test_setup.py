"""The project as a whole: metadata, wheel, directions of imports, types, and scripts/run and scripts/test."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path

import pytest

import switchml
from switchml import share

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
    assert not [line for line in core if line.startswith(("torch", "scikit-learn", "pytest"))]


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
    here = {f"switchml/share/{path.relative_to(share.HERE)}" for path in [file.path for file in share.files()]}
    assert {"ddp_digits.py", "two-racks", "switchml.lua", "simple_switch"} <= {Path(name).name for name in here}
    pages = {
        f"switchml/share/docs/{path.relative_to(share.DOCS)}"
        for path in share.DOCS.rglob("*.*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert (here | pages) - packaged == set()


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


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_without_torch(package):
    program = f"import sys, {package}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


# Imports


def test_imports_run_down():
    """The contracts stand in pyproject.toml, under [tool.importlinter]."""
    result = subprocess.run(
        [shutil.which("lint-imports", path=Path(sys.executable).parent), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout


# Types


def test_types():
    """mypy's settings, and which modules are strict, stand in pyproject.toml, under [tool.mypy]."""
    result = subprocess.run([sys.executable, "-m", "mypy"], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


# scripts/run and scripts/test, with a stand-in for Python that installs nothing

STAND_IN = """#!/bin/bash
# Plays python: prints its version, makes a venv that contains itself, and records calls of pip and the programs.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
case "$*" in
    *version_info*) echo "$STAND_IN_VERSION" ;;
    "-m venv "*)
        mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && cp "$0" "$3/bin/switchml"
        echo venv >>"$STAND_IN_LOG" ;;
    "-m pip "*--dry-run*) ;;
    "-m pip "*" install "*)
        arguments=$*
        echo "pip ${arguments##* install }" >>"$STAND_IN_LOG"
        sleep "${STAND_IN_PIP_S:-0}"
        if [ -n "${STAND_IN_PIP_FAILS:-}" ]; then echo "ERROR: no such package" >&2; exit 1; fi
        echo "WARNING: Location 'somewhere' is ignored" >&2 ;;
    *find_spec*) [ -n "${STAND_IN_HAS_TORCH:-}" ] ;;
    "-c import "*) ;;
    *) echo "${0##*/} $*" >>"$STAND_IN_LOG" ;;
esac
"""


class Checkout:
    """A copy of the scripts in a folder of its own (with a space in its name), run with the stand-in."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "a checkout"
        self.root.mkdir()
        shutil.copytree(ROOT / "scripts", self.root / "scripts")
        shutil.copy(ROOT / "pyproject.toml", self.root)
        self.python = folder / "python"
        self.python.write_text(STAND_IN)
        self.python.chmod(0o755)
        self.log = folder / "log"
        self.stamp = self.root / ".venv" / "setup-stamp"

    def start(self, script: str, *args: str, **environment: str) -> subprocess.Popen:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SWITCHML_")}
        stand_in = {"PYTHON": str(self.python), "STAND_IN_LOG": str(self.log), "STAND_IN_VERSION": "3.11"}
        return subprocess.Popen(
            [self.root / "scripts" / script, *args],
            env=inherited | stand_in | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, script: str, *args: str, **environment: str) -> tuple[int, str]:
        """Run to the end; returns the exit status and stderr."""
        process = self.start(script, *args, **environment)
        return process.wait(), process.communicate()[1]

    def take_log(self) -> list[str]:
        """The calls that the stand-in recorded since the last call, one short word or line each."""
        text = self.log.read_text() if self.log.exists() else ""
        self.log.unlink(missing_ok=True)
        return text.replace(f"{self.root}", "").splitlines()


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


PIP_TEST = "pip --no-compile -e [all,dev] torch==2.13.0"
PIP_RUN = "pip --no-compile -e [all] torch==2.13.0"
if sys.platform == "linux":
    PIP_TEST += "+cpu"
    PIP_RUN += "+cpu"


def test_first_call_installs_and_second_does_not(checkout):
    status, stderr = checkout.run("test", "-k", "something")
    assert status == 0
    assert checkout.take_log() == ["venv", PIP_TEST, "python -m pytest -k something"]
    assert all(line.startswith("setup: ") for line in stderr.splitlines()), "pip's warnings stay in its log"
    assert checkout.run("test", "-x") == (0, "")
    assert checkout.take_log() == ["python -m pytest -x"]


def test_run_needs_fewer_extras_than_test(checkout):
    checkout.run("run", "--workers", "2")
    assert checkout.take_log() == ["venv", PIP_RUN, "switchml train --workers 2"]
    checkout.run("test", STAND_IN_HAS_TORCH="yes")
    assert checkout.take_log() == ["pip --no-compile -e [all,dev]", "python -m pytest"]
    checkout.run("run")
    assert checkout.take_log() == ["switchml train"]


def test_changed_project_is_installed_again_in_place(checkout):
    checkout.run("test")
    checkout.take_log()
    with (checkout.root / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    checkout.run("run", STAND_IN_HAS_TORCH="yes")
    assert checkout.take_log() == ["pip --no-compile -e [all,dev]", "switchml train"]


@pytest.mark.parametrize("change", ["killed", "other interpreter", "moved"])
def test_venv_is_made_anew(checkout, change):
    checkout.run("test")
    checkout.take_log()
    version = "3.11"
    if change == "killed":
        checkout.stamp.write_text("unfinished\n")
    elif change == "other interpreter":
        version = "3.12"
    else:
        checkout.root = checkout.root.rename(checkout.root.with_name("elsewhere"))
    assert checkout.run("test", STAND_IN_VERSION=version)[0] == 0
    assert checkout.take_log() == ["venv", PIP_TEST, "python -m pytest"]


def test_pip_failure_is_shown_and_retried(checkout):
    status, stderr = checkout.run("test", STAND_IN_PIP_FAILS="yes")
    assert status == 1
    assert "ERROR: no such package" in stderr
    assert "python -m pytest" not in checkout.take_log()
    assert checkout.run("test")[0] == 0
    assert checkout.take_log() == [PIP_TEST, "python -m pytest"]


def test_torch_can_be_chosen(checkout):
    checkout.run("run", SWITCHML_TORCH="torch==2.9.1")
    assert checkout.take_log()[1] == "pip --no-compile -e [all] torch==2.9.1"


def test_two_at_once_install_once(checkout, require_program):
    require_program("flock")
    both = [checkout.start("test", STAND_IN_PIP_S="0.5") for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    for process in both:
        process.communicate()
    log = checkout.take_log()
    assert sorted(log) == sorted(["venv", PIP_TEST, "python -m pytest", "python -m pytest"])


@pytest.mark.parametrize("version", ["2.7", "3.9"])
def test_old_python_is_refused_in_one_line(checkout, version):
    status, stderr = checkout.run("test", STAND_IN_VERSION=version)
    assert status == 1
    assert stderr.count("\n") == 1
    assert f"is Python {version}, but 3.10 or newer is needed" in stderr


def test_no_python_is_refused_in_one_line(checkout):
    status, stderr = checkout.run("test", PYTHON="no-such-python")
    assert status == 1
    assert stderr.count("\n") == 1
    assert "no working 'no-such-python' found" in stderr
