"""Available to every test: the markers `root` and `needs`, `require_program`, and hypothesis without a clock. And the
order of files: those that take long come first."""

import os
import shutil
import signal
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

HERE = Path(__file__).parent

# Agents whose aggregator is lost end at once, unless a test has them wait for it.
os.environ.setdefault("SWITCHML_FAILOVER_TIMEOUT", "0")

# The first example of a property may compile a kernel, and CI machines are slow: no deadline for a single example.
hypothesis.settings.register_profile("switchml", deadline=None)
hypothesis.settings.load_profile("switchml")

# When tests run in the background, SIGINT may be ignored, and every process that a test starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

LONGEST_FILES = (
    "host_agent/test_agent.py",  # compiles kernels that many others load then, for two minutes
    "test_setup.py",
    "emulator/validation/test_validation.py",
    # These need none of those kernels.
    "emulator/peers/test_scripts.py",
    "emulator/reproduce/test_reproduce.py",
    "emulator/validation/test_page.py",
    "emulator/validation/test_real.py",
    # What others compile and load: not at the same time.
    "switchml/protocol/test_narrow.py",
    "emulator/bench/test_mininet.py",
    "host_agent/training/test_train.py",
    "emulator/bench/test_allreduce.py",
    "host_agent/profile/test_capture.py",
    "switchml/protocol/test_rules_together.py",
    "p4/test_served.py",
    "emulator/validation/test_replay.py",
    "emulator/bench/test_network.py",
    "emulator/faults/test_campaign.py",
    "host_agent/profile/test_profile.py",
    "emulator/netsim/test_timers.py",
    "emulator/bench/test_codec_experiment.py",
    "host_agent/test_transports.py",
    "host_agent/pytorch/test_ddp_script.py",
    "attacks/test_tunnel.py",
    "host_agent/pytorch/test_settings.py",
    "host_agent/pytorch/test_all_to_all.py",
    "emulator/bench/test_codecs.py",
    "emulator/bench/test_sparse.py",
    "faults/test_strangers.py",
    "p4/test_tree.py",
    "p4/test_switch.py",
    "peers/test_torch_suite.py",
    "host_agent/test_sharded.py",
    "emulator/diagnosis/test_commands.py",
    "emulator/validation/test_peers.py",
    "emulator/faults/test_world.py",
    "attacks/test_control_plane.py",
    "host_agent/hierarchy/test_agent.py",
)
"""Two thirds of the time that all tests take. CI gives each worker a file at a time, in this order, and thus has short
ones for the end, when a worker without one waits for the others."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _skip(items)
    order = {HERE / file: position for position, file in enumerate(LONGEST_FILES)}
    assert all(path.exists() for path in order), f"{__file__} names a file that is gone"
    items.sort(key=lambda item: order.get(item.path, len(order)))


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


@pytest.fixture(scope="session")
def browser():
    """Chromium without a window (tests/support/browser.py), for tests marked `needs("chromium", "chromedriver")`."""
    pytest.importorskip("selenium")
    from tests.support.browser import started

    with started() as running:
        yield running
