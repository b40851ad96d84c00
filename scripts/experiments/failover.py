#!/usr/bin/env python3
"""Train repeatedly as `switchml train` does, and kill the aggregator (kill -9) at a random moment of each run. Prints a
table: how many runs finished, and how many with the parameters of the undisturbed run, bit for bit.

    scripts/experiments/failover.py --runs 30                            # a software aggregator and a standby, by UDP
    scripts/experiments/failover.py --runs 30 --transport shm --restart  # no standby: it is started again
    scripts/experiments/failover.py --runs 30 --aggregator p4            # our P4 switch, and a software standby
    scripts/experiments/failover.py --runs 30 --aggregator bmv2 --switch-alone  # simple_switch, not its control plane
"""

import argparse
import contextlib
import json
import os
import random
import signal
import threading
from pathlib import Path

from host_agent.pytorch.aggregator import ChildAggregator, command_of
from host_agent.training import runner
from host_agent.training.worker import Step, TrainingSettings
from switchml import tables
from switchml.control.channel import split_address
from switchml.errors import SwitchMLError


class KilledAggregator:
    """An aggregator that is killed at a random moment, drawn from `chooser`, and with `restarts` is restarted at the
    same address. `switch_alone`: only its switch is killed, not its control plane."""

    def __init__(
        self, kind: str, settings: TrainingSettings, chooser: random.Random, restarts: bool, switch_alone: bool
    ):
        self._command, self._restarts = command_of(kind, settings.workers), restarts
        self._switch_alone = switch_alone
        self._child = ChildAggregator(command=self._command)
        self._steps, self._delay_s = chooser.randrange(1, settings.steps - 4), chooser.uniform(0.0, 0.05)
        self._timer: threading.Thread | None = None
        self.address = ""
        self.is_killed = False

    def start(self) -> "KilledAggregator":
        self.address = self._child.address
        return self

    @property
    def returncode(self) -> int | None:
        return None if self._restarts else self._child.returncode

    def on_step(self, step: Step) -> None:
        if step.backend == "switchml" and step.step == self._steps:
            self._timer = threading.Timer(self._delay_s, self._kill)
            self._timer.start()

    def _kill(self) -> None:
        switches = descendants(self._child.pid)
        for pid in switches if self._switch_alone else [*switches, self._child.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.is_killed = bool(switches) or not self._switch_alone
        if self._restarts and not self._switch_alone:
            _, port = split_address(self.address)
            self._child.stop()
            self._child = ChildAggregator(options=("--control-port", str(port)), command=self._command)
            assert self._child.address == self.address

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.join()
        self._child.stop()


def descendants(pid: int) -> list[int]:
    """All descendant processes of a process, children after their own descendants: a switch is a child of its control
    plane."""
    children = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            children += map(int, task.read_text().split())
    return [each for child in children for each in (*descendants(child), child)]


def train(settings: TrainingSettings, kind: str, chooser: random.Random, restarts: bool, switch_alone: bool) -> str:
    """Return the parameters' checksum after a run with a kill, or an error's text. Raises AssertionError if nothing was
    killed."""
    with contextlib.ExitStack() as running:
        first = KilledAggregator(kind, settings, chooser, restarts, switch_alone)
        running.callback(first.stop)
        standbys = [] if restarts else [ChildAggregator()]
        for standby in standbys:
            running.callback(standby.stop)
        try:
            comparison = runner.compare_with(first.start(), *standbys, settings=settings, on_step=first.on_step)
        except SwitchMLError as error:
            return f"{type(error).__name__}: {error}"
        assert first.is_killed
        return comparison.outcomes["switchml"].params_sha256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--aggregator", choices=["software", "p4", "bmv2"], default="software")
    parser.add_argument("--transport", default="udp", help="with --aggregator p4 or bmv2: frames")
    parser.add_argument("--restart", action="store_true", help="no standby: the aggregator is started again")
    parser.add_argument("--switch-alone", action="store_true", help="the control plane, which starts it again, lives")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.switch_alone and options.aggregator == "software":
        parser.error("--switch-alone: a software aggregator has no switch; expected --aggregator p4 or bmv2")
    os.environ.setdefault("SWITCHML_FAILOVER_TIMEOUT", "60s")  # Starting an aggregator is slow on a busy machine
    transport = options.transport if options.aggregator == "software" else "frames"
    settings = TrainingSettings(options.ranks, options.steps, 32, 0.05, 1, transport=transport, backends=("switchml",))
    calm = ChildAggregator(command=command_of(options.aggregator, options.ranks))
    try:
        undisturbed = runner.compare_with(calm, settings=settings, on_step=lambda step: None)
    finally:
        calm.stop()
    expected = undisturbed.outcomes["switchml"].params_sha256
    chooser = random.Random(options.seed)
    outcomes = []
    for _ in range(options.runs):
        outcomes.append(train(settings, options.aggregator, chooser, options.restart, options.switch_alone))
        if outcomes[-1] != expected:
            print(outcomes[-1], flush=True)
    finished, right = sum(len(each) == 64 for each in outcomes), outcomes.count(expected)
    if options.json:
        print(json.dumps({"runs": options.runs, "finished": finished, "same_sha256": right, "sha256": expected}))
        return
    columns = [tables.text("aggregator"), tables.text("transport"), tables.text("then")]
    counts = [tables.number(name) for name in ("runs", "finished", "same SHA-256")]
    then = "started again" if options.restart else "software standby"
    row = (options.aggregator, transport, then, *map(str, (options.runs, finished, right)))
    tables.show(tables.Table([*columns, *counts], [row]))


if __name__ == "__main__":
    main()
