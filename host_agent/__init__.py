"""What runs beside a worker: the agent that joins a job and all-reduces arrays, and the PyTorch backend on it."""

from switchml import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
