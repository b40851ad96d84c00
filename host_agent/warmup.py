"""Have the agent's compiled loop ready before a job is joined, so that no rank keeps the others waiting while it
compiles."""

import socket

from host_agent import density, loop
from switchml.protocol import worker as rules
from switchml.runtime.jit import compile_once


def warm_up() -> None:
    """Compile, or load from the cache, what an agent runs (about 15 s the first time on a machine, then a fraction of
    one)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        worker = rules.Worker(rank=0, workers=1, slots=2, tag=0, isn=0)
        compile_once(loop.run, loop.new_loop(worker, sock, wake=0, aggregator=("127.0.0.1", 1)), 0, 0)
    density.warm_up()
