"""The path of a packet through the switch, implemented once for both engines.

`v1model` is simple_switch's path and `psa` is psa_switch's, each to be read from the top down; `traffic_manager` is the
stage between ingress and egress in both. They access a packet only through the operations of `engine`, and its fields
by the numbers of `fields`. The interpreter calls these functions directly, and engine/kernels.py compiles them.
"""
