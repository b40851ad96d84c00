"""Gradients of operators with compressed activations, beside those without: tiny and huge values, saturation."""

import random

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from host_agent.memory import compressed_activations  # noqa: E402
from host_agent.memory.operators import Operators, Rule  # noqa: E402

ERRORS = {"levels": 0.03, "szx": 0.03, "fp16": 0.03, "int8": 0.1}
"""Relative errors of a layer's gradient. Most are a tenth of that."""
SCALES = (1e-3, 1.0, 30.0, 1e3)
ROWS, COLUMNS = torch.logspace(-4, 2, 64)[:, None], torch.logspace(-3, 1, 64)
CLASSES = torch.arange(64) % 7

PRECISE = {
    "log": lambda h: (h.square() + 1e-9).log(),
    "log of sigmoid": lambda h: h.sigmoid().pow(4).clamp_min(1e-30).log(),
    "log of 1 - sigmoid": lambda h: (1 - h.sigmoid() + 1e-9).log(),
    "log of softmax": lambda h: (h.softmax(1) + 1e-30).log(),
    "log1p": lambda h: h.square().log1p(),
    "quotient": lambda h: 1 / (h.square() + 1e-6),
    "reciprocal": lambda h: (h.abs() + 1e-3).reciprocal(),
    "sqrt": lambda h: (h.square() + 1e-9).sqrt(),
    "rsqrt": lambda h: (h.square() + 1e-6).rsqrt(),
    "pow": lambda h: (h.abs() + 1e-4).pow(-1.5),
    "root": lambda h: (h.abs() + 1e-6) ** 0.5,
    "exp": lambda h: h.clamp(max=20).exp(),
    "expm1": lambda h: h.clamp(max=20).expm1(),
    "tanh": torch.tanh,
    "atanh of tanh": lambda h: (h.tanh() * 0.9999).atanh(),
    "sigmoid": torch.sigmoid,
    "softmax": lambda h: h.softmax(1),
    "softmax, masked": lambda h: h.masked_fill(torch.arange(64) > 9, -1e9).softmax(1),
    "cross entropy": lambda h: F.cross_entropy(h, CLASSES, reduction="none"),
    "cross entropy, learned": lambda h: F.cross_entropy(h, h.argmax(1), reduction="none"),
    "products": lambda h: h * h * h,
}
CENTERED = {
    "layer norm": lambda h: F.layer_norm(h, (64,)),
    "layer norm, offset": lambda h: F.layer_norm(h + 100, (64,)),
    "layer norm, rows": lambda h: F.layer_norm(h * ROWS, (64,), eps=1e-12),
    "batch norm": lambda h: F.batch_norm(h, None, None, training=True),
    "batch norm, offset": lambda h: F.batch_norm(h * COLUMNS + 100, None, None, training=True),
    "group norm": lambda h: F.group_norm(h * COLUMNS + 10, 8),
    "instance norm": lambda h: F.instance_norm((h * COLUMNS + 10).view(8, 8, 64)).view(64, 64),
    "rms norm": lambda h: F.rms_norm(h * ROWS, (64,)),
}
SMOOTH = {
    "gelu": F.gelu,
    "silu": F.silu,
    "softplus": F.softplus,
    "log sigmoid": F.logsigmoid,
    "mish": F.mish,
    "elu": F.elu,
    "in place": lambda h: F.elu(h * 1, inplace=True),
    "glu": F.glu,
    "sin": torch.sin,
    "erf": torch.erf,
    "log-sum-exp": lambda h: h.logsumexp(1),
}
EXACT = {
    "amax": lambda h: h.amax(1),
    "largest of all": lambda h: h.max(),
    "infinity norm": lambda h: h.norm(float("inf"), dim=1),
    "maximum": lambda h: torch.maximum(h, h.t()),
    "clamp at a limit": lambda h: (h.detach().round() + h - h.detach()).clamp(-1, 1),
    "acos": lambda h: (h.tanh() * 0.99999).acos(),
    "atan2": lambda h: torch.atan2(h, h.t() * 1e-2),
    "lgamma": lambda h: (h.abs() + 1e-3).lgamma(),
    "x log x": lambda h: torch.xlogy(h.abs(), h.abs()),
    "product of all": lambda h: (h.clamp(-1, 1).abs() + 0.5).prod(1).log(),
    "variance": lambda h: (h + 100).var(1),
    "standardized": lambda h: (h + 100) / (h + 100).std(1, keepdim=True),
    "x / (|x| + c)": lambda h: h / (h.abs() + 1e-4),
    "squares": lambda h: F.mse_loss(h + 100, h.detach() + 99.99, reduction="none"),
    "normalized": lambda h: F.normalize(h * ROWS),
    "cosine": lambda h: F.cosine_similarity(h * ROWS, h.t()),
    "distances": lambda h: torch.cdist(h, h.t() * 1.0001),
    "binary, soft": lambda h: F.binary_cross_entropy_with_logits(h, (h.detach() + 1e-3).sigmoid(), reduction="none"),
    "divergence": lambda h: F.kl_div(h.log_softmax(1), h.t().softmax(1).detach(), reduction="none"),
    "attention": lambda h: F.scaled_dot_product_attention(h[None], h[None].flip(2), h[None] * 2)[0],
}  # fmt: skip
ALL = PRECISE | CENTERED | SMOOTH | EXACT


