"""Run by test_pipeline.py in four processes: pipelines of many shapes beside the same model in one process. Prints the
largest difference of a gradient, relative to the largest gradient, by case, and what else the test looks at."""

import itertools
import json
import os
import random
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage

from host_agent.pipeline import Pipeline, PipelineGroups, pipeline_groups
from switchml.errors import ConfigError

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
CPU = torch.device("cpu")
WIDTH, CLASSES = 6, 3
LOSSES = {
    "cross entropy": (nn.CrossEntropyLoss(), "mean"),
    "squares": (lambda y, t: (y - nn.functional.one_hot(t, CLASSES)).square().sum(), "sum"),
    "log-likelihood": (lambda y, t: nn.functional.nll_loss(y.log_softmax(1), t, reduction="sum"), "sum"),
    "expanded": (lambda y, t: (y.sum(1) * t).mean(), "mean"),
}


class Two(nn.Module):
    """Hands on two tensors, neither of them contiguous."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.inner(x).unsqueeze(1).expand(-1, 2, -1), self.inner(2 * x).t().contiguous().t()


class OfTwo(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, CLASSES)

    def forward(self, x, beside):
        return self.inner(x.sum(1) * beside)


def layers(count: int, draw: random.Random) -> list[nn.Module]:
    torch.manual_seed(draw.randrange(1 << 30))
    kinds = [lambda: nn.Linear(WIDTH, WIDTH), nn.Tanh, lambda: nn.LayerNorm(WIDTH)]
    return [nn.Linear(WIDTH, WIDTH)] + [draw.choice(kinds)() for _ in range(count - 2)] + [nn.Linear(WIDTH, CLASSES)]


def gradients(module: nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in module.parameters()] or [torch.zeros(0)])


def difference(parts, groups, micro_batches, schedule, loss_name, draw, stage=None, **options) -> float:
    """The largest, of this rank's gradients and of its loss, from those of one process with all samples."""
    loss, reduction = LOSSES[loss_name]
    samples = micro_batches * draw.randint(1, 3)
    x = torch.randn(groups.replicas * samples, WIDTH)
    target = torch.randint(0, CLASSES, (len(x),))
    mine = slice(groups.replica * samples, (groups.replica + 1) * samples)
    whole = [[p.detach().clone() for p in part.parameters()] for part in parts]
    pipeline = Pipeline(
        stage or parts, micro_batches, loss, schedule=schedule, reduction=reduction, groups=groups, **options
    )
    for _ in range(2):  # the second step uses what the first has made
        pipeline.module.zero_grad()
        got_loss = pipeline.step(x[mine], target=target[mine])
        got = gradients(pipeline.module).clone()
    with torch.no_grad():
        for part, before in zip(parts, whole, strict=True):
            for p, old in zip(part.parameters(), before, strict=True):
                assert torch.equal(p, old)
    for part in parts:
        part.zero_grad()
    output = x
    for part in parts:
        output = part(*output) if isinstance(output, tuple) else part(output)
    loss(output, target).backward()
    expected = gradients(parts[groups.stage])
    off = (got - expected).abs().max() / expected.abs().max() if len(expected) else torch.zeros(())
    if groups.replicas == 1 and pipeline.is_last:
        off = max(off, (got_loss - loss(output, target)).abs() / got_loss.abs())
    assert (got_loss is None) != pipeline.is_last
    return off.item()


def equal_gradients(places: dict[int, PipelineGroups]) -> dict[str, float]:
    report, draw = {}, random.Random(5)
    cases = list(itertools.product((1, 2, 4), LOSSES))
    ours = [(*case, "message-driven") for case in cases]
    torchs = [(*case, draw.choice(["1f1b", "gpipe"])) for case in cases[::2]]
    for stages, loss, schedule in ours + torchs:
        micro_batches = draw.randint(stages if schedule == "1f1b" else 1, 7)
        options = {"in_flight": draw.randint(1, 6)} if schedule == "message-driven" and draw.random() < 0.5 else {}
        model = layers(draw.randint(stages + 2, stages + 6), draw)
        cuts = [0, *sorted(draw.sample(range(1, len(model)), stages - 1)), len(model)]
        parts = [nn.Sequential(*model[a:b]) for a, b in itertools.pairwise(cuts)]
        name = f"{stages} stages {cuts}, {micro_batches} micro-batches, {schedule} {options}, {loss}"
        report[name] = difference(parts, places[stages], micro_batches, schedule, loss, draw, **options)
    parts = [Two(), OfTwo()]
    report["two tensors"] = difference(parts, places[2], 3, "message-driven", "cross entropy", draw)
    return report


