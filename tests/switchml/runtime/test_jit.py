"""Where compiled kernels are kept: what a module's directory is named by, and who shares it; and that processes wait
for what another compiles."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def run(code: str, checkout: Path, cache: Path, **environment: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout), "SWITCHML_CACHE_DIR": str(cache), **environment},
    ).stdout  # fmt: skip


def directories(checkout: Path, cache: Path, *modules: str, **environment: str) -> list[str]:
    code = f"from switchml.runtime.jit import _directory; print(*map(_directory, {modules!r}))"
    return run(code, checkout, cache, **environment).split()


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A copy of switchml elsewhere, its files with other times."""
    shutil.copytree(
        ROOT / "switchml",
        tmp_path / "checkout" / "switchml",
        ignore=shutil.ignore_patterns("__pycache__"),
        copy_function=shutil.copyfile,
    )
    return tmp_path / "checkout"


@pytest.mark.slow
def test_every_process_and_checkout_has_the_same_directories(checkout, tmp_path):
    """Whatever the seed of Python's hashes: else a second start would compile again."""
    modules = ("switchml.protocol.worker", "switchml.protocol.pool", "switchml.net.udp")
    here = directories(ROOT, tmp_path, *modules, PYTHONHASHSEED="1")
    assert len(set(here)) == 3
    assert here == directories(checkout, tmp_path, *modules, PYTHONHASHSEED="2")


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("file", "changed"),
    [
        (
            "protocol/packet.py",
            {"protocol.pool", "protocol.worker", "aggregator.loop"},
        ),  # its constants are in compiled code
        ("protocol/fixedpoint.py", {"protocol.worker"}),
        ("net/libc.py", {"net.udp", "aggregator.loop"}),  # by net/udp.py
        ("net/__init__.py", set()),
        ("control/jobs.py", set()),
        ("errors.py", set()),
    ],
)
def test_a_change_concerns_those_who_import_the_module(checkout, tmp_path, file, changed):
    names = ("protocol.pool", "protocol.worker", "net.udp", "aggregator.loop")
    modules = [f"switchml.{name}" for name in names]
    before = directories(checkout, tmp_path, *modules)
    with (checkout / "switchml" / file).open("a") as source:
        source.write("CHANGED = 1\n")
    after = directories(checkout, tmp_path, *modules)
    assert {name for name, old, new in zip(names, before, after, strict=True) if old != new} == changed


def test_a_comment_concerns_nobody(checkout, tmp_path):
    """Nor a docstring, nor the lines on which things stand; the function's cache has its name from its code, too."""
    code = (
        "from switchml.runtime import dependencies, jit; from switchml.protocol.sparse import is_clear\n"
        "print(jit._directory('switchml.protocol.pool'), dependencies.of_function(is_clear.py_func))"
    )
    before = run(code, checkout, tmp_path)
    for name in ("packet", "sparse"):
        file = checkout / "switchml" / "protocol" / f"{name}.py"
        text = file.read_text()
        assert text.startswith('"""') and text.count('    """') > 2
        file.write_text('"""Other words.\n\n' + text[3:].replace('    """', '    # A comment.\n    """Also: ', 1))
    assert run(code, checkout, tmp_path) == before


COMPILE = (
    "from switchml.runtime.jit import compile_once; from switchml.protocol.sparse import is_clear\n"
    "compile_once(is_clear, 0, 4)\n"
    "print(sum(is_clear.stats.cache_hits.values()), sum(is_clear.stats.cache_misses.values()))"
)


@pytest.mark.slow
def test_another_checkout_loads_what_was_compiled(checkout, tmp_path):
    assert run(COMPILE, ROOT, tmp_path).split() == ["0", "1"]
    assert run(COMPILE, checkout, tmp_path).split() == ["1", "0"]


@pytest.mark.slow
def test_where_nothing_can_be_kept_each_process_compiles(tmp_path):
    (tmp_path / "file").touch()
    for _ in range(2):
        assert run(COMPILE, ROOT, tmp_path / "file" / "no folder").split() == ["0", "1"]


IN_ORDER = """
import sys

from numba.core import event
from switchml.protocol.sparse import is_clear, is_zero
from switchml.runtime.jit import compile_once

ARGUMENTS = {"is_clear": (is_clear, 0, 4), "is_zero": (is_zero, 0, 0, 0, 0.0)}
first, *others = (ARGUMENTS[name] for name in sys.argv[1:])


class Compiling(event.Listener):
    def on_start(self, event):
        if event.data["dispatcher"] is first[0]:
            print("compiling", flush=True)
            sys.stdin.readline()
            for other in others:
                compile_once(*other)

    def on_end(self, event):
        pass


event.register("numba:compile", Compiling())
print("begins", flush=True)
compile_once(*first)
print(*(sum(kernel.stats.cache_misses.values()) for kernel in (is_clear, is_zero)))
"""
"""Compiles the kernels it is given the names of, each while it has the one before locked; on the way says so, and waits
to be told to go on. Prints how often it compiled each."""


@pytest.fixture
def start(tmp_path):
    """Starts a process of IN_ORDER, returned once it is about to compile."""
    started = []

    def start(*kernels: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", IN_ORDER, *kernels],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "SWITCHML_CACHE_DIR": str(tmp_path)},
        )
        started.append(process)
        assert process.stdout.readline() == "begins\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def one_compiles_another_waits(start):
    one = start("is_clear")
    assert one.stdout.readline() == "compiling\n"
    another = start("is_clear")
    another.stdin.write("\n")
    another.stdin.flush()
    while not re.search(rf"-> POSIX .* {another.pid} ", Path("/proc/locks").read_text()):
        assert another.poll() is None, "it did not wait"
        time.sleep(0.01)
    return one, another


def test_of_two_processes_one_compiles(one_compiles_another_waits):
    one, another = one_compiles_another_waits
    assert one.communicate("\n")[0] == "1 0\n"
    assert another.communicate()[0] == "0 0\n"


@pytest.mark.slow
def test_who_is_killed_while_compiling_leaves_it_to_the_other(one_compiles_another_waits):
    one, another = one_compiles_another_waits
    one.kill()
    assert another.communicate()[0] == "compiling\n1 0\n"


@pytest.mark.slow
def test_processes_that_compile_in_opposite_orders_do_not_wait_for_each_other(start):
    one, another = start("is_clear", "is_zero"), start("is_zero", "is_clear")
    assert one.stdout.readline() == another.stdout.readline() == "compiling\n"
    for process in one, another:
        process.stdin.write("\n")
        process.stdin.flush()
    compiled = [process.communicate()[0].split() for process in (one, another)]
    assert sorted(compiled) in ([["0", "1"], ["1", "1"]], [["1", "0"], ["1", "1"]])
