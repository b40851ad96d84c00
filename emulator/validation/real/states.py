"""Optimizer states on the host and of pruned weights, on this machine, beside AxoNN's and SAMO's formulas.

A network of linear layers in bfloat16. Memory is counted from storage to storage in a step; the host is a file. The
rates of copies and of updates that the time of a step is predicted from are measured on half a bucket alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

import torch
from torch import nn

from emulator.jobs.memory_options import HOST_WAY_BYTES, offload_bytes, offload_step, samo_bytes
from emulator.validation.rows import Row
from host_agent.memory import OffloadedAdam, PrunedAdam, Tracker, pruned

WIDTH, LAYERS = 512, 24
PARAMETERS = LAYERS * WIDTH * WIDTH
BUCKET = PARAMETERS // 6
SHARE = 0.9
STEPS = 7


def rows(progress: Callable[[str], None] = lambda line: None) -> list[Row]:
    """Memory of both, and the time of a step with states on the host."""
    torch.set_num_threads(1)
    progress("optimizer states on the host")
    model = network(LAYERS)
    offloaded = OffloadedAdam(model.parameters(), bucket=BUCKET)
    peak, host = peak_bytes(model, offloaded), offloaded.stats()["host_bytes"]
    seconds = median(_step_s(model, offloaded) for _ in range(STEPS))
    found = [
        Row("states offloaded: device", peak / 1e6, offload_bytes(PARAMETERS, BUCKET) / 1e6, "MB"),
        Row("states offloaded: host", host / 1e6, HOST_WAY_BYTES * PARAMETERS / 1e6, "MB"),
        Row("states offloaded: update", seconds, _predicted_s(), "s"),
    ]
    progress("states of pruned weights")
    model = network(LAYERS)
    left = PrunedAdam(pruned(model, SHARE))
    peak = peak_bytes(model, left, [tensor for state in left.state.values() for tensor in state.values()])
    return [*found, Row(f"{SHARE:.0%} pruned: device", peak / 1e6, samo_bytes(PARAMETERS, SHARE) / 1e6, "MB")]


def network(layers: int) -> nn.Sequential:
    """Of square layers, without biases."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers))).bfloat16()


def peak_bytes(model: nn.Module, optimizer: torch.optim.Optimizer, states: Sequence[torch.Tensor] = ()) -> int:
    """Of weights, gradients and `states` on the device, at the highest point of two steps."""
    with Tracker() as tracker:
        for tensor in (*model.parameters(), *states):
            tensor.detach()  # what an operator returns is counted
        for _ in range(2):
            _step_s(model, optimizer)
    return tracker.peak


def _step_s(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """Of the optimizer alone."""
    optimizer.zero_grad()
    model(torch.ones(1, WIDTH, dtype=torch.bfloat16)).sum().backward()
    started = time.perf_counter()
    optimizer.step()
    return time.perf_counter() - started


def _predicted_s() -> float:
    """By AxoNN's pipeline of copies and updates, from the rates of half a bucket that nothing overlaps."""
    half = BUCKET // 2
    model = network(half // (WIDTH * WIDTH))
    alone = OffloadedAdam(model.parameters(), bucket=2 * half)
    update_s, copy_s = [], []
    for _ in range(STEPS):
        before = alone.stats()
        _step_s(model, alone)
        after = alone.stats()
        update_s.append(after["update_s"] - before["update_s"])
        copy_s.append((after["copy_wait_s"] - before["copy_wait_s"]) / 2)  # there and back
    rates = {
        "copy_bytes_per_s": HOST_WAY_BYTES * half / median(copy_s),
        "adam_parameters_per_s": half / median(update_s),
    }
    return offload_step(PARAMETERS, half, **rates).step_s
