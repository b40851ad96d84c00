"""Codecs chosen while training runs (`--codec auto`): the fastest for the network, within a bound on the error.

`network` learns from timed collectives what the network does, `policy` picks a choice for each bucket from that and
from what choices cost, `compressor` measures, agrees with the other ranks, and compresses.
"""
