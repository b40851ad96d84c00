"""Counting torch modules on the meta device, beside counts by hand."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from emulator.jobs.workload import torch_modules  # noqa: E402
from switchml.errors import ConfigError  # noqa: E402


def test_linear_and_convolution_by_hand():
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 16 * 16, 10)
    )
    found = torch_modules.count(module, [(3, 16, 16)])
    assert found.parameters_of.tolist() == [3 * 8 * 9 + 8, 8 * 256 * 10 + 10]
    assert found.flops_of.tolist() == [2 * 256 * 27 * 8, 2 * 2048 * 10]
    assert found.elements_of[0] == 8 * 256  # what ReLU makes is counted where it makes it


def test_counts_do_not_depend_on_the_batch():
    module = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))
    one, other = (torch_modules.count(module, [(5,)], batch=b) for b in (2, 16))
    for name in ("parameters_of", "flops_of", "elements_of"):
        assert np.array_equal(getattr(one, name), getattr(other, name))


def test_shared_parameters_count_once():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = torch.nn.Embedding(100, 8), torch.nn.Linear(8, 100, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids):
            return self.head(self.embedding(ids))

    found = torch_modules.count(Tied(), [(4,)], [torch.int64])
    assert found.parameters == 800


def test_modules_by_name_and_mistakes():
    made = torch_modules.load("torch.nn:Transformer")
    assert next(made.parameters()).device.type == "meta"
    with pytest.raises(ConfigError, match="expected package.module:callable"):
        torch_modules.load("torch.nn:Transfomer")
    with pytest.raises(ConfigError, match="expected sizes such as 3x224x224"):
        torch_modules.shape("big")
    with pytest.raises(ConfigError, match="can't take inputs of shape"):
        torch_modules.count(torch.nn.Linear(5, 7), [(6,)])
