"""Reduced memory in training: compressed activations (COMET, VLDB 2022), optimizer states on the host (AxoNN, IPDPS
2022), optimizer states of pruned weights (SAMO, IPDPS 2023)."""

from switchml import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
