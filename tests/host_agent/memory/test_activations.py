"""Gradients with compressed activations, beside those without."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from host_agent.memory import Tracker, compressed_activations  # noqa: E402
from switchml.errors import ConfigError  # noqa: E402

IMAGES = torch.randn(16, 1, 16, 16, generator=torch.Generator().manual_seed(1))
LABELS = torch.arange(16) % 10


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 32), nn.Linear(32, 10)
    )


def gradients(model, steps=1, **options):
    """Of the last step, with the compression's counters."""
    with compressed_activations(model, least_bytes=256, **options) as activations:
        for _ in range(steps):
            model.zero_grad()
            functional.cross_entropy(model(IMAGES), LABELS).backward()
    return [getattr(p.grad, "_local_tensor", p.grad).clone() for p in model.parameters()], activations


def errors(found, expected):
    return [float((a - b).norm() / b.norm()) for a, b in zip(found, expected, strict=True)]


EXACT, _ = gradients(network(), codec="none")


@pytest.mark.parametrize("codec, ratio, error", [
    ("none", 1, 0), ("host", np.inf, 0), ("fp16", 2, 1e-3), ("int8", 4, 1e-2), ("szx", 2, 1e-3), ("levels", 2.5, 1e-3),
])  # fmt: skip
def test_gradients_are_near_those_of_plain_activations(codec, ratio, error):
    found, activations = gradients(network(), codec=codec)
    assert max(errors(found, EXACT)) <= error
    assert activations.stats()["ratio"] >= ratio * 0.99


def test_compressed_once_and_restored_for_both_that_saved_it():
    """A ReLU's output is the pooling's input; images and weights are there anyway. Pooling's int64 fit bytes."""
    _, activations = gradients(network(), codec="int8")
    stats = activations.stats()
    relu, pooled, hidden = 16 * 8 * 256, 16 * 512, 16 * 32
    assert stats["tensors"] == 4 and stats["left_bytes"] == 0
    assert stats["bytes"] == 4 * relu + (4 + 8) * pooled + 4 * hidden
    assert stats["compressed_bytes"] == (relu + pooled + hidden) * (1 + 4 / 256) + pooled


def test_peak_memory_falls():
    def peak(codec):
        layers = [nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()) for _ in range(6)]
        model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), *layers)
        with compressed_activations(model, codec), Tracker() as tracker:
            model(IMAGES).sum().backward()
        return tracker.peak

    activation = 4 * IMAGES.numel() * 8
    assert peak("none") - peak("levels") > 3 * activation


def test_the_rule_measures_and_keeps_gradients_within_its_share():
    """Weights' gradients err by about 1 % of themselves, as the rule wants it, and no more."""
    model = network()
    found, activations = gradients(model, steps=2, codec="levels", every=1)
    shares = activations.shares()
    assert set(shares) == {"0", "4", "5"} and all(1e-3 < share <= 0.5 for share in shares.values())
    weights = errors(found[::2], EXACT[::2])
    assert 0.001 < max(weights) < 0.02
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    optimizer.step()
    for state in optimizer.state.values():
        state["momentum_buffer"] *= 5
    _, with_momentum = gradients(model, steps=2, codec="levels", every=1, optimizer=optimizer)
    raised = with_momentum.shares()["4"]
    assert raised == pytest.approx(5 * shares["4"], rel=0.3), "more momentum bears more"


def test_views_come_back_as_they_were():
    """Parts of a tensor, transposed, expanded, of half precision; a loss outside the model's forward; two backwards."""
    weight = (torch.randn(64, 96) / 8).requires_grad_()

    def parts(x):
        a, b, c = (x @ weight).chunk(3, dim=1)
        wide = a.t().contiguous().t() * b.to(torch.bfloat16).exp().float()
        return (wide * c.t().square().t().expand(2, -1, -1)).sum()

    x = torch.randn(128, 64)
    (expected,) = torch.autograd.grad(parts(x), weight)
    with compressed_activations(nn.Identity(), "levels", 1e-3) as activations, activations.saving(x):
        loss = parts(x)
    for _ in range(2):
        (found,) = torch.autograd.grad(loss, weight, retain_graph=True)
        assert errors([found], [expected])[0] < 5e-3
    assert activations.stats()["tensors"] >= 5


def test_changes_of_what_was_left_alone_are_still_noticed():
    model = nn.Linear(64, 64)
    x = torch.randn(64, 64, requires_grad=True)
    with compressed_activations(model, "levels"):
        loss = model(x).sum()
    with torch.no_grad():
        model.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_nothing_happens_without_gradients_and_after_the_end():
    model = network()
    with compressed_activations(model, "int8") as activations, torch.no_grad():
        model(IMAGES)
    functional.cross_entropy(model(IMAGES), LABELS).backward()
    assert activations.stats()["bytes"] == 0
    assert errors([p.grad for p in model.parameters()], EXACT) == [0.0] * 6


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        layers = network()
        self.first, self.last = layers[:3], layers[3:]

    def forward(self, images):
        return self.last(checkpoint(self.first, images, use_reentrant=False))


def test_with_checkpointing():
    found, activations = gradients(Checkpointed(), codec="levels", error=0.01)
    assert max(errors(found, EXACT)) < 0.01
    _, plain = gradients(network(), codec="levels", error=0.01)
    assert 0 < activations.stats()["bytes"] < plain.stats()["bytes"] / 2, "what is computed again is not kept"


def test_with_data_parallel_and_shards():
    """One rank; several: `switchml train --activations` in test_train.py."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        alike = [gradients(nn.parallel.DistributedDataParallel(network()), codec="levels", steps=2)]
        sharded = network()
        mesh = DeviceMesh.from_group(dist.group.WORLD, "cpu")
        for layer in (sharded[0], sharded[4], sharded[5], sharded):
            fully_shard(layer, mesh=mesh)
        alike.append(gradients(sharded, codec="levels", steps=2))
    finally:
        dist.destroy_process_group()
    expected, plain = gradients(network(), codec="levels", steps=2)
    for found, activations in alike:
        assert max(errors(found, expected)) < 1e-6
        assert activations.stats()["bytes"] == plain.stats()["bytes"], "weights are left alone"


@pytest.mark.slow
def test_with_a_compiled_model():
    """Measured as it is written, trained compiled; at the bound of the layer that bears least."""
    found, activations = gradients(torch.compile(network(), backend="aot_eager"), codec="levels", steps=3)
    assert max(errors(found[::2], EXACT[::2])) < 0.02
    assert activations.stats()["ratio"] > 2.5
    assert all(share > 1e-3 for share in activations.shares().values())


@pytest.mark.parametrize("options, complaint", [
    ({"codec": "zip"}, "expected one of levels, szx"), ({"error": "small"}, "error='small'"),
    ({"error": 0}, "error=0: expected auto, or a share"), ({"every": 0}, "every=0"),
])  # fmt: skip
def test_nonsense_is_refused(options, complaint):
    with pytest.raises(ConfigError, match=complaint):
        compressed_activations(network(), **options)
