"""The profile of a script on a GPU that is not there, read by what reads PyTorch's own."""

import gzip
import json
import textwrap

import numpy as np
import pytest

from emulator.jobs.workload.graph import Collective
from emulator.peers.script.launch import ITERATIONS, PROFILED
from emulator.surface.api import trace as trace_api
from emulator.traces.events import LaneKind, What
from emulator.traces.readers.read import read
from tests.support.play import play

pytest.importorskip("torch")

TEXT = """
import torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("nccl")
model = DistributedDataParallel(nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(8)]).cuda())
optimizer = torch.optim.AdamW(model.parameters())
side = torch.cuda.Stream()
for step in range(9):
    loss = model(torch.randn(64, 2048, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        norm = loss.detach() * 2
    torch.cuda.current_stream().wait_stream(side)
    norm.item()
"""


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """The result, and the profile's file."""
    folder = tmp_path_factory.mktemp("profile")
    file = folder / "rank-0.json.gz"
    iterations = ITERATIONS - 1 + PROFILED
    result = play(folder, textwrap.dedent(TEXT), world=16, profile=str(file), iterations=iterations)["result"]
    return result, file


def test_the_profile_has_the_last_iterations_and_their_collectives(played):
    result, file = played
    [trace] = read(file)
    assert (trace.rank, trace.world_size, trace.backend, len(trace.steps)) == (0, 16, "nccl", PROFILED)
    reduced = trace.events.collective == Collective.ALL_REDUCE
    assert trace.events.bytes[reduced].sum() == PROFILED * result["collectives"]["all_reduce"]["bytes"]
    assert sum(lane.kind == LaneKind.DEVICE for lane in trace.lanes) == 3  # compute, NCCL, the side stream


def test_nothing_in_it_begins_before_its_causes(played):
    """A kernel's launch had to begin, all else had to end, before it; a synchronization ends no sooner."""
    [trace] = read(played[1])
    events, (cause, effect) = trace.events, trace.causes.T
    moment_s = np.where(events.what[cause] == What.LAUNCH, events.start_s[cause], events.end_s[cause])
    at_s = np.where(events.what[effect] == What.SYNC, events.end_s[effect], events.start_s[effect])
    assert len(cause) > 100 and (moment_s <= at_s + 1e-9).all()


def test_it_replays_as_it_was_played(played):
    """Every order of the emulated GPU is in the profile: replayed by them alone, it takes what it took."""
    result, file = played
    replayed = trace_api.read(file).replay()
    assert replayed.replayed.iteration_s == pytest.approx(result["iteration_s"], rel=0.01)


def test_memory_is_a_counter_that_reaches_the_peak(played):
    result, file = played
    with gzip.open(file) as stream:
        counters = [event for event in json.load(stream)["traceEvents"] if event["ph"] == "C"]
    allocated = [event for event in counters if event["name"] == "memory (MiB)"]
    assert all(event["args"].keys() == allocated[0]["args"].keys() for event in allocated)
    peak = max(allocated, key=lambda event: sum(event["args"].values()))["args"]
    assert {use: size * 2**20 for use, size in peak.items() if size} == result["memory"]
    reserved = max(event["args"]["reserved"] for event in counters if event["name"] == "memory reserved (MiB)")
    assert reserved * 2**20 == result["reserved_bytes"]
    times = [event["ts"] for event in allocated]
    assert times == sorted(times) and min(min(event["args"].values()) for event in allocated) >= 0
