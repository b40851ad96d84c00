"""The switch, the network and the training job in software, each in its own subpackage."""

from switchml import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
