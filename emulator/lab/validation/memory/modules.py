"""Small models for measuring torch's allocations: a GPT built from plain torch modules, a convolutional network, and
mixed precision with fp32 master weights."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from emulator.jobs.workload.models import Transformer

PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
ATTENTION = (torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,)


class Layer(nn.Module):
    """A pre-norm transformer layer: norm, attention, norm, MLP, each half with a residual connection."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        h = model.hidden
        self.heads = model.heads
        self.norms = nn.ModuleList((nn.LayerNorm(h), nn.LayerNorm(h)))
        self.qkv, self.out = nn.Linear(h, 3 * h), nn.Linear(h, h)
        self.mlp = nn.Sequential(nn.Linear(h, model.width), nn.GELU(), nn.Linear(model.width, h))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, h = x.shape
        q, k, v = (
            part.view(batch, tokens, self.heads, h // self.heads).transpose(1, 2) for part in self.qkv(x).split(h, 2)
        )
        context = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: torch.Tensor = self.out(context.transpose(1, 2).reshape(batch, tokens, h))
        return out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norms[0](x))
        widened: torch.Tensor = self.mlp(self.norms[1](x))
        return x + widened


class GPT(nn.Module):
    """A GPT whose forward returns the loss of predicting each token from those before it."""

    def __init__(self, model: Transformer, recompute: str) -> None:
        super().__init__()
        self.tokens = nn.Embedding(model.vocabulary, model.hidden)
        self.positions = nn.Embedding(model.sequence, model.hidden)
        self.layers = nn.ModuleList(Layer(model) for _ in range(model.layers))
        self.norm = nn.LayerNorm(model.hidden)
        self.head = nn.Linear(model.hidden, model.vocabulary, bias=False)
        if model.tied_embedding:
            self.head.weight = self.tokens.weight
        self.recompute = recompute

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = self.run(layer, x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), ids.flatten())

    def run(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor
        if self.recompute == "none":
            found = layer(x)
            return found
        options: dict[str, Any] = {}
        if self.recompute == "operators":
            options["context_fn"] = lambda: create_selective_checkpoint_contexts(_every_other_product())
        found = checkpoint(layer, x, use_reentrant=False, preserve_rng_state=False, **options)
        return found


def _every_other_product() -> Callable[..., CheckpointPolicy]:
    """Selective checkpointing policy of torchtitan: save attention and every other GEMM."""
    seen = {False: 0, True: 0}

    def policy(context: Any, function: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        if function in PRODUCTS:
            seen[context.is_recompute] += 1
        is_stored = function in ATTENTION or (function in PRODUCTS and seen[context.is_recompute] % 2 == 1)
        return CheckpointPolicy.MUST_SAVE if is_stored else CheckpointPolicy.PREFER_RECOMPUTE

    return policy


def network(channels: int = 16) -> nn.Module:
    """Three stages of two convolutions with batch norm, a pooling after each, and a classifier."""
    layers: list[nn.Module] = []
    before = 3
    for stage in range(3):
        for _ in range(2):
            layers += [nn.Conv2d(before, channels << stage, 3, padding=1), nn.BatchNorm2d(channels << stage), nn.ReLU()]
            before = channels << stage
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


class Optimizer:
    """Adam, or SGD with momentum, on all weights at once. Half-precision weights have an fp32 master copy each, and are
    updated one by one."""

    def __init__(self, parameters: Iterable[nn.Parameter], name: str) -> None:
        self.weights = list(parameters)
        self.masters: list[torch.Tensor] = list(self.weights)
        self.has_masters = self.weights[0].dtype != torch.float32
        if self.has_masters:
            self.masters = [weight.detach().float() for weight in self.weights]
        groups = [[master] for master in self.masters] if self.has_masters else [self.masters]
        self.each = [_optimizer(group, name, foreach=len(group) > 1) for group in groups]

    def step(self) -> None:
        """Update all weights."""
        if not self.has_masters:
            self.each[0].step()
            return
        for weight, master, optimizer in zip(self.weights, self.masters, self.each, strict=True):
            assert weight.grad is not None
            master.grad = weight.grad.float()
            optimizer.step()
            master.grad = None
            weight.data.copy_(master)


def _optimizer(weights: list[torch.Tensor], name: str, foreach: bool) -> torch.optim.Optimizer:
    if name == "adam":
        return torch.optim.Adam(weights, foreach=foreach)
    return torch.optim.SGD(weights, lr=1e-3, momentum=0.9, foreach=foreach)
