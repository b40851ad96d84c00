"""What a real job did, as its profilers saw it.

Files go in: `readers/` has one module a format, each of which returns a `RankTrace` (events.py) for a rank. `join.py`
makes one graph of all ranks of them (`Joined`, joined.py; where to begin reading), whose replay is the traced job.
`whatif/` has one change to that graph a file, `diagnosis/` says why the job is slow, `optimizer/` searches for better
settings, `writers/` write a trace in other tools' formats.
"""

from switchml import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
