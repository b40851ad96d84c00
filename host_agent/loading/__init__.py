"""Data loading for training from a plan made in advance (SOLAR, VLDB 2023): which rank reads which sample in which
step, and which samples it buffers."""

from switchml import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
