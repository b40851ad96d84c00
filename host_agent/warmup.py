"""Compile the agent's loop before joining a job, so that no rank keeps the others waiting."""

import socket

from host_agent import density, loop
from switchml.protocol import worker as rules
from switchml.runtime.jit import compile_once


def warm_up() -> None:
    """Compile the agent's kernels (about 15 s the first time on a machine) or load them from the cache (a fraction of a
    second)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        worker = rules.Worker(rank=0, workers=1, slots=2, tag=0, isn=0)
        compile_once(loop.run, loop.new_loop(worker, sock, wake=0, aggregator=("127.0.0.1", 1)), 0, 0)
    density.warm_up()
