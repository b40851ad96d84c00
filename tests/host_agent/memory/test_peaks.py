"""The most bytes alive in a training step, plain and with each codec (support/live_bytes.py)."""

import functools
import gc

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from host_agent.memory import compressed_activations  # noqa: E402
from host_agent.memory.codecs import CODECS  # noqa: E402
from host_agent.memory.side_stream import at_once  # noqa: E402
from tests.support.live_bytes import peak_bytes  # noqa: E402


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(d), nn.LayerNorm(d)])
        self.qkv, self.out, self.up, self.down = (nn.Linear(a * d, b * d) for a, b in ((1, 3), (1, 1), (1, 4), (4, 1)))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (each.view(b, t, 2, -1).transpose(1, 2) for each in self.qkv(self.norms[0](x)).split(d, -1))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(b, t, d))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


def transformer():
    model = nn.Sequential(nn.Embedding(256, 64), *(Block(64) for _ in range(4)), nn.LayerNorm(64), nn.Linear(64, 256))
    tokens = torch.randint(256, (8, 64))

    def loss():
        with torch.autocast("cpu", torch.bfloat16):
            scores = model(tokens)
        return functional.cross_entropy(scores.float().flatten(0, 1), tokens.flatten())

    return model, loss


def cnn():
    layers = [(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()) for _ in range(10)]
    first, last = nn.Conv2d(3, 8, 3, padding=1), (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
    model = nn.Sequential(first, *(each for layer in layers for each in layer), *last)
    images, labels = torch.randn(16, 3, 32, 32), torch.arange(16) % 10
    return model, lambda: functional.cross_entropy(model(images), labels)


def trained(make, codec=None):
    """The peak of a step like those before, and the compression's counters."""
    torch.manual_seed(0)
    model, loss = make()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    activations = compressed_activations(model, codec, optimizer=optimizer) if codec else None

    def step():
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    step()
    gc.collect()
    return peak_bytes(step), activations.stats() if activations else {}


LOWER = {
    transformer: {"int8": 1.5, "host": 2.5, "fp16": 1.05, "levels": 1.55, "szx": 1.05, "none": 0.97},
    cnn: {"int8": 2.0, "host": 3.0, "fp16": 1.4, "levels": 2.0, "szx": 1.4, "none": 0.97},
}
"""By at least what factor."""
plain_peak = functools.cache(lambda make: trained(make)[0])


@pytest.mark.slow(keep=4)
@pytest.mark.parametrize("make", LOWER)
@pytest.mark.parametrize("codec", LOWER[cnn])
def test_the_peak_of_a_step_falls(make, codec):
    assert plain_peak(make) / trained(make, codec)[0] >= LOWER[make][codec]


def test_what_autocast_saves_is_compressed_and_its_weights_are_made_again():
    """Inputs of matrix products in bfloat16; casts of weights take nothing, and are exact. Attention's
    inputs and output stay, in two steps."""
    _, stats = trained(transformer, "int8")
    attention = 2 * 4 * 4 * (8 * 64 * 64) * 2
    assert stats["left_bytes"] - attention < 0.02 * stats["bytes"] < stats["compressed_bytes"] < 0.45 * stats["bytes"]
    model = nn.Linear(64, 64, bias=False)
    x = torch.randn(256, 64, requires_grad=True)

    def gradient(codec):
        with (
            compressed_activations(nn.Sequential(model), codec, least_bytes=0) as activations,
            activations.saving(x),
            torch.autocast("cpu", torch.bfloat16),
        ):
            y = model(x * 1)
        return torch.autograd.grad(y.float().sum(), x)[0], activations.stats()

    found, stats = gradient("int8")
    assert torch.equal(found, gradient("none")[0]), "of weights, which compression leaves alone"
    assert stats["tensors"] == 1, "the input"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("codec", ["int8", "fp16", "levels", "szx"])
def test_scratch_does_not_grow_with_the_vector(codec, dtype):
    """A 32 MB vector takes a few parts of 1 MB beside what is kept, there and back."""
    vector = torch.randn(1 << 23).to(dtype)
    made = []
    written = peak_bytes(lambda: made.append(at_once(CODECS[codec]().compress(vector, 0.01))))
    if made[0] is None:
        return
    assert written <= made[0].nbytes + (8 << 20)
    assert peak_bytes(made[0].restore) <= vector.nbytes + (8 << 20)
