"""The backend with SWITCHML_PROTOCOL=v1: what goes to the switch, and what to Gloo."""

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

from host_agent.pytorch.backend import autoload  # noqa: E402
from tests.support.launch import LocalAggregator  # noqa: E402


@pytest.fixture
def group(monkeypatch):
    """A default group of one rank, in this process."""
    aggregator = LocalAggregator(v1=True)
    monkeypatch.setenv("SWITCHML_PROTOCOL", "v1")
    monkeypatch.setenv("SWITCHML_AGGREGATOR", aggregator.address)
    monkeypatch.setenv("SWITCHML_JOB", "torch v1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    autoload()
    dist.init_process_group("switchml", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()
    aggregator.stop()


def test_which_calls_go_to_the_switch(group):
    def calls() -> int:
        return group.agent.stats()["calls"]

    before = calls()
    for number, dtype in enumerate((torch.float32, torch.bfloat16, torch.int32), 1):
        x = torch.arange(5).to(dtype)
        dist.all_reduce(x)
        assert x.tolist() == [0, 1, 2, 3, 4] and calls() == before + number
    for dtype in (torch.float64, torch.int64):
        dist.all_reduce(torch.ones(3, dtype=dtype))
    dist.all_reduce(torch.ones(3), op=dist.ReduceOp.MAX)
    dist.broadcast(torch.ones(3), 0)
    dist.barrier()
    # Another session would wipe the default group's: sub-groups have none.
    part = dist.new_group([0])
    assert part.agent is None
    dist.all_reduce(torch.ones(3), group=part)
    assert calls() == before + 3
