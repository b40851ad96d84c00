"""Networks with batch norms: their sizes are the papers', and they are judged by their running means."""

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist

from host_agent.training.data import Digits
from host_agent.training.model import MODELS
from host_agent.training.parallel import KINDS, SharedModel
from host_agent.training.worker import _accuracy

TWO_COLORS = 2 * 16 * 9
"""Parameters of the papers' first layers for two more colors."""


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(("name", "parameters"), [("resnet20", 269_722), ("densenet40", 1_019_722)])
def test_sizes(name, parameters):
    net = MODELS[name]()
    assert sum(each.numel() for each in net.parameters()) + TWO_COLORS == parameters
    assert net(torch.randn(3, 1, 8, 8)).shape == (3, 10)


@pytest.mark.parametrize("kind", KINDS)
def test_accuracy_is_that_of_the_running_means(group, kind):
    shared = SharedModel(kind, {}, "resnet20")
    for _ in range(3):
        shared.trained(torch.randn(8, 1, 8, 8) + 1)
    before = [each.clone() for each in shared.trained.buffers()]
    whole = shared.whole()
    images = np.random.default_rng(1).normal(size=(6, 1, 8, 8)).astype(np.float32)
    labels = whole.eval()(torch.from_numpy(images)).argmax(dim=1).numpy()
    whole.train()
    assert _accuracy(whole, Digits(images[:0], labels[:0], images, labels)) == 1
    assert whole.training and all(map(torch.equal, before, whole.buffers()))
