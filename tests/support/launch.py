"""Aggregators and ranks for tests: in processes of their own, so that they can be killed, or as threads of this one.

`Aggregator` is a `switchml aggregate` process on ports of the kernel's choice. `Rank` is a process that is controlled
by commands: this file, run as a program, reads one JSON command a line and answers each with a JSON line.
`LocalAggregator`, `join_all` and `on_all` do the same inside the test's own process, which is faster and gives tests
access to the arrays.

What ranks contribute is a function of (seed, rank): `contribution`. Whatever its dtype, the numbers are integers below
1000, so that the sum of a few ranks is exact and `total` says what every rank must get to the last bit.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.support.forks import AGENT, AGGREGATOR, Forked

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 120.0
"""How long a test waits for what should take a moment: machines that run tests are slow and busy."""
START_S = 110.0
"""How long an aggregator may take to start: the first one compiles."""
NO_FAILOVER = {"SWITCHML_FAILOVER_TIMEOUT": "0"}
"""Ranks wait for no aggregator to come back, unless they are told to when they join."""


# What ranks contribute


def contribution(seed: int, rank: int, numel: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng((seed, rank)).integers(-999, 1000, numel).astype(dtype)


def sparse_arrays(ranks: int, dtype: str, density: float, numel: int = 100_003, block: int = 64) -> list[np.ndarray]:
    """Integers, whose sums are exact, in a share of the blocks; each rank has its own."""
    generator = np.random.default_rng(7)
    arrays = []
    for _ in range(ranks):
        x = generator.integers(-90, 90, numel).astype(dtype)
        x[np.repeat(generator.random(-(-numel // block)) >= density, block)[:numel]] = 0
        arrays.append(x)
    return arrays


def total(seed: int, ranks: int, numel: int, dtype: str = "float32") -> np.ndarray:
    return sum(contribution(seed, rank, numel, dtype) for rank in range(ranks))


def digest(arrays) -> str:
    """sha256 over the bytes of all arrays."""
    running = hashlib.sha256()
    for array in arrays:
        running.update(np.ascontiguousarray(array))
    return running.hexdigest()


def until(condition: Callable[[], object], timeout_s: float = DEADLINE_S):
    """Wait until `condition()` is true, and return its value."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
    return value


# Processes


class _Process:
    """A Python process that prints one JSON object a line; its stderr is collected for messages. `preload`: as `Forked`
    takes it; with nothing, a new interpreter is started."""

    def __init__(self, name: str, preload: tuple[str, ...], *command: str, **env: str):
        self.name = name
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as this object
        inherited = {
            key: value
            for key, value in os.environ.items()
            if key == "SWITCHML_CACHE_DIR" or not key.startswith("SWITCHML_")
        }
        path = os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH", "")) if part)
        theirs_in, ours_in = os.pipe()
        ours_out, theirs_out = os.pipe()
        self._stdin, self._stdout = open(ours_in, "w"), open(ours_out)  # noqa: SIM115
        with open(theirs_in) as stdin, open(theirs_out, "w") as stdout:
            how = dict(
                env=inherited | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | env,
                stdin=stdin,
                stdout=stdout,
                stderr=self._errors,
            )
            self.process = (
                Forked(command, preload=preload, **how)
                if preload
                else subprocess.Popen([sys.executable, *command], **how)
            )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with self._stdout:
            for line in self._stdout:
                self._lines.put(line)
        self._lines.put(None)

    def next(self, timeout_s: float = DEADLINE_S) -> dict:
        """The next line that the process prints."""
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            raise AssertionError(f"{self.name}: no answer within {timeout_s} s\n{self.errors()}") from None
        assert line is not None, f"{self.name}: ended with {self.process.wait()}\n{self.errors()}"
        return json.loads(line)

    def errors(self) -> str:
        """The process's stderr so far."""
        self._errors.seek(0)
        return self._errors.read()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """kill -9, also if it is stopped or has ended already."""
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(OSError):  # unread commands
            self._stdin.close()


