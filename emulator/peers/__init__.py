"""One or a few ranks of a job run for real; the emulator plays all others, the network and the switch (NeuronaBox:
Emulating the environment of a node, 2024).

`settings.py` says what is emulated; `clock.py` has the time that the script sees; `timing.py` when collectives begin
and end; `values.py` and `recording.py` what absent ranks contribute, and `exchange.py` what comes of it; `world.py`
puts these together, and `process_group.py` shows them to torch.
`script/` is for scripts that want GPUs: they run on ones that are not there.

`launch.py` starts scripts, `emulator/lab/validation/peers` holds the whole against runs with all ranks real.
"""
