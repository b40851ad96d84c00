"""Counts of collectives by the way they went (host_agent/pytorch/counts.py), and what methods count as."""

import threading

import pytest

pytest.importorskip("torch")

from host_agent.pytorch import counts
from host_agent.pytorch.collectives import kind_of
from host_agent.pytorch.process_group import GLOO_METHODS


class Agent:
    is_forked = False

    def __init__(self):
        self.reports, self.told = [], threading.Event()

    def report_counts(self, calls, loading):
        self.reports.append(calls)
        self.loading = loading
        self.told.set()


def test_reports_are_sums_and_rare(monkeypatch):
    monkeypatch.setattr(counts, "PERIOD_S", 0.01)
    ours, agent = counts.Counts(), Agent()
    ours.add("broadcast")  # before there is an agent, as a group's set-up may
    ours.report_to(agent)
    for _ in range(50):
        ours.add("all_gather")
        ours.add("send", counts.GLOO)
    assert agent.told.wait(100)
    ours.close()
    assert agent.reports[-1] == {"broadcast": 1, "all_gather": 50, "send/gloo": 50}
    assert len(agent.reports) < 50
    ours.add("all_gather")
    assert len(agent.reports) < 50, "nobody is told any more"


def test_the_planned_loader_is_reported_too(monkeypatch):
    np = pytest.importorskip("numpy")
    from host_agent.loading import PlannedLoader

    loader = PlannedLoader(np.arange(12), 3, 1, order="sequential")
    next(iter(loader))
    monkeypatch.setattr(counts, "PERIOD_S", 0.01)
    ours, agent = counts.Counts(), Agent()
    ours.report_to(agent)
    ours.add("all_reduce")
    assert agent.told.wait(100)
    ours.close()
    assert agent.loading["steps"] == 1 and agent.loading["storage_samples"] >= 3
    loader.close()


def test_methods_and_their_collectives():
    kinds = {method: kind_of(method) for method in GLOO_METHODS}
    assert kinds["_allgather_base"] == kinds["allgather_into_tensor_coalesced"] == "all_gather"
    assert kinds["reduce_scatter_tensor_coalesced"] == kinds["_reduce_scatter_base"] == "reduce_scatter"
    assert kinds["reduce"] == "reduce" and kinds["alltoall_base"] == kinds["all_to_all_single"] == "all_to_all"
    none = {method for method, kind in kinds.items() if kind is None}
    assert none == {
        method for method in GLOO_METHODS if method.startswith(("get_", "_get_", "_set_", "_start", "_end"))
    }
