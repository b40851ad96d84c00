"""What every attack shares: `attempts`, which counts what was tried, and the table of all counts at the end of a run.

    pytest tests/attacks                           # a few seconds each, as in CI
    SWITCHML_ATTACKS=20 pytest tests/attacks       # twenty times as many attempts, and as much time for them
    SWITCHML_ATTACKS_SEED=7 pytest tests/attacks   # other random calls and signals

docs/security.md shows the table of a long run.
"""

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

_TRIED = "tried"
_SCALE = int(os.environ.get("SWITCHML_ATTACKS", "1"))
FIRST_SEED = int(os.environ.get("SWITCHML_ATTACKS_SEED", "0"))
"""Where the seeds of random attempts begin: another one makes other attempts."""


@dataclass(frozen=True)
class Attempts:
    """Counts one test's attempts: `attempts.record("results from a stranger's socket", 5000)`."""

    node: pytest.Item

    def scaled(self, count: int) -> int:
        """`count` attempts in an ordinary run, SWITCHML_ATTACKS times as many where that is set."""
        return count * _SCALE

    def record(self, attack: str, count: int) -> None:
        """`count` attempts of `attack`, a line of the table, were made. The test asserts what they achieved."""
        self.node.user_properties.append((_TRIED, (attack, count)))


@pytest.fixture
def attempts(request: pytest.FixtureRequest) -> Attempts:
    return Attempts(request.node)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        limit = item.get_closest_marker("timeout")
        if _SCALE > 1 and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(_SCALE * (limit.args[0] if limit else 1200)), append=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    tried: Counter[tuple[str, str]] = Counter()
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            for name, value in report.user_properties if report.when == "call" else ():
                if name == _TRIED:
                    tried[value[0], "held" if outcome == "passed" else "did not hold"] += value[1]
    if tried:
        terminalreporter.section("attacks")
        for (attack, outcome), count in sorted(tried.items()):
            terminalreporter.write_line(f"{attack:60} {count:>10,}  {outcome}")
