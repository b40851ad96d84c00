"""Profiling of an unmodified script: `switchml trace capture` passes its options in the environment, and switchml's
entry point, which torch calls at `import torch`, starts the profile in every process that has them.

    SWITCHML_TRACE_DIR       folder for the files
    SWITCHML_TRACE_STEPS     SKIP:STOP, iterations from 0; the first that is captured, and the first that is not
    SWITCHML_TRACE_PACKETS   maximum number of packets that an agent records
    SWITCHML_TRACE_PAIRS     see switchml_profile
    SWITCHML_TRACE_GRAPH     0: no execution trace
    SWITCHML_TRACE_SHAPES    1: shapes of all tensors
"""

import os
import sys
from typing import Any

DIR, STEPS, PACKETS, PAIRS, GRAPH, SHAPES = (
    f"SWITCHML_TRACE_{name}" for name in ("DIR", "STEPS", "PACKETS", "PAIRS", "GRAPH", "SHAPES")
)


def start_profile() -> None:
    """Profile this process according to the environment. Errors are printed to stderr; the process must not fail
    because of them."""
    from host_agent.profile.profile import SKIP, switchml_profile
    from host_agent.recording import MAX_PACKETS

    class SafeProfile(switchml_profile):
        """A profile whose errors never affect the script."""

        def _boundary(self, inside: bool = False) -> None:
            try:
                super()._boundary(inside)
            except Exception as error:
                self._give_up(error)

        def finish(self) -> None:
            if not self._log:  # torchrun itself, or a script that trains nothing, which the command reports
                self._close()
                return
            try:
                super().finish()
            except Exception as error:
                self._give_up(error)

        def _give_up(self, error: Exception) -> None:
            self._close()
            print(f"switchml trace capture: {type(error).__name__}: {error}", file=sys.stderr, flush=True)

    skip, _, stop = os.environ.get(STEPS, f"{SKIP}:").partition(":")
    steps: dict[str, Any] = {"steps": int(stop) - int(skip)} if stop else {}
    SafeProfile(
        os.environ[DIR],
        skip=int(skip),
        **steps,
        packets=int(os.environ.get(PACKETS, MAX_PACKETS)),
        pairs=int(os.environ.get(PAIRS, 0)),
        execution_trace=os.environ.get(GRAPH, "1") != "0",
        shapes=os.environ.get(SHAPES, "0") != "0",
    ).begin()
