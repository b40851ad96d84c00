"""Samples for training, planned before it begins (SOLAR, VLDB 2023): who reads what, when, and what is kept."""

from switchml import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
