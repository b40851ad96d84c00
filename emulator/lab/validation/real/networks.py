"""Small networks for the digits of `switchml train`, also usable by `emulate --model
emulator.lab.validation.real.networks:Cnn`."""

import torch
from torch import nn
from torch.nn import functional


class Cnn(nn.Module):
    """Three convolutions with batch normalization: (n, 1, 8, 8) to (n, 10)."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in ((1, 32), (32, 32), (32, 64)):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 16, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(images)
        return logits

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)


class Transformer(nn.Module):
    """Two layers of width 64 over 16 patches of 2 x 2 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(4, 64), nn.Linear(64, 10)
        self.position = nn.Parameter(0.1 * torch.randn(16, 64))
        layer = nn.TransformerEncoderLayer(64, 4, 256, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        patches = functional.unfold(images, 2, stride=2).transpose(1, 2)
        logits: torch.Tensor = self.head(self.layers(self.embed(patches) + self.position).mean(1))
        return logits

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=2e-3)


MODELS: dict[str, type[Cnn] | type[Transformer]] = {"cnn": Cnn, "transformer": Transformer}
INPUT_SHAPE = "1x8x8"
