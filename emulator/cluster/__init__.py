"""Machines: accelerators, nodes, fabrics, storage, and what kernels and collectives cost on them. The numbers
are data files (`data/`), each with its source; a user's file can stand in for any of them."""

from switchml import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
