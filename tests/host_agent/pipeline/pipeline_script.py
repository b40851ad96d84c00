"""Run by test_pipeline.py in four processes: pipelines of many shapes beside the same model in one process. Prints the
largest difference of a gradient, relative to the largest gradient, by case, and what else the test looks at."""

import copy
import itertools
import json
import random
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage

from host_agent.pipeline import Pipeline, PipelineGroups, pipeline_groups
from switchml.errors import ConfigError
from tests.support.group import RANK, init

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


class Beside(nn.Module):
    """Takes and hands on what is not always there, and token numbers, which learn nothing."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))
        self.table = nn.Embedding(9, WIDTH)

    def forward(self, x, missing=None, tokens=None, *, scale=None):
        x = self.inner(x if scale is None else x * scale)
        if tokens is not None:
            x = x + self.table(tokens)
        return x, missing, (x.detach() > 0).sum(1)


class FirstOf(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Beside()

    def forward(self, *inputs):
        return self.inner(*inputs)[0]


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


def unusual(places: dict[int, PipelineGroups]) -> dict[str, float]:
    """The largest difference of gradients and buffers from those of one process, micro-batch by micro-batch, where
    nothing of a stage learns or it begins to, and where batches differ in shape, inputs are None or named."""
    groups, off = places[4], {}
    loss = nn.MSELoss()

    def compare(name: str, parts: list[nn.Module], batches: list[tuple], schedule: str, **options) -> None:
        pipeline = Pipeline(parts, 2, loss, schedule=schedule, groups=groups)
        whole = copy.deepcopy(parts)
        worst = torch.zeros(())
        for batch in batches:
            pipeline.module.zero_grad()
            for part in whole:
                part.zero_grad()
            options |= {"scale": torch.rand(len(batch[0]), WIDTH)} if "scale" in options else {}
            pipeline.step(*batch, target=batch[0], **options)
            for half in range(2):
                each = [None if t is None else t.chunk(2)[half] for t in batch]
                named = {key: value.chunk(2)[half] for key, value in options.items()}
                output: tuple = tuple(each)
                for part in whole:
                    output = part(*output, **(named if isinstance(part, Beside) else {}))
                    output = output if isinstance(output, tuple) else (output,)
                value = loss(output[0], each[0]) / 2
                if value.requires_grad:
                    value.backward()
            mine = whole[groups.stage]
            for here, there in zip(pipeline.module.parameters(), mine.parameters(), strict=True):
                assert (here.grad is None) == (there.grad is None), name
                if here.grad is not None:
                    worst = max(worst, (here.grad - there.grad).abs().max())
            for here, there in zip(pipeline.module.buffers(), mine.buffers(), strict=True):
                worst = max(worst, (here - there).abs().max().float())
            for part in (*parts, *whole):
                part.requires_grad_(True)
        off[name] = worst.item()

    def chain(*frozen: int) -> list[nn.Module]:
        parts = [nn.Linear(WIDTH, WIDTH) for _ in range(4)]
        for number in frozen:
            parts[number].requires_grad_(False)
        return parts

    for schedule in ("message-driven", "gpipe"):
        x = torch.randn(4, WIDTH)
        for frozen in ((0,), (0, 1), (1, 3), (0, 1, 2, 3)):
            compare(f"{frozen} frozen, {schedule}", chain(*frozen), [(x,), (x,)], schedule)
        shapes = [(4,), (8,), (2,), (4, 5), (4, 3)]
        compare(f"shapes, {schedule}", chain(), [(torch.randn(*shape, WIDTH),) for shape in shapes], schedule)
        beside = [Beside(), nn.Identity(), Beside(), FirstOf()]
        beside[1].forward = lambda *inputs: inputs
        batches = [(x, None), (x, None, torch.arange(4)), (torch.randn(6, WIDTH), torch.rand(6, 1))]
        compare(f"None, {schedule}", beside, batches, schedule, scale=None)
    return off


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
        lambda: Pipeline(parts, 2, nn.MSELoss(), groups=places[2]).step(x, target=x[: 6 - 2 * (RANK > 1)]),
        lambda: Pipeline(parts, 2, nn.MSELoss(), groups=places[2]).step(x, target=x[: 6 - (RANK > 1)]),
        lambda: Pipeline(parts, 2, nn.MSELoss(), groups=places[2]).step(x, target=x, mask=x),
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
    init()
    places = {stages: pipeline_groups(stages) for stages in (1, 2, 4)}
    three = dist.new_group([0, 1, 2], backend="gloo")
    report = {
        "equal": equal_gradients(places),
        "unusual": unusual(places),
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
