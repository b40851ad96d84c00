"""Run by test_comm_hooks.py in two processes: DDP with codec hooks over the backend that argv names, checked on each
rank. Prints a JSON object of what the hooks sent.
"""

import json
import pickle
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from host_agent.pytorch.comm_hooks import CodecState, codec_hook
from tests.support.group import RANK, SIZE, init

BACKEND, CODECS = sys.argv[1], sys.argv[2:]
STEPS = 4
torch.set_num_threads(1)


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 3))


def train(codec: str | None) -> tuple[torch.Tensor, dict]:
    """Parameters after a few steps, and what the hook counted."""
    model = DistributedDataParallel(network())
    state = None
    if codec is not None:
        state = CodecState(codec)
        model.register_comm_hook(state, codec_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        batch = torch.randn(16, 20, generator=torch.Generator().manual_seed(100 * step + RANK))
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]), state.stats() if state else {}


def survives(codec: str) -> list[bool]:
    """Whether the gradients of each step are finite, where one rank's third step has an infinity; halfway, the state
    is pickled and goes on as it was."""
    model = DistributedDataParallel(network())
    state = CodecState(codec)
    model.register_comm_hook(state, codec_hook)
    finite = []
    for step in range(5):
        if step == 4:
            again = pickle.loads(pickle.dumps(state))
            state.load_state_dict(again.state_dict())
        model.zero_grad()
        factor = float("inf") if step == 2 and RANK == 0 else 1.0
        model(torch.ones(2, 20)).square().mean().mul(factor).backward()
        finite.append(all(bool(p.grad.isfinite().all()) for p in model.parameters()))
    return finite


def same_everywhere(vector: torch.Tensor) -> bool:
    places = [torch.empty_like(vector) for _ in range(SIZE)]
    dist.all_gather(places, vector)
    return all(torch.equal(place, vector) for place in places)


def main() -> None:
    init(BACKEND)
    dense, _ = train(None)
    assert same_everywhere(dense)
    report = {}
    for codec in CODECS:
        parameters, stats = train(codec)
        assert same_everywhere(parameters), codec
        report[codec] = stats | {"difference": float((parameters - dense).abs().max())}
    report["finite"] = {codec: survives(codec) for codec in ("topk", "powersgd", "onebit", "dgc", "signsgd")}
    odd = "topk:ratio=0.5" if RANK else "topk:ratio=0.1"
    try:
        train(odd)
    except RuntimeError as error:
        report["odd"] = str(error)
    dist.destroy_process_group()
    print(json.dumps(report))


main()
