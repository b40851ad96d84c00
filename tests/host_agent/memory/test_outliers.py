"""Values that say little of what they do to a gradient: masked logits, infinities, what is no plain dense tensor."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.nn import functional  # noqa: E402

from host_agent.memory import bounds, compressed_activations, outliers  # noqa: E402
from host_agent.memory.codecs import CODECS  # noqa: E402
from host_agent.memory.side_stream import at_once  # noqa: E402

ERRORS = {"levels": 3e-3, "szx": 3e-3, "fp16": 1e-3, "int8": 0.04}
LARGEST = torch.finfo(torch.float32).max
TARGETS = torch.arange(64) % 3
FILLS = (-100.0, -1e4, -1e9, -LARGEST, -float("inf"))
MASKS = ("half", "some rows", "most")

LOSSES = {
    "cross entropy": lambda logits, mask, fill: functional.cross_entropy(logits.masked_fill(mask, fill), TARGETS),
    "log-sum-exp": lambda logits, mask, fill: (
        logits.masked_fill(mask, fill).logsumexp(1).mean() - logits[range(64), TARGETS].mean()
    ),
    "binary": lambda logits, mask, fill: functional.binary_cross_entropy_with_logits(
        logits.masked_fill(mask, max(fill, -1e30)), functional.one_hot(TARGETS, 128).float()
    ),
    "attention": lambda logits, mask, fill: (logits.masked_fill(mask, fill).softmax(1) @ logits.T).square().mean(),
}


class Policy(nn.Module):
    """Some of the choices are masked: of every row, of every other, or all but four."""

    def __init__(self, loss, mask, fill):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(64, 64), nn.Linear(64, 128)
        self.mask = {"half": torch.arange(128) >= 60, "most": torch.arange(128) >= 4}.get(mask)
        if self.mask is None:
            self.mask = (torch.arange(128) >= 60) & (torch.arange(64) % 2 == 0)[:, None]
        self.loss, self.fill = LOSSES[loss], fill

    def forward(self, x):
        return self.loss(self.head(torch.relu(self.body(x))), self.mask, self.fill)


def gradient(model, x):
    model.zero_grad()
    model(x).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize("codec", ERRORS)
@pytest.mark.parametrize("loss, mask, fills", [
    ("cross entropy", "half", FILLS[1:2]),
    *(pytest.param(loss, mask, FILLS, marks=pytest.mark.slow) for loss in LOSSES for mask in MASKS),
])  # fmt: skip
def test_gradients_of_masked_logits(codec, loss, mask, fills):
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    for fill in fills:
        model = Policy(loss, mask, fill)
        expected = gradient(model, x)
        with compressed_activations(model, codec, least_bytes=0):
            found = gradient(model, x)
        assert (found - expected).norm() / expected.norm() < ERRORS[codec], fill


@pytest.mark.slow
def test_the_measured_bound_of_masked_logits():
    """It may make 1 % of the gradient, whatever the mask."""
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    for fill in (-1e4, -LARGEST):
        model = Policy("cross entropy", "half", fill)
        expected = gradient(model, x)
        with compressed_activations(model, "levels", every=1, least_bytes=0) as activations:
            for _ in range(3):
                found = gradient(model, x)
            assert max(activations.shares().values()) > 2e-3
        assert (found - expected).norm() / expected.norm() < 0.03


def test_a_gradient_that_overflowed_leaves_the_bounds():
    model = nn.Linear(64, 64)
    with compressed_activations(model, every=1, least_bytes=0) as activations:
        (model(torch.randn(64, 64)).sum() * float("inf")).backward()
        model(torch.randn(64, 64))
        assert activations.shares() == {"": bounds.START}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_outliers_come_back_exactly(dtype):
    """By hand: 2^4 is an outlier eight times above 2^0, not four times above 2^1; of one value, one is kept."""
    small = torch.linspace(0.5, 1.5, 96).to(dtype)
    odd = torch.tensor([16.0, -16.0, float("inf"), -float("inf"), float("nan"), 60000.0, 0.0, -17.0]).to(dtype)
    vector = torch.cat([small, odd, small])
    rest, found = at_once(outliers.split_outliers(vector))
    assert rest.tolist() == [*small.tolist(), *[0.0] * 8, *small.tolist()]
    assert found.values[:4].tolist() == [16.0, -16.0, float("inf"), -float("inf")] and found.count == 7
    assert torch.equal(found.put(rest).nan_to_num(5), vector.nan_to_num(5))
    alike = vector.masked_fill(~(vector.abs() < 16), -10000.0)
    rest, found = at_once(outliers.split_outliers(alike))
    assert found.values.numel() == 1 and torch.equal(found.put(rest), alike)
    near = torch.cat([small, torch.tensor([2.0, 16.0]).to(dtype)])
    assert at_once(outliers.split_outliers(near)) == (near, None)


def test_octaves_of_a_device_are_those_of_the_cpu():
    vector = torch.randn(10_001) * torch.logspace(-40, 38, 10_001)
    vector[:3] = torch.tensor([0.0, float("inf"), float("nan")])
    expected = outliers._octaves(vector)
    assert expected.sum() == 10_001 and expected[255] >= 2
    assert torch.equal(outliers._octaves_on_device(vector), expected)


def test_half_precision_leaves_what_it_cannot_hold():
    for scale in (1e-9, 1e9):
        assert at_once(CODECS["fp16"]().compress(torch.randn(1000) * scale, 0)) is None


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))


X, TANGENT = torch.randn(2, 32, 64, generator=torch.Generator().manual_seed(2))


def forward_over_reverse(model):
    """A level that opens before the forward pass, whose zeros are tensors without memory."""
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(model(forward_ad.make_dual(X, TANGENT))).tangent
        return [tangent, torch.autograd.grad(tangent.square().sum(), model[0].weight)[0]]


def transformed(model):
    def loss(weights, x):
        return torch.func.functional_call(model, weights, (x,)).square().sum()

    weights = dict(model.named_parameters())
    ones = {name: torch.ones_like(weight) for name, weight in weights.items()}
    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, X)
    curved = torch.func.jvp(lambda some: torch.func.grad(loss)(some, X), (weights,), (ones,))[1]
    return [torch.func.jvp(model, (X,), (TANGENT,))[1], *each.values(), *curved.values(), torch.func.vmap(model)(X)]


class Inside(nn.Module):
    """What is saved within a forward pass and is no plain dense tensor."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 64, generator=torch.Generator().manual_seed(3)))

    def forward(self, x):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x @ self.weight, x)
            tangent = forward_ad.unpack_dual(dual.tanh()).tangent
        waves = torch.fft.fft(x @ self.weight)
        sparse = torch.sparse.mm(functional.relu(x).to_sparse(), self.weight)
        rows = torch.func.vmap(lambda row: (row @ self.weight).exp().sum())(x / 64)
        return tangent.square().mean() + (waves * waves.conj()).real.mean() + sparse.square().mean() + rows.mean()


@pytest.mark.parametrize("derivatives", [pytest.param(forward_over_reverse, marks=pytest.mark.slow), transformed])
def test_other_modes_of_differentiation_are_left_alone(derivatives):
    model = network()
    expected = derivatives(model)
    for codec in CODECS:
        with compressed_activations(model, codec, least_bytes=0):
            found = derivatives(model)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)), codec


def test_what_is_no_plain_dense_tensor_is_left_alone():
    model = Inside()
    (expected,) = torch.autograd.grad(model(X), model.weight)
    for codec in ("levels", "szx", "int8", "host"):
        with compressed_activations(model, codec, least_bytes=0):
            (found,) = torch.autograd.grad(model(X), model.weight)
        assert (found - expected).norm() / expected.norm() < 0.02, codec
