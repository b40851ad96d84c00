"""Networks in this machine's kernel: namespaces, links, racks, Mininet."""

from switchml import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
