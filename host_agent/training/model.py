"""The networks for the digits: two convolutions and two linear layers, 71,754 parameters, enough for 98 % accuracy; and
a perceptron."""

import itertools

import torch
from torch import nn

from host_agent.training.convolutional import DenseNet40, ResNet20
from switchml.errors import ConfigError


class DigitsNet(nn.Module):
    """(n, 1, 8, 8) images to (n, 10) logits. `hidden`: units between the linear layers; each adds 523 parameters."""

    def __init__(self, hidden: int = 128) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 10),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        digits: torch.Tensor = self.layers(images)
        return digits


class DigitsPerceptron(nn.Module):
    """(n, 1, 8, 8) images to (n, 10) logits, with three linear layers, 26,122 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        digits: torch.Tensor = self.layers(images)
        return digits


def stages_of(net: nn.Module, stages: int) -> list[nn.Module]:
    """Split `layers` of one of MODELS into `stages` parts, which share its parameters; each begins with a layer that
    has some. Raises ConfigError."""
    layers = list(net.get_submodule("layers").children())
    starts = [i for i, layer in enumerate(layers) if any(True for _ in layer.parameters())]
    if not 1 <= stages <= len(starts):
        raise ConfigError(f"{stages} stages of a network with {len(starts)} layers that have parameters")
    first = [0, *(starts[number * len(starts) // stages] for number in range(1, stages)), len(layers)]
    return [nn.Sequential(*layers[start:end]) for start, end in itertools.pairwise(first)]


MODELS: dict[str, type[nn.Module]] = {
    "cnn": DigitsNet,
    "mlp": DigitsPerceptron,
    "resnet20": ResNet20,
    "densenet40": DenseNet40,
}
"""Models by the name in `worker.TrainingSettings.model`."""
