"""Codecs chosen during training (`--codec auto`): the fastest one for the network, within a bound on the error.

`network` estimates the network from timed collectives, `policy` picks a choice for each bucket from that estimate and
the costs of the choices, `compressor` measures, agrees with the other ranks, and compresses.
"""
