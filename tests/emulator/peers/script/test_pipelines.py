"""Scripts whose ranks differ: each stage of a pipeline runs, and they wait for each other's messages."""

import pytest

from emulator.peers.script.launch import play
from emulator.surface.api import trace as trace_api
from switchml.errors import JobError

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

SCHEDULES = """
import sys, torch, torch.nn as nn, torch.distributed as dist
from torch.distributed import pipelining
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
chunks = 2 if "Interleaved" in sys.argv[1] else 1
models = [
    nn.Sequential(*[nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)) for _ in range(4)]).cuda()
    for _ in range(chunks)
]
stages = [
    pipelining.PipelineStage(model, rank + place * world, world * chunks, torch.device("cuda"))
    for place, model in enumerate(models)
]
loss = lambda out, target: (out - target).square().mean()
schedule = getattr(pipelining, sys.argv[1])(stages if chunks > 1 else stages[0], 4, loss_fn=loss)
optimizer = torch.optim.AdamW([one for model in models for one in model.parameters()])
batch = torch.randn(4 * 16384, 512, device="cuda")
for step in range(9):
    losses = []
    schedule.step(*[batch] if rank == 0 else [], target=batch if rank == world - 1 else None, losses=losses)
    if losses:
        torch.stack(losses).mean().item()
    optimizer.step()
    optimizer.zero_grad()
"""
MESSAGE = 16384 * 512 * 4

BUBBLES = {"ScheduleGPipe": 1 / 5, "Schedule1F1B": 1 / 5, "ScheduleInterleaved1F1B": 1 / 9}
"""(p - 1) / (v m + p - 1) with p = 2 ranks, m = 4 micro-batches, v stages a rank (Narayanan et al., SC 2021, 2.2)."""


@pytest.mark.parametrize("schedule", BUBBLES)
def test_schedules_of_torch(tmp_path, schedule):
    script = tmp_path / "train.py"
    script.write_text(SCHEDULES)
    result = play([str(script), schedule], "h100-dgx", 2, quiet=True)
    first, last = result["stages"]
    assert (first["rank"], last["rank"]) == (0, 1)
    assert first["iteration_s"] == pytest.approx(last["iteration_s"], rel=1e-6)
    # The first stage has no gradient of its input to work out, and the optimizer is no part of the formula.
    assert last["bubble_share"] == pytest.approx(BUBBLES[schedule], rel=0.1)
    passed = 3 if schedule == "ScheduleInterleaved1F1B" else 1
    assert result["collectives"]["p2p"]["bytes"] == 2 * 4 * passed * MESSAGE
    assert sum(result["parts"].values()) == pytest.approx(result["iteration_s"])


BY_HAND = """
import sys, torch, torch.nn as nn, torch.distributed as dist
dist.init_process_group("nccl")
rank, half = dist.get_rank(), dist.get_world_size() // 2
device = torch.device("cuda", rank % torch.cuda.device_count())
groups = [dist.new_group([*range(first, first + half)]) for first in (0, half)]
is_first = rank < half
width = torch.tensor([4096.0 if is_first else 0.0])
if is_first:
    dist.send(width, rank + half)
else:
    dist.recv(width, rank - half)
width = int(width.item())
net = nn.Linear(width, width).to(device)
net = nn.parallel.DistributedDataParallel(net, process_group=groups[not is_first])
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(9):
    if is_first:
        out = net(torch.randn(8192, width, device=device))
        gradient = torch.empty_like(out)
        for request in dist.batch_isend_irecv(
            [dist.P2POp(dist.irecv, gradient, rank + half), dist.P2POp(dist.isend, out.detach(), rank + half)]
        ):
            request.wait()
        out.backward(gradient)
    else:
        batch = torch.empty(8192, width, device=device)
        dist.recv(batch, rank - half)
        batch.requires_grad_()
        net(batch).square().mean().backward()
        if len(sys.argv) == 1:
            dist.send(batch.grad, rank - half)
    done = torch.ones(1, device=device)
    dist.all_reduce(done)
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_pipeline_by_hand_with_data_parallel_stages(tmp_path):
    """One rank of each stage runs; profiles of both replay as they were played."""
    script = tmp_path / "train.py"
    script.write_text(BY_HAND)
    folder = tmp_path / "traces"
    folder.mkdir()
    result = play([str(script)], "h100-dgx", 16, quiet=True, profile=folder / "rank-0.json.gz")
    assert [one["rank"] for one in result["stages"]] == [0, 8]
    assert all(one["weights_bytes"] == pytest.approx(4096 * 4097 * 4, rel=1e-3) for one in result["stages"])
    assert result["collectives"]["all_reduce"]["bytes"] == 4096 * 4097 * 4 + 4
    assert result["collectives"]["p2p"]["bytes"] == 2 * 8192 * 4096 * 4
    assert sorted(file.name for file in folder.iterdir()) == ["rank-0.json.gz", "rank-8.json.gz"]
    replay = trace_api.read(folder).replay()
    assert replay.replayed.iteration_s == pytest.approx(replay.traced.iteration_s, rel=0.01)


def test_a_message_that_nobody_sends(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(BY_HAND)
    expected = "deadlock: rank 0 waits for rank 8 to take part in a message of 134,217,728 bytes"
    with pytest.raises(JobError, match=expected):
        play([str(script), "forgotten"], "h100-dgx", 16, quiet=True)


@pytest.mark.parametrize(("call", "error"), [
    ("given = [rank // half]; dist.broadcast_object_list(given, 0); assert given == [0]", ""),
    ("given = torch.full((3,), rank, device=device); dist.broadcast(given, 0); assert given.tolist() == [0] * 3", ""),
    ("given = torch.tensor([0.5 + rank]); dist.all_reduce(given, dist.ReduceOp.MIN)", ""),
    ("dist.all_gather_object(given := [None] * 16, 'x' * rank); assert given == ['x' * rank] * 16", ""),
    ("given = torch.tensor([rank]); dist.all_reduce(given)", "ranks 0 and 8 have different input values"),
])  # fmt: skip
def test_values_that_a_script_looks_at(tmp_path, call, error):
    """A broadcast's come from its root; a sum of integers that stages have is refused, times and objects are not."""
    script = tmp_path / "train.py"
    script.write_text(BY_HAND.replace("width = int(", f"{call}\nwidth = int("))
    if error:
        with pytest.raises(JobError, match=error):
            play([str(script)], "h100-dgx", 16, quiet=True)
    else:
        result = play([str(script)], "h100-dgx", 16, quiet=True)
        assert [one["rank"] for one in result["stages"]] == [0, 8]
        note = "collectives of numbers or objects that differ between ranks, which continue with their own: "
        assert any(one.startswith(note) for one in result["notes"]) == ("broadcast" not in call)
