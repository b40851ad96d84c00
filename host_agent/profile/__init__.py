"""Profiling of a real job on every rank: torch's profiler and execution trace, and the packets of switchml's agents, in
one folder.

    from host_agent.profile import switchml_profile

    with switchml_profile("traces/"):
        train()

`switchml trace capture -- torchrun … script.py` does the same for an unmodified script. `emulator.traces` reads the
files.
"""

from host_agent.profile.profile import switchml_profile

__all__ = ["switchml_profile"]
