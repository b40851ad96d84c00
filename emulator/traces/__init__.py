"""What a real job did, as its profilers saw it: read from files, joined into one graph of all ranks, replayed.

`events.py` is what every reader delivers for one rank; `joined.py` what `join.py` makes of all of them, and what
replay, diagnosis and optimization start from.
"""

from switchml import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