class Network(nn.Module):
    def __init__(self, names, scales):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(64, 64) for _ in names])
        self.operators, self.scales = [ALL[name] for name in names], scales
        self.weights = torch.randn(64, 64)

    def forward(self, x):
        for layer, operator, scale in zip(self.layers, self.operators, self.scales, strict=True):
            x = operator(layer(torch.relu(x) if x.shape == (64, 64) else x.reshape(-1, 1).expand(-1, 64)) * scale)
        return (x * self.weights.flatten()[: x.numel()].view(x.shape)).mean()


X = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))


def gradients(model, x=X):
    """One per layer: a bias before a normalization has none of its own."""
    model.zero_grad()
    model(x).backward()
    return [torch.cat([layer.weight.grad.flatten(), layer.bias.grad]) for layer in model.layers]


def largest(found, expected):
    return max(float((a - b).norm() / b.norm()) for a, b in zip(found, expected, strict=True))


def error(codec, names, scales):
    """Relative to that of the codec, or to the gradient's condition: the rounding errors of float32, as much larger as
    those of the codec are."""
    model = Network(names, scales)
    expected = gradients(model)
    if not all(1e-30 < gradient.norm() < 1e30 for gradient in expected):
        return 0.0
    with compressed_activations(model, codec, error=1e-3, least_bytes=0):
        found = gradients(model)
    exact = gradients(model.double(), X.double())
    return largest(found, expected) / max(ERRORS[codec], largest(expected, exact) * ERRORS[codec] / 1e-6)


@pytest.mark.parametrize("name", ALL)
def test_an_operator(name):
    found = {(codec, scale): error(codec, ["products", name], [1.0, scale]) for codec in ERRORS for scale in SCALES}
    assert not {key: error for key, error in found.items() if not error < 1}


@pytest.mark.slow
@pytest.mark.parametrize("codec", ERRORS)
def test_random_networks(codec):
    failed = []
    for seed in range(300):
        rng = random.Random(seed)
        names = rng.choices(sorted(ALL), k=rng.choice((1, 2, 3)))
        names = [name for name in names[:-1] if ALL[name](torch.eye(64)).shape == (64, 64)] + names[-1:]
        scales = [10 ** rng.uniform(-3, 2) for _ in names]
        if not (found := error(codec, names, scales)) < 1:
            failed.append((seed, names, scales, found))
    assert not failed


class Unseen(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0]


@torch.jit.script
def scripted(x):
    return x.amax(1)


@pytest.mark.parametrize(
    "function", [Unseen.apply, scripted, lambda h: torch.compile(torch.amax, backend="aot_eager")(h, 1)]
)
def test_what_no_function_is_seen_to_save_is_left_alone(function):
    weight = torch.randn(64, 64, requires_grad=True)
    with compressed_activations(nn.Identity(), error=0.1, least_bytes=0) as activations, activations.saving(X):
        loss = function(X @ weight).sum()
    (found,) = torch.autograd.grad(loss, weight)
    (expected,) = torch.autograd.grad(function(X @ weight).sum(), weight)
    assert torch.equal(found, expected), "no float is compressed"


def test_a_tensor_that_two_operators_save_serves_both():
    """In either order; what one keeps whole is not compressed for the next."""
    weight = torch.randn(64, 64, requires_grad=True)
    x = X.abs() + 1e-4

    def result(first, second):
        with compressed_activations(nn.Identity(), least_bytes=0) as activations, activations.saving(x):
            h = x * weight.abs()
            loss = (first(h) + second(h)).sum()
        return torch.autograd.grad(loss, weight)[0], activations.stats()["tensors"]

    def product(h):
        return h @ weight

    expected = torch.autograd.grad((product(x * weight.abs()) + (x * weight.abs()).log()).sum(), weight)[0]
    for pair in ((product, torch.log), (torch.log, product)):
        found, _ = result(*pair)
        assert (found - expected).norm() / expected.norm() < 3e-3
    assert result(torch.log, product)[1] < result(product, torch.log)[1]
    assert result(lambda h: h.amax(1, keepdim=True), product)[1] == 0


def rules(function, *args):
    """Name and rule of what each call of a torch function saves."""
    found = []
    operators = Operators()

    def pack(tensor):
        found.append((operators._call[0], operators.rule(tensor)))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), operators:
        function(*args)
    return dict(found)


def test_functions_of_functions_are_seen_into(monkeypatch):
    """Also functions that someone has put in place of torch's."""
    attention = nn.MultiheadAttention(64, 4)
    found = rules(attention, X, X, X)
    assert found["linear"] is Rule.LINEAR and Rule.EXACT not in (found["linear"], found["softmax"])
    assert rules(F.normalize, X * nn.Parameter(X)).keys() == {"norm", "clamp_min", "div"}
    pooled = rules(lambda: nn.MaxPool2d(2)((X * nn.Parameter(X)).view(1, 1, 64, 64)))
    assert pooled == {"mul": Rule.PRECISE, "max_pool2d": Rule.LINEAR}
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda q, k, v, *_: q * k * v)
    attention.eval()
    replaced = rules(lambda: attention(X, X, X, need_weights=False))
    assert "scaled_dot_product_attention" not in replaced and replaced["mul"] is Rule.PRECISE


@pytest.mark.slow
@pytest.mark.parametrize("error", ["auto", 1e-3])
@pytest.mark.parametrize("last, is_left", [(nn.ReLU(), False), (nn.Softmax(1), True)])
def test_a_compiled_model_is_compressed_if_all_its_operators_bear_it(last, is_left, error):
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), last)
    model = torch.compile(layers, backend="aot_eager")
    with compressed_activations(model, error=error, least_bytes=0) as activations:
        model(X).square().sum().backward()
        eager = activations.stats()["tensors"]
        model(X).square().sum().backward()
        assert (activations.stats()["tensors"] == eager) is is_left and eager > 0