class Aggregator(_Process):
    """`switchml aggregate` with `options`. `address` is its control port's HOST:PORT, `data_address` (host, port)."""

    def __init__(self, *options: str, control_port: int = 0, data_port: int = 0):
        super().__init__(
            "aggregator", AGGREGATOR, "-m", "switchml", "aggregate", "--json", f"--control-port={control_port}",
            f"--data-port={data_port}", "--events-port=0", *options,
        )  # fmt: skip
        try:
            ready = self.next(START_S)
        except BaseException:
            self.kill()
            raise
        self.address: str = ready["control"]
        host, _, port = ready["data"].partition(",")[0].rpartition(":")
        self.data_address = host, int(port)

    @property
    def control_port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def status(self, secret: str | None = None):
        """The status that `switchml status` shows."""
        from switchml.control import client

        return client.status(self.address, secret=secret, timeout_s=DEADLINE_S)

    def job(self, name: str, secret: str | None = None):
        """The status of the latest job of this name, or None."""
        return next((job for job in self.status(secret).jobs if job.name == name), None)

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        self.signal(signal.SIGTERM)
        try:
            return self.process.wait(DEADLINE_S)
        finally:
            self.kill()


class Rank(_Process):
    """A process with one agent, perhaps in a network namespace. `ask("join", …)`, `ask("reduce", …)`, `ask("leave")`:
    the methods of `_Commands`.

    An answer holds `error` (the exception's class), `message` and `ranks` if the command failed.
    """

    def __init__(self, name: str = "rank", namespace: str = ""):
        from host_agent.loop import warm_up

        warm_up()  # on disk for the process, whose answers have a deadline
        if namespace:  # the program that enters it must be a child of ours
            inside = ("-m", "emulator.networks.testbed.namespaces", namespace, str(os.getpid()), sys.executable)
            super().__init__(name, (), *inside, __file__, **NO_FAILOVER)
        else:
            super().__init__(name, AGENT, __file__, **NO_FAILOVER)
        self.unanswered = 0

    def next(self, timeout_s: float = DEADLINE_S) -> dict:
        answer = super().next(timeout_s)
        self.unanswered -= 1
        return answer

    def send(self, do: str, **arguments) -> None:
        self.unanswered += 1
        self._stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._stdin.flush()

    def ask(self, do: str, *, wait_s: float = DEADLINE_S, **arguments) -> dict:
        self.send(do, **arguments)
        return self.next(wait_s)


class _Commands:
    """The commands of a rank process."""

    agent = None

    def join(self, **arguments) -> dict:
        from host_agent.agent import HostAgent

        self.agent = HostAgent.join(timeout_s=DEADLINE_S, **arguments)
        return {}

    def reduce(self, *, seed: int, numel: int, dtype: str = "float32", count: int = 1) -> dict:
        """`count` all-reduces, with seeds from `seed` on, each compared with `total`."""
        results = []
        for i in range(count):
            mine = contribution(seed + i, self.agent.rank, numel, dtype)
            results.append(self.agent.allreduce(mine))
            np.testing.assert_array_equal(results[-1], total(seed + i, self.agent.world_size, numel, dtype))
        return {"sha256": digest(results)}

    def collectives(self, *, seed: int, numel: int) -> dict:
        """Every other collective, by all ops, each compared with NumPy."""
        agent, n = self.agent, self.agent.world_size
        arrays = [contribution(seed, rank, n * numel) for rank in range(n)]
        mine, sums, own = arrays[agent.rank], sum(arrays), slice(agent.rank * numel, (agent.rank + 1) * numel)
        np.testing.assert_array_equal(agent.reduce_scatter(mine), sums[own])
        np.testing.assert_array_equal(
            agent.all_gather(mine[own]),
            np.concatenate([array[rank * numel : (rank + 1) * numel] for rank, array in enumerate(arrays)]),
        )
        for root in range(n):
            np.testing.assert_array_equal(agent.broadcast(mine, root=root), arrays[root])
            reduced = agent.reduce(mine, root=root)
            assert reduced is None if agent.rank != root else (reduced == sums).all()
        numbers = [array.astype("int64") for array in arrays]
        for op, function in (
            ("min", np.minimum),
            ("max", np.maximum),
            ("band", np.bitwise_and),
            ("bor", np.bitwise_or),
            ("bxor", np.bitwise_xor),
        ):
            wanted = function.reduce(numbers)
            np.testing.assert_array_equal(agent.allreduce(numbers[agent.rank], op), wanted)
            np.testing.assert_array_equal(agent.reduce_scatter(numbers[agent.rank], op), wanted[own])
        agent.barrier()
        return {}

    def endless(self, *, numel: int, announced: bool = False) -> dict:
        """All-reduce until an error, which is the answer. `announced`: an empty answer comes first, with the first
        sum."""
        for seed in itertools.count():
            self.reduce(seed=seed, numel=numel)
            if announced and seed == 0:
                print("{}", flush=True)

    def leave(self) -> dict:
        if self.agent is not None:
            self.agent.leave()
        self.agent = None
        return {}


