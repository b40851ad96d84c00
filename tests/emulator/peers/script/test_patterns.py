"""Patterns of other people's training scripts and of packages that they use."""

import pytest

from tests.support.play import play

pytest.importorskip("torch")

TRAIN = """
import torch, torch.nn as nn
model = nn.Linear(512, 512).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    model(torch.ones(8, 512, device="cuda")).sum().backward()
    optimizer.step()
"""


def test_parameters_made_by_their_type(tmp_path):
    """Accelerate replaces a parameter by one of the same type: on meta, of host values, or on the GPU."""
    text = """
    weight = nn.Linear(512, 512).weight
    on_meta = type(weight)(weight.to("meta"), requires_grad=weight.requires_grad, **vars(weight))
    assert on_meta.is_meta and type(on_meta) is nn.Parameter and on_meta.requires_grad
    here = type(weight)(torch.full((3,), 2.0), requires_grad=False)
    assert isinstance(here, nn.Parameter) and here.tolist() == [2.0] * 3 and not here.requires_grad
    there = type(model.weight)(model.weight.data * 2)
    assert there.is_cuda and isinstance(there, nn.Parameter) and there.requires_grad
    assert nn.Linear(512, 512).to("meta").to_empty(device="cuda").weight.is_cuda
    """
    outcome = play(tmp_path, TRAIN.replace("for step", text.replace("\n    ", "\n") + "for step"))
    assert "result" in outcome, outcome
