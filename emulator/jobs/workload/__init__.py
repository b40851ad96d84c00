"""A training job as a graph of operations: flat arrays of ops, their placement and dependencies, without costs."""

from switchml import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
