"""The project as a whole: its metadata, which module may import which (CONTRIBUTING.md), and scripts/run, test."""

import ast
import os
import shutil
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
    assert set(about.get_all("Provides-Extra")) >= {"torch", "train", "dev"}


def test_core_needs_no_optional_package():
    core = [line for line in metadata.requires("switchml") if "extra ==" not in line]
    assert core
    assert not [line for line in core if line.startswith(("torch", "scikit-learn", "pytest"))]


def test_entry_points():
    ours = {(entry.group, entry.name, entry.value) for entry in metadata.distribution("switchml").entry_points}
    assert ("console_scripts", "switchml", "switchml.__main__:main") in ours
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
        and path.suffix not in (".py", ".md")
        and not any(fnmatch(path.name, pattern) for pattern in patterns)
    ]
    assert left_out == []


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_without_torch(package):
    program = f"import sys, {package}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


# Imports

FLOOR = "switchml.errors switchml.counters"
KERNELS = "switchml.runtime.jit switchml.protocol.packet switchml.runtime.memory"
WIRE = (
    f"{KERNELS} switchml.protocol.fixedpoint switchml.protocol.pool switchml.protocol.worker switchml.protocol.sparse"
)
DATAPLANE = "switchml.control.dataplane"  # what the controller asks of whatever sums: nothing but data
SWITCH = "switchml.runtime.jit switchml.runtime.memory switchml.net switchml.control.thrift switchml.control.p4runtime_protos"
PLAYED = "switchml.runtime.jit switchml.runtime.memory emulator.workload emulator.cluster"
TRACED = "emulator.workload emulator.replay emulator.report emulator.traces"
SLOTS = "switchml.control.allocation"
ANY = "*"
ANY_BUT_TORCH = "* but torch"

