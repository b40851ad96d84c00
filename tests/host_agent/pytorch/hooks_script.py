"""Run by test_comm_hooks.py in two processes: DDP with codec hooks over the backend that argv names, checked on each
rank. Prints a JSON object of what the hooks sent.
"""

import json
import pickle
import sys

import numpy as np
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


def survives(codec: str) -> dict:
    """Training with a GradScaler, where the first layer's gradient overflows on one rank in the third step. Whether
    each step's gradients are finite, by layer; whether that step left the parameters, and every bucket's residuals, as
    they were. Before the last, the state is pickled and goes on as it was."""
    model = DistributedDataParallel(network(), bucket_cap_mb=0.0005)
    state = CodecState(codec)
    model.register_comm_hook(state, codec_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    layers = model.module[0], model.module[2]
    is_overflow = [False]
    layers[0].weight.register_hook(lambda gradient: gradient * float("inf") if is_overflow[0] else gradient)
    finite, kept, buckets = [], [], 0
    for step in range(5):
        if step == 4:
            again = pickle.loads(pickle.dumps(state))
            state.load_state_dict(again.state_dict())
        is_overflow[0] = step == 2 and RANK == 0
        before, parameters = state.state_dict()["tensors"], [p.detach().clone() for p in model.parameters()]
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(2, 20) + step).square().mean()).backward()
        finite.append([bool(layer.weight.grad.isfinite().all()) for layer in layers])
        scaler.step(optimizer)
        scaler.update()
        after = state.state_dict()["tensors"]
        alike = [same(before.get(key, {}).get(part), after[key][part]) for key in after for part in ("codec", "memory")]
        alike += [torch.equal(a, b) for a, b in zip(parameters, model.parameters(), strict=True)]
        kept.append(all(alike))
        buckets = len(after)
    return {"finite": finite, "kept": kept, "tensors": buckets, "scale": scaler.get_scale()}


def same(a: object, b: object) -> bool:
    """Whether two states, plain values and arrays, are equal."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(np.array_equal(a, b)) if isinstance(a, np.ndarray) else a == b


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
    report["overflow"] = {codec: survives(codec) for codec in ("topk", "powersgd", "onebit", "dgc", "signsgd")}
    odd = "topk:ratio=0.5" if RANK else "topk:ratio=0.1"
    try:
        train(odd)
    except RuntimeError as error:
        report["odd"] = str(error)
    dist.destroy_process_group()
    print(json.dumps(report))


main()
