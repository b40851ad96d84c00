"""Offloaded optimizer states and states of pruned weights, on this machine, compared with AxoNN's and SAMO's formulas.

A network of linear layers in bfloat16. Memory is counted by allocated storage during a step; the host memory is a file.
A step's time is predicted from measurements that alternate with it, on as many states: updates and copies of half a
bucket without overlap, and updates concurrent with a copying thread, as cores share memory bandwidth.
"""

import threading
import time
from collections.abc import Callable, Sequence
from statistics import median

import torch
from torch import nn

from emulator.jobs.memory_options import HOST_WAY_BYTES, offload_bytes, offload_step, samo_bytes
from emulator.lab.validation.rows import Row
from host_agent.memory import OffloadedAdam, PrunedAdam, Tracker, pruned

WIDTH, LAYERS = 512, 24
PARAMETERS = LAYERS * WIDTH * WIDTH
BUCKET = PARAMETERS // 6
SHARE = 0.9
ROUNDS, STEPS = 5, 4


def rows(progress: Callable[[str], None] = lambda line: None) -> list[Row]:
    """Rows of memory of both, and of the time of a step with offloaded states."""
    torch.set_num_threads(1)
    progress("optimizer states on the host")
    model = network(LAYERS)
    offloaded = OffloadedAdam(model.parameters(), bucket=BUCKET)
    peak, host = peak_bytes(model, offloaded), offloaded.stats()["host_bytes"]
    seconds, predicted_s = _timed(model, offloaded)
    found = [
        Row("states offloaded: device", peak / 1e6, offload_bytes(PARAMETERS, BUCKET) / 1e6, "MB"),
        Row("states offloaded: host", host / 1e6, HOST_WAY_BYTES * PARAMETERS / 1e6, "MB"),
        Row("states offloaded: update", seconds, predicted_s, "s"),
    ]
    progress("states of pruned weights")
    model = network(LAYERS)
    left = PrunedAdam(pruned(model, SHARE))
    peak = peak_bytes(model, left, [tensor for state in left.state.values() for tensor in state.values()])
    return [*found, Row(f"{SHARE:.0%} pruned: device", peak / 1e6, samo_bytes(PARAMETERS, SHARE) / 1e6, "MB")]


def network(layers: int) -> nn.Sequential:
    """A network of square linear layers without biases."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers))).bfloat16()


def peak_bytes(model: nn.Module, optimizer: torch.optim.Optimizer, states: Sequence[torch.Tensor] = ()) -> int:
    """Peak bytes of weights, gradients and `states` on the device over two steps."""
    with Tracker() as tracker:
        for tensor in (*model.parameters(), *states):
            tensor.detach()  # the tracker counts tensors that operators return
        for _ in range(2):
            _step_s(model, optimizer)
    return int(tracker.peak)


def _step_s(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """Seconds of the optimizer's step alone."""
    optimizer.zero_grad()
    model(torch.ones(1, WIDTH, dtype=torch.bfloat16)).sum().backward()
    started = time.perf_counter()
    optimizer.step()
    return time.perf_counter() - started


class _Halves:
    """The same number of states, with each half bucket in its own optimizer, so that nothing overlaps."""

    def __init__(self) -> None:
        layers = BUCKET // 2 // (WIDTH * WIDTH)
        self._networks = [network(layers) for _ in range(LAYERS // layers)]
        self._optimizers = [OffloadedAdam(each.parameters(), bucket=BUCKET) for each in self._networks]

    def step(self) -> tuple[float, float]:
        """Mean seconds of an update and of a one-way copy of half a bucket."""
        before = [each.stats() for each in self._optimizers]
        for model, optimizer in zip(self._networks, self._optimizers, strict=True):
            _step_s(model, optimizer)
        gained = [
            [after[name] - old[name] for name in ("update_s", "copy_wait_s")]
            for old, after in zip(before, (each.stats() for each in self._optimizers), strict=True)
        ]
        update_s, copies_s = (sum(each) / len(gained) for each in zip(*gained, strict=True))
        return update_s, copies_s / 2

    def contended_step(self) -> float:
        """Seconds of an update while another thread copies."""
        there, here = torch.zeros(3, BUCKET // 2), torch.zeros(3, BUCKET // 2)
        is_over = threading.Event()

        def copy() -> None:
            while not is_over.is_set():
                here.copy_(there)

        thread = threading.Thread(target=copy)
        thread.start()
        try:
            return self.step()[0]
        finally:
            is_over.set()
            thread.join()


def _timed(model: nn.Module, offloaded: OffloadedAdam) -> tuple[float, float]:
    """Seconds of an update of all states: measured, and predicted by AxoNN's pipeline of copies and updates."""
    halves = _Halves()
    measured: list[float] = []
    alone: list[tuple[float, float]] = []
    contended_s: list[float] = []
    for _ in range(ROUNDS):  # the first step after a switch of optimizer has cold caches
        measured += [_step_s(model, offloaded) for _ in range(STEPS)][1:]
        alone += [halves.step() for _ in range(STEPS)][1:]
        contended_s += [halves.contended_step() for _ in range(STEPS)][1:]
    update_s, copy_s = map(median, zip(*alone, strict=True))
    half = BUCKET // 2
    rates = {
        "copy_bytes_per_s": HOST_WAY_BYTES * half / copy_s,
        "adam_parameters_per_s": half / update_s,
        "copy_slowdown": max(median(contended_s) / update_s, 1.0),
    }
    return median(measured), offload_step(PARAMETERS, half, **rates).step_s
