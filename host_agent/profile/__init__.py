"""Profiling a real job, on every rank of it: torch's profiler and execution trace, and what our own agents sent and
received, in one folder.

    from host_agent.profile import switchml_profile

    with switchml_profile("traces/"):
        train()

`switchml trace capture -- torchrun … script.py` does the same to a script that knows nothing of it. `emulator.traces`
reads what comes out.
"""

from host_agent.profile.profile import switchml_profile

__all__ = ["switchml_profile"]
