"""Compressed all-reduces, and the choice of a codec by the state of the network."""

from switchml import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
