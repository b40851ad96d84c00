"""Wires between interfaces of one namespace: a process that runs link.py's links in both directions between each pair.

`python -m emulator.networks.testbed.wires JSON` with {"wires": [[interface, interface], …], "loss", "delay_s", "seed",
"capacity_bytes", "threads"} prints "ready", and then, for every line on stdin, a JSON line of counters: a row by
link.COUNTS for each direction, a wire's two rows together. It ends with stdin. star.py starts it.
"""

import json
import os
import socket
import sys
import threading

import numpy as np

from emulator.networks.testbed.link import COUNTS, new_links, serve
from switchml.net.sockets import attach, new_packet_socket
from switchml.runtime.jit import compile_once

SOCKET_BUFFER_BYTES = 32 << 20


def open_interface(name: str) -> socket.socket:
    """A socket that receives everything that arrives at an interface of this namespace, and sends from it. Trains stay
    intact, and omitted checksums stay omitted."""
    sock = new_packet_socket(name, buffer_bytes=SOCKET_BUFFER_BYTES)
    attach(sock, name)
    return sock


def main() -> None:
    """Run the process described in the module's docstring."""
    options = json.loads(sys.argv[1])
    sockets = [[open_interface(name) for name in wire] for wire in options["wires"]]
    stop = os.eventfd(0)
    groups = []
    for thread in range(options["threads"]):
        mine = range(thread, len(sockets), options["threads"])
        pairs = []
        for a, b in (sockets[wire] for wire in mine):
            pairs += [(a.fileno(), b.fileno()), (b.fileno(), a.fileno())]
        links = new_links(
            pairs,
            loss=options["loss"],
            delay_s=options["delay_s"],
            seed=options["seed"],
            numbers=[2 * wire + direction for wire in mine for direction in (0, 1)],
            capacity_bytes=options["capacity_bytes"],
        )
        compile_once(serve, links, stop)
        groups.append(links)
    workers = [threading.Thread(target=serve, args=(links, stop), daemon=True) for links in groups]
    for worker in workers:
        worker.start()
    print("ready", flush=True)
    for _ in sys.stdin:
        counts = np.zeros((2 * len(sockets), len(COUNTS)), np.int64)
        for i, links in enumerate(groups):
            counts[2 * i :: 2 * len(groups)] = links.counts[0::2]
            counts[2 * i + 1 :: 2 * len(groups)] = links.counts[1::2]
        print(json.dumps(counts.tolist()), flush=True)
    os.eventfd_write(stop, 1)
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    main()
