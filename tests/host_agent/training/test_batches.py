"""Batches from files are those from memory, in parts that the plan chose."""

import numpy as np
import pytest

from host_agent.training.batches import plain_batches, planned_batches, save
from host_agent.training.data import TRAIN_IMAGES, BatchOrder, Digits
from switchml.errors import ConfigError


def test_planned_batches_are_the_plain_ones(tmp_path):
    torch = pytest.importorskip("torch")
    images = np.arange(TRAIN_IMAGES * 64, dtype=np.float32).reshape(-1, 1, 8, 8)
    digits = Digits(images, np.arange(TRAIN_IMAGES), images[:0], np.arange(0))
    save(digits, tmp_path)
    orders = [BatchOrder(rank=rank, workers=2, batch_size=200, seed=4) for rank in range(2)]
    plain = zip(*(plain_batches(order, 5, digits) for order in orders), strict=True)
    planned = zip(*(planned_batches(order, 5, tmp_path) for order in orders), strict=True)
    steps = 0
    for expected, found in zip(plain, planned, strict=True):
        steps += 1
        labels = torch.cat([batch.labels for batch in found])
        assert sorted(labels.tolist()) == sorted(torch.cat([batch.labels for batch in expected]).tolist())
        assert torch.equal(torch.cat([batch.images for batch in found])[:, 0, 0, 0], labels * 64.0)
        assert [batch.weight for batch in found] == [len(batch.labels) / 200 for batch in found]
    assert steps == 5 and found[0].counters["steps"] == 5


def test_stages_share_the_parameters_of_the_whole():
    torch = pytest.importorskip("torch")
    from host_agent.training.model import DigitsNet, stages_of

    net, images = DigitsNet(), torch.randn(2, 1, 8, 8)
    for stages in (1, 2, 3, 4):
        x = images
        for part in stages_of(net, stages):
            assert list(part.parameters())
            x = part(x)
        assert torch.equal(x, net(images))
    with pytest.raises(ConfigError, match="5 stages of a network with 4 layers"):
        stages_of(net, 5)
