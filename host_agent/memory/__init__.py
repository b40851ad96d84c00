"""Memory savings in training: activations that wait for the backward pass in compressed form (COMET, VLDB 2022)."""

from switchml import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
