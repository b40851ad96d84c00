"""A training job as a graph of operations: flat arrays that say what is done where and after what, not what it
costs."""

from switchml import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
