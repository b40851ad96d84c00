"""Replays a job's graph with its costs, and attributes time to its causes.

`engine.replay` is the entry point. It uses `sweep.py` without contention and `calendar.py` with contention; both are
compiled, and `reference.py` implements the rules of both again in simpy, slowly. `parts.py` and `critical.py` analyze
the result, `report.py` and `perfetto.py` present it; `failures.py` extends one iteration to a whole run.
"""

from switchml import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
