"""What this project measures and compares.

`bench/` runs all-reduces, switches and parts of the emulator on this machine, beside Gloo or simple_switch: options go
in, rows come out. `validation/` holds predictions beside published and measured figures. `reproduce/` checks papers'
claims by running commands of ours. Begin reading with `bench/allreduce.py`.
"""
