"""What torch's functions do otherwise once the backend is known: without processes."""

from datetime import timedelta

import pytest

pytest.importorskip("torch")

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from host_agent.pytorch.torch_patches import _outliving_old_stores


def attempts(monkeypatch, failures, *args, **kwargs):
    """How often torch's `init_process_group` was called, whose store went away so many times, and each group's name."""
    monkeypatch.setattr(c10d._world, "group_count", 0)
    names = []

    def init_process_group(backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, store=None):
        names.append(c10d._process_group_name([], use_hashed_name=False))
        if len(names) <= failures:
            raise dist.DistNetworkError("Failed to recv, got 0 bytes")

    try:
        _outliving_old_stores(init_process_group)(*args, **kwargs)
    except dist.DistNetworkError:
        names.append("raised")
    return names


@pytest.mark.parametrize("backend", ["switchml", "SwitchML", "cpu:gloo,cuda:switchml"])
def test_a_rank_connects_again_where_the_store_goes_away(monkeypatch, backend):
    assert attempts(monkeypatch, 2, backend) == ["0", "0", "0"]
    assert attempts(monkeypatch, 2, backend=backend, timeout=timedelta(seconds=60)) == ["0", "0", "0"]


def test_not_for_longer_than_the_timeout_nor_with_a_given_store_nor_for_other_backends(monkeypatch):
    assert attempts(monkeypatch, 2, "switchml", timeout=timedelta(microseconds=1)) == ["0", "raised"]
    assert attempts(monkeypatch, 2, "switchml", store=dist.HashStore()) == ["0", "raised"]
    assert attempts(monkeypatch, 2, "gloo") == ["0", "raised"]
    assert attempts(monkeypatch, 2) == ["0", "raised"]