ROOMS: list[tuple[str, str, str]] = [
    # who                        our own modules it may import                       packages of others it may import
    ("switchml",                 "",                                                 ""),
    ("switchml.__main__",        "",                                                 "click"),
    ("switchml.errors",          "",                                                 ""),
    ("switchml.counters",        "",                                                 ""),
    ("switchml.runtime.jit",             "",                                                 "numba filelock"),
    ("switchml.runtime.memory",          "switchml.runtime.jit",                                     "numpy numba llvmlite"),
    ("switchml.protocol.bfloat16",        KERNELS,                                            "numpy numba"),
    ("switchml.protocol.narrow",          KERNELS,                                            "numpy numba"),
    ("switchml.protocol.packet",          "",                                                 "numpy"),
    ("switchml.protocol.fixedpoint",      f"{KERNELS} switchml.protocol.narrow",                       "numpy numba"),
    ("switchml.protocol.pool",            KERNELS,                                            "numpy numba"),
    ("switchml.protocol.retransmission",  KERNELS,                                            "numpy numba"),
    ("switchml.protocol.worker", f"{KERNELS} switchml.protocol.fixedpoint switchml.protocol.retransmission switchml.protocol.sparse", "numpy numba"),
    ("switchml.protocol.sparse",          f"{KERNELS} switchml.protocol.fixedpoint",                   "numpy numba"),
    ("switchml.codecs.*",        "switchml.codecs switchml.protocol.bfloat16 switchml.runtime.memory switchml.runtime.jit", "numpy numba"),
    ("switchml.net.tunnel.*",     "switchml.net switchml.runtime.memory switchml.runtime.jit",         "numpy zmq"),
    ("switchml.net.*",            "switchml.net switchml.runtime.memory switchml.runtime.jit",         "numpy numba llvmlite"),
    ("switchml.control.thrift.*",        "switchml.control.thrift",                                  ""),
    ("switchml.control.dataplane", "",                                            ""),
    ("switchml.aggregator.loop", f"{WIRE} switchml.net",                              "numpy numba"),
    ("switchml.aggregator.software", f"{WIRE} switchml.codecs switchml.net switchml.aggregator.loop {DATAPLANE}", ANY_BUT_TORCH),
    ("switchml.*",               "switchml",                                         ANY_BUT_TORCH),
    ("host_agent.training.*",    "switchml host_agent",                              ANY),
    ("host_agent.profile.*",     "switchml host_agent",                              ANY),
    ("emulator.bench.*",       "switchml host_agent emulator",                     ANY),
    ("host_agent.torch_*",       "switchml host_agent",                              ANY),
    ("host_agent.pytorch.comm_hooks",    "switchml host_agent",                              ANY),
    ("host_agent.pytorch.settings*",     "switchml host_agent",                              ANY),
    ("host_agent.pytorch.all_to_all",    "switchml host_agent",                              ANY),
    ("host_agent.*",             "switchml host_agent",                              ANY_BUT_TORCH),
    ("emulator.p4switch.*",          f"{SWITCH} emulator.p4switch",                          ANY_BUT_TORCH),
    ("emulator.netsim.*",       "switchml emulator.netsim",                        ANY_BUT_TORCH),
    ("emulator.faults.*",        "switchml host_agent emulator.netsim emulator.faults", ANY_BUT_TORCH),
    ("emulator.datafile",        "",                                                 "tomli"),
    ("emulator.workload.*",      "switchml.runtime.jit emulator.workload emulator.datafile", ANY_BUT_TORCH),
    ("emulator.cluster.*",       "emulator.cluster emulator.datafile",               ANY_BUT_TORCH),
    ("emulator.replay.*",        f"{PLAYED} emulator.replay",                        ANY_BUT_TORCH),
    ("emulator.report.*",        "emulator.workload emulator.replay emulator.report", ANY_BUT_TORCH),
    ("emulator.traces.*",         f"{PLAYED} emulator.replay emulator.traces {SLOTS}", ANY_BUT_TORCH),
    ("emulator.diagnosis.*",     f"{TRACED} emulator.diagnosis",                     ANY_BUT_TORCH),
    ("emulator.optimizer.*",     "switchml emulator",                                ANY_BUT_TORCH),
    ("emulator.peers.*",         "switchml host_agent emulator",                     ANY),
    ("emulator.*",               "switchml emulator",                                ANY_BUT_TORCH),
]  # fmt: skip
"""The first row that matches a module decides; `a.*` matches `a` and all below it. Naming a package allows
all below it. Everyone may import the standard library, `switchml` itself and FLOOR."""

DEFERRED: list[tuple[str, str]] = [
    ("switchml.cli.*", "host_agent emulator torch"),
    ("emulator.workload.*", "torch"),
]
"""Who may import what besides, inside functions only: there it costs those who call them, and nobody else."""


def is_within(module: str, names: str) -> bool:
    return any(module == name or module.startswith(name + ".") for name in names.split())


def matches(module: str, pattern: str) -> bool:
    return is_within(module, pattern[:-2]) if pattern.endswith(".*") else fnmatch(module, pattern)


def imports_of(tree: ast.AST, module: str, is_package: bool):
    """Yield (line, imported module, is it inside a function or for type checkers alone) for each import in `tree`, the
    source of `module`."""

    def is_for_types(node: ast.AST) -> bool:
        return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"

    def walk(node: ast.AST, inside: bool):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, inside
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")
                parents = parents[: len(parents) - node.level + is_package]
                base = ".".join([*parents, base] if base else parents)
            for alias in node.names:
                full = ROOT.joinpath(*base.split("."), alias.name)
                is_module = base.split(".")[0] in PACKAGES and (full.is_dir() or full.with_suffix(".py").is_file())
                yield node.lineno, f"{base}.{alias.name}" if is_module else base, inside
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or is_for_types(node)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, inside)

    yield from walk(tree, False)


