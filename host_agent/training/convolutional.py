"""Networks that papers train on CIFAR-10, here for the digits: ResNet-20 (He et al., CVPR 2016, 269,434 parameters) and
DenseNet-40 with a growth of 12 (Huang et al., CVPR 2017, 1,019,434 parameters). Layers are the papers', but for the
one color of an image; it has 8 x 8 pixels in place of 32 x 32.
"""

import torch
from torch import nn
from torch.nn import functional


class ResNet20(nn.Module):
    """(n, 1, 8, 8) images to (n, 10) logits: three stages of three residual blocks, of 16, 32 and 64 channels."""

    def __init__(self) -> None:
        super().__init__()
        blocks = [_Residual(16, 16, 1) for _ in range(3)]
        for channels in (32, 64):
            blocks += [_Residual(channels // 2, channels, 2), *(_Residual(channels, channels, 1) for _ in range(2))]
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), *blocks, *_head(64)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        digits: torch.Tensor = self.layers(images)
        return digits


class DenseNet40(nn.Module):
    """(n, 1, 8, 8) images to (n, 10) logits: three blocks of twelve layers, each of which adds 12 channels."""

    def __init__(self, growth: int = 12, layers: int = 12) -> None:
        super().__init__()
        channels = 16
        parts: list[nn.Module] = [nn.Conv2d(1, channels, 3, padding=1, bias=False)]
        for block in range(3):
            if block:
                parts += [*_activated(channels), nn.Conv2d(channels, channels, 1, bias=False), nn.AvgPool2d(2)]
            for _ in range(layers):
                parts.append(_Dense(channels, growth))
                channels += growth
        self.layers = nn.Sequential(*parts, *_activated(channels), *_head(channels))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        digits: torch.Tensor = self.layers(images)
        return digits


class _Residual(nn.Module):
    """Two convolutions beside a shortcut, which has no parameters: it leaves pixels out and pads channels by zeros."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self._stride, self._more = stride, after - before
        self.layers = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, padding=1, bias=False),
            *_activated(after),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        shortcut = functional.pad(images[:, :, :: self._stride, :: self._stride], (0, 0, 0, 0, 0, self._more))
        return functional.relu(self.layers(images) + shortcut)


class _Dense(nn.Module):
    """Adds the channels of one convolution to its input's."""

    def __init__(self, before: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*_activated(before), nn.Conv2d(before, growth, 3, padding=1, bias=False))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.cat([images, self.layers(images)], dim=1)


def _activated(channels: int) -> list[nn.Module]:
    return [nn.BatchNorm2d(channels), nn.ReLU()]


def _head(channels: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]
