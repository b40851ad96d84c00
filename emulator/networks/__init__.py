"""Networks, real and simulated.

`testbed/` builds them from this kernel's namespaces: a layout goes in, hosts with addresses and links come out; start
with `fabric.py`. `netsim/` plays packets in virtual time: a network's description goes in, seconds and packet counts
come out; start with `experiment.py`. `faults/` drives the protocol's own code through faults drawn from a seed and
checks every sum; start with `world.py`.
"""
