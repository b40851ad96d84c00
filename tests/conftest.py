"""Available to every test: the two tiers, the markers `root`, `needs` and `slow`, `require_program`, and hypothesis
without a clock."""

import gc
import importlib.util
import os
import shutil
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import examples

HERE = Path(__file__).parent

# Agents whose aggregator is lost end at once, unless a test has them wait for it.
os.environ.setdefault("SWITCHML_FAILOVER_TIMEOUT", "0")

# Tests run side by side, and OpenMP's threads spin where they wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# When tests run in the background, SIGINT may be ignored, and every process that a test starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SECOND_TIER = (
    "attacks",
    "emulator/lab/bench",
    "emulator/networks/faults/test_campaign.py",
    "emulator/lab/reproduce",
    "emulator/networks/testbed/test_mininet.py",
    "emulator/networks/testbed/test_namespaces.py",
    "emulator/networks/testbed/test_world.py",
    "emulator/lab/validation",
    "faults",
    "host_agent/hierarchy/test_failures.py",
    "host_agent/loading/test_s3.py",
    "host_agent/pipeline/test_pipeline.py",
    "host_agent/profile/test_capture.py",
    "host_agent/pytorch/test_all_to_all.py",
    "host_agent/pytorch/test_hybrid.py",
    "host_agent/pytorch/test_comm_hooks.py",
    "host_agent/pytorch/test_hugging_face.py",
    "host_agent/pytorch/test_sparse.py",
    "host_agent/pytorch/test_straggler_hook.py",
    "host_agent/test_best_effort.py",
    "host_agent/test_torchft.py",
    "host_agent/training/test_train.py",
    "p4/test_attached.py",
    "p4/test_attached_tree.py",
    "peers",
    "switchml/control/test_losses.py",
    "switchml/net/test_shm_processes.py",
    "switchml/runtime/test_raising.py",
    "test_doc_blocks.py",
    "test_wheel.py",
)
"""What only `--all` runs: whole trainings, benchmarks, experiments, captures, attacks, other people's programs. Single
tests elsewhere are marked `slow`."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="the second tier as well: whole commands, minutes each")


def pytest_configure(config: pytest.Config) -> None:
    examples.load(config.option.all)
    if config.option.all:
        return
    for argument in config.args:
        path = Path(argument.partition("::")[0]).resolve()
        if any(path.is_relative_to(HERE / each) for each in SECOND_TIER):
            raise pytest.UsageError(f"{argument} is in the second tier: add --all")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if not config.option.all and any(collection_path == HERE / each for each in SECOND_TIER):
        return True
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.option.all:
        first = _of_the_first_tier(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in first])
        items[:] = [item for item in items if item in first]
    _skip(items)


def pytest_collection_finish() -> None:
    """What imports and collection made stays to the end: a collection of garbage needn't look at it (0.6 s each)."""
    gc.collect()
    gc.freeze()


def _of_the_first_tier(items: list[pytest.Item]) -> set[pytest.Item]:
    """All but the slow ones, and of these the first cases that their markers keep."""
    chosen, kept = set(), Counter()
    for item in items:
        name = item.nodeid.partition("[")[0]
        if all(kept[name] < slow.kwargs.get("keep", 0) for slow in item.iter_markers("slow")):
            chosen.add(item)
            kept[name] += 1
    return chosen


def _skip(items: list[pytest.Item]) -> None:
    """Skip what can't run here; all tests of a file that lack the same thing are one skip, as hundreds of them would
    hide an unexpected one."""
    selected, skipped = [], defaultdict(list)
    for item in items:
        if missing := _missing(item):
            alike = skipped[item.path, missing]
            if not alike:
                selected.append(item)
            alike.append(item)
        else:
            selected.append(item)
    for (_, missing), alike in skipped.items():
        several = f" ({len(alike)} tests)" if len(alike) > 1 else ""
        alike[0].add_marker(pytest.mark.skip(reason=f"needs {missing}{several}"))
    items[:] = selected


@pytest.fixture
def as_on_a_terminal(monkeypatch) -> None:
    """Commands that a test starts show progress, though their stderr is a pipe."""
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "xterm")


def _missing(item: pytest.Item) -> str:
    """What a test's markers require and this machine lacks; "" if nothing."""
    if item.get_closest_marker("root") and os.geteuid() != 0:
        return "root"
    for marker in item.iter_markers("needs"):
        for name in marker.args:
            if name.isupper() and name not in os.environ:
                return f"the environment variable {name}"
            if not name.isupper() and _find(name) is None:
                return f"the program {name}"
    return ""


def _find(program: str) -> str | None:
    # Python packages bring programs into the venv; Debian keeps `ip` and friends where only root's PATH looks.
    return shutil.which(program) or shutil.which(program, path=f"{os.path.dirname(sys.executable)}:/usr/sbin:/sbin")


@pytest.fixture(scope="session")
def require_program() -> Callable[[str], str]:
    """`require_program("tshark")` returns the program's path, or skips the test, naming the program that is missing."""

    def require(name: str) -> str:
        path = _find(name)
        if path is None:
            pytest.skip(f"needs the program {name}")
        return path

    return require


@pytest.fixture
def iproute2(require_program):
    require_program("ip")
    require_program("tc")


@pytest.fixture
def mininet(require_program):
    require_program("mnexec")
    if importlib.util.find_spec("mininet") is None and not Path("/usr/lib/python3/dist-packages/mininet").is_dir():
        pytest.skip("needs Mininet (Debian: mininet)")


@pytest.fixture(scope="session")
def browser():
    """Chromium without a window (tests/support/browser.py), for tests marked `needs("chromium", "chromedriver")`."""
    pytest.importorskip("selenium")
    from tests.support.browser import started

    with started() as running:
        yield running
