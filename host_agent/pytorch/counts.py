"""Counts of a process group's collectives that used the aggregator, and of those that used Gloo, for `switchml status`:
the group reports them to the aggregator at most once a second, together with the counters of the process's planned
loader."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from host_agent.base import Agent

GLOO = "/gloo"
"""Suffix of a collective's name if Gloo performed it."""
PERIOD_S = 1.0


class Counts:
    """Counts of one group. `add` may be called from any thread."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._agent: Agent | None = None
        self._timer: threading.Timer | None = None

    def report_to(self, agent: Agent) -> None:
        """Report to an agent's aggregator from now on."""
        self._agent = agent

    def add(self, kind: str, way: str = "") -> None:
        """Count one collective; `way`: GLOO, or empty for the aggregator."""
        with self._lock:
            self._counts[kind + way] += 1
            if self._agent is None or self._timer is not None:
                return
            self._timer = threading.Timer(PERIOD_S, self._report)
            self._timer.daemon = True
            self._timer.start()

    def close(self) -> None:
        """Send the final report."""
        with self._lock:
            agent, self._agent = self._agent, None
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
            timer.join()
        if agent is not None and self._counts and not agent.is_forked:
            agent.report_counts(dict(self._counts), _loading())

    def _report(self) -> None:
        with self._lock:
            self._timer, agent, counts = None, self._agent, dict(self._counts)
        if agent is not None:
            agent.report_counts(counts, _loading())


def _loading() -> dict[str, float]:
    """Counters of the process's planned loader, empty without one."""
    module = sys.modules.get("host_agent.loading.loader")
    return module.latest_counters() if module is not None else {}
