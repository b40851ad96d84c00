"""Plays a job's graph on what it costs, and tells where the time went.

`engine.replay` is the entrance. It takes `sweep.py` where nothing competes and `calendar.py` where something does;
both are compiled, and `reference.py` writes the rules of both once more in simpy, slowly. `parts.py` and
`critical.py` read what came out, `report.py` and `perfetto.py` show it; `failures.py` goes on from one iteration to a
whole run.
"""

from switchml import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
