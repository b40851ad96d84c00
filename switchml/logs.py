"""Rate limits on the logs of servers, so that remote clients can't fill them: one line per minute about a client, one
traceback per minute from each place in the code, and `MOST` of all other lines. The next line of a kind reports how
many were omitted. With the level debug, logs are complete, since this level is set explicitly.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

WINDOW_S = 60.0
MOST = 1000
"""Maximum lines from one place in the code in WINDOW_S, including tracebacks and lines about clients."""


def of(name: str) -> logging.Logger:
    """The logger called `name`. `log.warning(…, extra=about(client))` names the client that a line is about."""
    log = logging.getLogger(name)
    if not any(isinstance(each, Limit) for each in log.filters):
        log.addFilter(Limit())
    return log


def about(client: str) -> dict[str, Any]:
    """Extra fields of a line about `client`."""
    return {"client": client}


class Limit(logging.Filter):
    """Logging filter with the limits of this module. Its memory is limited, too: to `MOST` clients for each place."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock, self._began_s = clock, clock()
        self._lock = threading.Lock()
        self._lines: Counter[tuple[Any, ...]] = Counter()
        self._left_out: Counter[tuple[Any, ...]] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.INFO or logging.getLogger(record.name).isEnabledFor(logging.DEBUG):
            return True
        place = record.pathname, record.lineno
        client = getattr(record, "client", None)
        kind = place if client is None else (*place, client)
        with self._lock:
            if self._clock() - self._began_s > WINDOW_S:
                self._began_s = self._clock()
                self._left_out = Counter({each: n for each, n in self._left_out.items() if n and each in self._lines})
                self._lines.clear()
            is_once = client is not None or record.exc_info
            if self._lines[place] >= MOST:
                self._left_out[place] += 1
                return False
            if is_once and self._lines[kind]:
                self._left_out[kind] += 1
                return False
            self._lines[place] += 1
            if client is not None:
                self._lines[kind] += 1
            left_out = self._left_out.pop(kind, 0)
        if left_out:
            record.msg, record.args = f"{record.getMessage()} ({left_out:,} more like it were left out)", ()
        return True
