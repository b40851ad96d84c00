"""The PyTorch backend: process group, rendezvous, Work objects, CUDA and sparse tensors, DDP hooks and settings."""

from switchml import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
