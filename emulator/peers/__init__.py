"""Runs one or a few ranks of a job for real; all other ranks, the network and the switch are emulated (NeuronaBox:
Emulating the environment of a node, 2024).

`settings.py` configures the emulation; `clock.py` is the script's time; `timing.py` computes when collectives begin and
end; `values.py` and `recording.py` supply the data of absent ranks, and `exchange.py` combines it; `world.py` puts
these together, and `process_group.py` is the torch interface.

`script/` is for scripts that use GPUs: they run without any.

`launch.py` starts scripts, `emulator/lab/validation/peers` compares the emulation with runs in which all ranks are
real.
"""
