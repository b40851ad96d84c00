"""Networks, real and simulated.

`testbed/` builds networks from this kernel's namespaces: input is a layout, output are hosts with addresses and links;
start with `fabric.py`. `netsim/` simulates packets in virtual time: input is a network's description, output are times
and packet counts; start with `experiment.py`. `faults/` runs the protocol's own code under random faults drawn from a
seed and checks every sum; start with `world.py`.
"""
