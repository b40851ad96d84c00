"""Hardware and its cost models: accelerators, nodes, fabrics and storage; durations of kernels and collectives.
Parameters are data files (`data/`), each with its source; a user's file can replace any of them."""

from switchml import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
