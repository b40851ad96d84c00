"""Traces of real jobs, recorded by profilers.

`readers/` has one module for each file format, which returns a `RankTrace` (events.py) per rank. `join.py` combines all
ranks into one graph (`Joined`, joined.py; start reading there), whose replay reproduces the traced job. `whatif/` has
one module for each kind of change to that graph, `diagnosis/` finds why the job is slow, `optimizer/` searches for
better settings, `writers/` write traces in other tools' formats.
"""

from switchml import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