def forbidden_imports(source: str, module: str, is_package: bool = False) -> list[str]:
    """One "line N imports X" for each import in `source` that the tables above do not allow to `module`."""
    own, others = next((own, others) for pattern, own, others in ROOMS if matches(module, pattern))
    deferred = " ".join(names for pattern, names in DEFERRED if matches(module, pattern))
    wrong = {}  # a dictionary for its order: a line that imports several names from one module is named once
    for line, imported, inside in imports_of(ast.parse(source), module, is_package):
        top = imported.partition(".")[0]
        if top in PACKAGES:
            allowed = imported == "switchml" or is_within(imported, f"{FLOOR} {module} {own}")
        elif top in sys.stdlib_module_names:
            allowed = True
        elif others in (ANY, ANY_BUT_TORCH):
            allowed = others == ANY or top != "torch"
        else:
            allowed = top in others.split()
        if not allowed and not (inside and is_within(imported, deferred)):
            wrong[f"line {line} imports {imported}"] = True
    return list(wrong)


def test_every_module_imports_only_what_its_room_may():
    wrong = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            module = ".".join(parts[:-1] if is_package else parts)
            if found := forbidden_imports(path.read_text(), module, is_package):
                wrong[str(path.relative_to(ROOT))] = found
    assert wrong == {}, "the rooms and what they may import are in CONTRIBUTING.md"


@pytest.mark.parametrize(
    ("module", "source", "is_allowed"),
    [
        ("switchml.protocol.packet", "import struct, numpy as np", True),
        ("switchml.protocol.packet", "from numba import njit", False),
        ("switchml.protocol.pool", "from switchml import packet", True),
        ("switchml.protocol.pool", "from . import errors", True),
        ("switchml.protocol.pool", "from .worker import window", False),
        ("switchml.errors", "from . import packet", False),
        ("switchml.protocol.pool", "from .errors import PacketError", True),
        ("switchml.codecs.top_k", "from ..errors import ConfigError", True),
        ("switchml.codecs.top_k", "from ..packet import MAGIC", False),
        ("switchml.somewhere", "import host_agent", False),
        ("switchml.somewhere", "def f():\n    import torch", False),
        ("emulator.cli.train", "def f():\n    import torch.nn, host_agent.agent", True),
        ("emulator.cli.train", "import torch", False),
        ("emulator.cli.train", "import emulator", False),
        ("emulator.cli.train", "if TYPE_CHECKING:\n    import emulator", True),
        ("host_agent.pytorch.backend", "import torch.distributed", True),
        ("host_agent.agent", "import torch", False),
        ("host_agent.agent", "import emulator.netsim", False),
        ("emulator.netsim.link", "import simpy\nfrom switchml import worker", True),
        ("emulator.netsim.link", "from emulator.replay import engine", False),
        ("emulator.p4switch.engine", "from switchml import pool", False),
    ],
)
def test_the_import_rules_themselves(module, source, is_allowed):
    assert (forbidden_imports(source, module) == []) == is_allowed


# scripts/run and scripts/test, with a stand-in for Python that installs nothing

