"""In-network aggregation for machine learning: the protocol, the worker, the aggregator and what controls them.

Importing this package loads nothing else: name the module that you need, for example `switchml.protocol.packet` or
`switchml.protocol.worker`. The PyTorch side lives in `host_agent`, the emulators in `emulator`; `emulate`, `sweep` and
`trace` come from there by way of the entry points `switchml.api`, as subcommands do, so that nothing here imports it.
"""

from switchml import lazy

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__, "switchml.api")
