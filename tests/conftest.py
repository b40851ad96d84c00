"""What every test may use: the `root` marker's skip, `require_program`, and hypothesis without a clock."""

import os
import shutil
import signal
import sys
from collections.abc import Callable

import hypothesis
import pytest

# The first example of a property may compile a kernel, and CI machines are slow: no deadline for a single example.
hypothesis.settings.register_profile("switchml", deadline=None)
hypothesis.settings.load_profile("switchml")

# Who runs the tests in the background may have Ctrl-C ignored, and every process that a test starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.geteuid() == 0:
        return
    for item in items:
        if item.get_closest_marker("root"):
            item.add_marker(pytest.mark.skip(reason="needs root"))


@pytest.fixture(scope="session")
def require_program() -> Callable[[str], str]:
    """`require_program("tshark")` returns the program's path, or skips the test, naming the program that is missing."""

    def require(name: str) -> str:
        # Python packages bring programs into the venv; Debian keeps `ip` and friends where only root's PATH looks.
        path = shutil.which(name) or shutil.which(name, path=f"{os.path.dirname(sys.executable)}:/usr/sbin:/sbin")
        if path is None:
            pytest.skip(f"needs the program {name}")
        return path

    return require