STAND_IN = """#!/bin/bash
# Plays python: says its version, makes a venv that holds itself, and notes what pip and the programs are asked.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
case "$*" in
    *version_info*) echo "$STAND_IN_VERSION" ;;
    "-m venv "*)
        mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && cp "$0" "$3/bin/switchml"
        echo venv >>"$STAND_IN_NOTES" ;;
    "-m pip "*--dry-run*) ;;
    "-m pip "*" install "*)
        asked=$*
        echo "pip ${asked##* install }" >>"$STAND_IN_NOTES"
        sleep "${STAND_IN_PIP_S:-0}"
        if [ -n "${STAND_IN_PIP_FAILS:-}" ]; then echo "ERROR: no such package" >&2; exit 1; fi
        echo "WARNING: Location 'somewhere' is ignored" >&2 ;;
    *find_spec*) [ -n "${STAND_IN_HAS_TORCH:-}" ] ;;
    "-c import "*) ;;
    *) echo "${0##*/} $*" >>"$STAND_IN_NOTES" ;;
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
        self.notes = folder / "notes"
        self.stamp = self.root / ".venv" / "setup-stamp"

    def start(self, script: str, *args: str, **environment: str) -> subprocess.Popen:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SWITCHML_")}
        stand_in = {"PYTHON": str(self.python), "STAND_IN_NOTES": str(self.notes), "STAND_IN_VERSION": "3.11"}
        return subprocess.Popen(
            [self.root / "scripts" / script, *args],
            env=kept | stand_in | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, script: str, *args: str, **environment: str) -> tuple[int, str]:
        """Run to the end; returns the exit status and stderr."""
        process = self.start(script, *args, **environment)
        return process.wait(), process.communicate()[1]

    def take_notes(self) -> list[str]:
        """What the stand-in was asked since the last call, one short word or line each."""
        text = self.notes.read_text() if self.notes.exists() else ""
        self.notes.unlink(missing_ok=True)
        return text.replace(f"{self.root}", "").splitlines()


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


PIP_TEST = "pip --no-compile -e [dev,train] torch==2.13.0"
PIP_RUN = "pip --no-compile -e [train] torch==2.13.0"
if sys.platform == "linux":
    PIP_TEST += "+cpu"
    PIP_RUN += "+cpu"


def test_first_call_installs_and_second_does_not(checkout):
    status, stderr = checkout.run("test", "-k", "something")
    assert status == 0
    assert checkout.take_notes() == ["venv", PIP_TEST, "python -m pytest -k something"]
    assert all(line.startswith("setup: ") for line in stderr.splitlines()), "pip's remarks stay in the log"
    assert checkout.run("test", "-x") == (0, "")
    assert checkout.take_notes() == ["python -m pytest -x"]


def test_run_needs_fewer_extras_than_test(checkout):
    checkout.run("run", "--workers", "2")
    assert checkout.take_notes() == ["venv", PIP_RUN, "switchml train --workers 2"]
    checkout.run("test", STAND_IN_HAS_TORCH="yes")
    assert checkout.take_notes() == ["pip --no-compile -e [dev,train]", "python -m pytest"]
    checkout.run("run")
    assert checkout.take_notes() == ["switchml train"]


def test_changed_project_is_installed_again_in_place(checkout):
    checkout.run("test")
    checkout.take_notes()
    with (checkout.root / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    checkout.run("run", STAND_IN_HAS_TORCH="yes")
    assert checkout.take_notes() == ["pip --no-compile -e [dev,train]", "switchml train"]


@pytest.mark.parametrize("change", ["killed", "other interpreter", "moved"])
def test_venv_is_made_anew(checkout, change):
    checkout.run("test")
    checkout.take_notes()
    version = "3.11"
    if change == "killed":
        checkout.stamp.write_text("unfinished\n")
    elif change == "other interpreter":
        version = "3.12"
    else:
        checkout.root = checkout.root.rename(checkout.root.with_name("elsewhere"))
    assert checkout.run("test", STAND_IN_VERSION=version)[0] == 0
    assert checkout.take_notes() == ["venv", PIP_TEST, "python -m pytest"]


def test_pip_failure_is_shown_and_retried(checkout):
    status, stderr = checkout.run("test", STAND_IN_PIP_FAILS="yes")
    assert status == 1
    assert "ERROR: no such package" in stderr
    assert "python -m pytest" not in checkout.take_notes()
    assert checkout.run("test")[0] == 0
    assert checkout.take_notes() == [PIP_TEST, "python -m pytest"]


def test_torch_can_be_chosen(checkout):
    checkout.run("run", SWITCHML_TORCH="torch==2.9.1")
    assert checkout.take_notes()[1] == "pip --no-compile -e [train] torch==2.9.1"


def test_two_at_once_install_once(checkout, require_program):
    require_program("flock")
    both = [checkout.start("test", STAND_IN_PIP_S="0.5") for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    for process in both:
        process.communicate()
    notes = checkout.take_notes()
    assert sorted(notes) == sorted(["venv", PIP_TEST, "python -m pytest", "python -m pytest"])


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
