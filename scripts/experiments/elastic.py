#!/usr/bin/env python3
"""Train with replicas (torchft) through an aggregator, repeatedly kill one (kill -9), and restart it. Shows how the
others continue, and at the end whether all replicas have the same parameters, bit for bit.

    scripts/run --elastic
    scripts/experiments/elastic.py --replicas 3 --deaths 5 --steps 1000
"""

import argparse
import collections
import os
import queue
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from host_agent.pytorch.aggregator import ChildAggregator
from switchml import tables

LIGHTHOUSE = """
import sys
from torchft.coordination import LighthouseServer
server = LighthouseServer(bind="[::]:0", min_replicas=1, join_timeout_ms=1000, heartbeat_timeout_ms=2000)
print(server.address(), flush=True)
sys.stdin.read()
"""
"""Script of the lighthouse. It runs in a process of its own because it logs each step."""
SCRIPT = Path(__file__).resolve().parents[1] / "examples" / "elastic_digits.py"
STEP = re.compile(r"step (\d+): (\w+), (\d+) replicas, loss ([\d.]+)")
CALM_STEPS = 15
"""Steps with all replicas, summed over them, before the next one is killed."""
SHOWN_STEPS = 25
"""Interval in steps of status lines while nothing happens."""


class Replica:
    """One process of the training. Its output lines are put into `lines` with the replica, and None when it ends."""

    def __init__(self, number: int, command: list[str], lines: queue.SimpleQueue[tuple["Replica", str | None]]):
        self.number, self.command, self.lines = number, [*command, "--replica", str(number)], lines
        self.deaths = self.dropped = 0
        self.start_s = 0.0
        self.sha256 = ""
        self.start()

    def start(self) -> None:
        self.is_there, self.began = False, time.monotonic()
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.errors: collections.deque[str] = collections.deque(maxlen=40)
        for stream, take in ((self.process.stderr, self.errors.append), (self.process.stdout, self._tell)):
            threading.Thread(target=self._read, args=(stream, take), daemon=True).start()

    def _tell(self, line: str) -> None:
        self.lines.put((self, line))

    def _read(self, stream, take) -> None:
        for line in stream:
            take(line)
        if stream is self.process.stdout:
            self.process.wait()
            self.lines.put((self, None))

    def kill(self) -> None:
        self.deaths += 1
        self.process.send_signal(signal.SIGKILL)


class MonitoredTraining:
    """State of a running training: present replicas, the next kill, and the printed log."""

    def __init__(self, replicas: list[Replica], deaths: int, steps: int, step_time_s: float, chooser: random.Random):
        self.replicas, self.deaths, self.steps = replicas, deaths, steps
        self.step_time_s, self.chooser = step_time_s, chooser
        self.present, self.calm = 0, 0
        self.began = time.monotonic()
        self.killed_at = 0.0

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.began:6.1f} s  {text}", flush=True)

    def on_step(self, replica: Replica, step: int, outcome: str, present: int, loss: str) -> None:
        now = time.monotonic()
        if not replica.is_there:
            replica.is_there, replica.start_s = True, now - replica.began
            self.say(f"replica {replica.number} is there after {replica.start_s:.1f} s")
            return
        replica.dropped += outcome != "done"
        if outcome != "done":
            self.say(f"step {step}: dropped by replica {replica.number}")
        elif self.killed_at and present < len(self.replicas):
            self.say(f"step {step}: loss {loss}, {present} left, {now - self.killed_at:.1f} s after the death")
            self.killed_at = 0.0
        elif present != self.present or (replica.number == 0 and step % SHOWN_STEPS == 0):
            self.say(f"step {step}: loss {loss}, {present} of {len(self.replicas)} replicas")
        if outcome == "done":
            self.present = present
        self.calm = self.calm + 1 if present == len(self.replicas) and not self.killed_at else 0
        if self.deaths and self.calm >= CALM_STEPS * len(self.replicas) and self._leaves_time(step):
            self.deaths, self.calm = self.deaths - 1, 0
            victim = self.chooser.choice(self.replicas)
            self.say(f"replica {victim.number} (pid {victim.process.pid}) dies: kill -9")
            self.killed_at = now
            victim.kill()

    def _leaves_time(self, step: int) -> bool:
        """Whether a replica that is killed now can rejoin before the last step."""
        return (self.steps - step) * self.step_time_s > 1.5 * max(each.start_s for each in self.replicas)

    def on_end(self, replica: Replica) -> bool:
        """Restart a replica that was killed. Returns whether it has ended for good."""
        if replica.process.returncode == -signal.SIGKILL and replica.deaths:
            replica.start()
            self.say(f"replica {replica.number} is started again (pid {replica.process.pid})")
            return False
        if replica.process.returncode:
            sys.exit(f"replica {replica.number} ended with {replica.process.returncode}:\n{''.join(replica.errors)}")
        return True


def watch(training: MonitoredTraining, lines: queue.SimpleQueue[tuple[Replica, str | None]], patience_s: float) -> None:
    left = len(training.replicas)
    while left:
        try:
            replica, line = lines.get(timeout=patience_s)
        except queue.Empty:
            sys.exit(f"nothing for {patience_s:g} s: no replica goes on")
        if line is None:
            left -= training.on_end(replica)
        elif match := STEP.match(line):
            training.on_step(replica, int(match[1]), match[2], int(match[3]), match[4])
        elif line.startswith("sha256 "):
            replica.sha256 = line.split()[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--deaths", type=int, default=2)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--step-time", type=float, default=0.25, help="seconds that a step takes at least")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds for whatever waits for other replicas")
    parser.add_argument("--seed", type=int, default=1, help="of who dies")
    options = parser.parse_args()

    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    lighthouse = subprocess.Popen([sys.executable, "-c", LIGHTHOUSE], **pipes)
    given = os.environ.get("SWITCHML_AGGREGATOR")
    aggregator = None if given else ChildAggregator()
    command = [sys.executable, str(SCRIPT), "--steps", str(options.steps), "--replicas", str(options.replicas)]
    command += ["--step-time", str(options.step_time), "--timeout", str(options.timeout)]
    lines: queue.SimpleQueue[tuple[Replica, str | None]] = queue.SimpleQueue()
    replicas: list[Replica] = []
    try:
        os.environ["TORCHFT_LIGHTHOUSE"] = lighthouse.stdout.readline().strip()
        if aggregator is not None:
            os.environ["SWITCHML_AGGREGATOR"] = aggregator.address
        replicas += [Replica(number, command, lines) for number in range(options.replicas)]
        training = MonitoredTraining(
            replicas, options.deaths, options.steps, options.step_time, random.Random(options.seed)
        )
        watch(training, lines, 10 * options.timeout)
    finally:
        for replica in replicas:
            replica.process.kill()
        if aggregator is not None:
            aggregator.stop()
        lighthouse.kill()
    columns = [tables.text("replica"), tables.number("deaths"), tables.number("dropped steps"), tables.text("SHA-256")]
    rows = [(str(each.number), str(each.deaths), str(each.dropped), each.sha256[:16]) for each in replicas]
    tables.show(tables.Table(columns, rows))
    if len({each.sha256 for each in replicas}) != 1:
        sys.exit("the replicas' parameters differ")
    if training.deaths:
        sys.exit(f"{training.deaths} deaths had no time to happen: expected more --steps, or a longer --step-time")


if __name__ == "__main__":
    main()