def _serve() -> None:
    commands = _Commands()
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = getattr(commands, command.pop("do"))(**command)
        except Exception as error:
            answer = {"error": type(error).__name__, "message": str(error), "ranks": list(getattr(error, "ranks", ()))}
        print(json.dumps(answer), flush=True)
    commands.leave()


# In this process


class LocalAggregator(contextlib.AbstractContextManager):
    """A software aggregator with its control plane in this process; `tunnel` and `v1` are Controller's, `options` are
    SoftwareDataplane's, with `shared_slots` BestEffortDataplane's. Afterwards agents of this process compile nothing:
    what they are asked has a deadline."""

    def __init__(self, *, peer_timeout_s: float = 10.0, tunnel: bool = False, v1: bool = False, **options):
        from host_agent.loop import warm_up
        from switchml.aggregator.best_effort import BestEffortDataplane
        from switchml.aggregator.software import SoftwareDataplane
        from switchml.control.server import Controller

        warm_up()
        kind = BestEffortDataplane if "shared_slots" in options else SoftwareDataplane
        self.dataplane = kind(port=0, **options).start()
        self.controller = Controller(
            self.dataplane, control_port=0, peer_timeout_s=peer_timeout_s, tunnel=tunnel, v1=v1
        )
        try:
            self.address = "{}:{}".format(*self.controller.start().control)
        except BaseException:
            self.dataplane.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self.controller.stop()
        self.dataplane.stop()


def on_all(items, work: Callable, timeout_s: float = DEADLINE_S) -> list:
    """`work(item)` for all items at once, one thread each; each result, or the exception that was raised."""
    outcomes = [None] * len(items)

    def run(index: int) -> None:
        try:
            outcomes[index] = work(items[index])
        except BaseException as error:
            outcomes[index] = error

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(items))]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0))
    hung = [items[i] for i, thread in enumerate(threads) if thread.is_alive()]
    assert not hung, f"still at work after {timeout_s} s: {hung}"
    return outcomes


def good(outcomes: list) -> list:
    """The outcomes of `on_all`; raises the first exception among them."""
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes


def join_all(address: str, world_size: int, *, job: str, **options) -> list:
    """All agents of a job, joined side by side."""
    from host_agent.agent import HostAgent
    from host_agent.loop import warm_up

    warm_up()  # outside the deadline: it may compile
    options = {"timeout_s": DEADLINE_S} | options
    outcomes = on_all(
        range(world_size), lambda rank: HostAgent.join(address, job=job, rank=rank, world_size=world_size, **options)
    )
    try:
        return good(outcomes)
    except BaseException:
        leave_all([agent for agent in outcomes if isinstance(agent, HostAgent)])
        raise


def leave_all(agents: list) -> None:
    on_all(agents, lambda agent: agent.leave())


if __name__ == "__main__":
    _serve()
