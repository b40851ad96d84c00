"""The host agent, which runs beside a worker, joins a job and all-reduces arrays, and the PyTorch backend
built on it."""

from switchml import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