def of_torchs_stage(group) -> dict[str, float]:
    """Three of the four ranks, with stages that a user has made."""
    if RANK == 3:
        return {}
    draw = random.Random(6)
    model = layers(7, draw)
    parts = [nn.Sequential(*model[:1]), nn.Sequential(*model[1:6]), nn.Sequential(*model[6:])]
    stage = PipelineStage(parts[RANK], RANK, 3, CPU, group=group)
    groups = PipelineGroups(RANK, 3, 0, 1, group, None)
    return {"three stages": difference(parts, groups, 5, "message-driven", "cross entropy", draw, stage)}


def most_in_flight(places: dict[int, PipelineGroups]) -> int:
    """Micro-batches whose activations this stage of four keeps at once, of 9."""
    parts = [nn.Linear(4, 4) for _ in range(4)]
    pipeline = Pipeline(parts, 9, nn.MSELoss(), groups=places[4])
    x = torch.randn(18, 4)
    pipeline.step(x, target=x)
    kept = most = 0

    def enter(*_):
        nonlocal kept, most
        kept += 1
        most = max(most, kept)

    def leave(*_):
        nonlocal kept
        kept -= 1

    pipeline.module.register_forward_hook(enter)
    pipeline.module.register_full_backward_hook(leave)
    pipeline.step(x, target=x)
    assert kept == 0
    in_training = most
    evaluated = pipeline.evaluate(x, target=x)
    assert (evaluated is not None) == pipeline.is_last
    if evaluated is not None:
        torch.testing.assert_close(evaluated[1], nn.functional.mse_loss(evaluated[0], x))
    pipeline.step(x, target=x)
    return in_training


def refusals(places: dict[int, PipelineGroups]) -> list[str]:
    parts = [nn.Linear(4, 4) for _ in range(2)]
    x = torch.randn(6, 4)
    attempts = [
        lambda: pipeline_groups(3),
        lambda: Pipeline(parts, 4, nn.MSELoss(), schedule="zero-bubble", groups=places[2]),
        lambda: Pipeline(parts, 4, nn.MSELoss(), reduction="max", groups=places[2]),
        lambda: Pipeline(parts, 0, nn.MSELoss(), groups=places[2]),
        lambda: Pipeline(parts, 1, nn.MSELoss(), schedule="1f1b", groups=places[2]),
        lambda: Pipeline(parts, 4, nn.MSELoss(), schedule="gpipe", in_flight=2, groups=places[2]),
        lambda: Pipeline(parts, 4, nn.MSELoss(), in_flight=0, groups=places[2]),
        lambda: Pipeline(parts, 4, nn.MSELoss(), groups=places[4]),
        lambda: Pipeline(parts[:1], 4, nn.MSELoss(), groups=places[1]).step(x, target=x),
    ]
    messages = []
    for attempt in attempts:
        try:
            attempt()
        except ConfigError as error:
            messages.append(str(error))
    return messages


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "switchml", init_method=os.environ["RENDEZVOUS"], rank=RANK, world_size=SIZE, timeout=timedelta(seconds=60)
    )
    places = {stages: pipeline_groups(stages) for stages in (1, 2, 4)}
    three = dist.new_group([0, 1, 2], backend="gloo")
    report = {
        "equal": equal_gradients(places),
        "torch": of_torchs_stage(three),
        "in flight": most_in_flight(places),
        "refusals": refusals(places),
    }
    dist.barrier()
    json.dump(report, sys.stdout)
    sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
