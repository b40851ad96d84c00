"""Three workers that add numbers up through a switch with `sum.p4` (docs/tutorials/p4.md), and check each sum."""

import argparse
import random
import socket
import struct
import threading

FRAME = struct.Struct("!6s6sHBBBI")
"""The headers of sum.p4: destination, source, EtherType; worker, version, slot, value."""
TIMEOUT_S = 0.2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ports", default="127.0.0.1:7000", help="the switch's first UDP port, of three (%(default)s)")
    parser.add_argument("--rounds", type=int, default=96, help="sums to ask for, a multiple of 8 (%(default)s)")
    parser.add_argument("--loss", type=float, default=0.0, help="share of packets lost, each way (%(default)s)")
    options = parser.parse_args()
    if options.rounds % 8:
        parser.error(f"--rounds {options.rounds}: expected a multiple of 8, so that the next run finds cleared slots")
    host, port = options.ports.rsplit(":", 1)
    wrong: list[str] = []
    workers = [
        threading.Thread(target=work, args=(worker, (host, int(port) + worker), options.rounds, options.loss, wrong))
        for worker in range(3)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for text in wrong[:3]:
        print(text)
    print(f"{options.rounds} sums for each of 3 workers, {len(wrong)} wrong")


def work(worker: int, switch: tuple[str, int], rounds: int, loss: float, wrong: list[str]) -> None:
    """Send a number for each round and wait for the sum; send it again when none comes."""
    rng = random.Random(worker)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.bind(("127.0.0.1", 0))
        end.settimeout(TIMEOUT_S)
        for number in range(rounds):
            # Every round uses the next of four slots, and after these their other version.
            version, slot = number // 4 % 2, number % 4
            packet = FRAME.pack(bytes(6), bytes(6), 0x88B5, worker, version, slot, number + worker)
            while True:
                if rng.random() >= loss:
                    end.sendto(packet, switch)
                try:
                    *_, got_version, got_slot, got = FRAME.unpack(end.recv(100))
                except TimeoutError:
                    continue
                if rng.random() >= loss and (got_version, got_slot) == (version, slot):
                    break
            expected = 3 * number + 3
            if got != expected:
                wrong.append(f"round {number}, worker {worker}: {got}, expected {expected}")


if __name__ == "__main__":
    main()
