"""Pipeline-parallel training with a model's stages on different ranks: message-driven pipelines (AxoNN, IPDPS 2022)."""

from switchml import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
