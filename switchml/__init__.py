"""In-network aggregation for machine learning: the protocol, the worker, the aggregator and its control plane.

Importing this package loads nothing else: import the module that you need, for example `switchml.protocol.packet` or
`switchml.protocol.worker`. The PyTorch side is in `host_agent`, the emulators in `emulator`; `emulate`, `sweep` and
`trace` come from there through the entry points `switchml.api`, as subcommands do, so that nothing here imports it.
"""

import _signal  # the built-in part of `signal`: the rest takes milliseconds to import
import os
import sys


def _end_at_once(*_: object) -> None:
    """Ctrl-C handler while the command line loads, until `cli/interrupts.py` installs its own: exits without a
    traceback."""
    os._exit(130)


_is_command = os.path.basename(*sys.argv[:1] or [""]) == "switchml" or sys.orig_argv[1:3] == ["-m", "switchml"]
if _is_command and _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _end_at_once)

from switchml import lazy  # noqa: E402 - nothing of ours is imported before

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__, "switchml.api")
