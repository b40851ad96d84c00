"""The two compiled engines against the plain simpy writing, on random jobs; and small jobs worked out by hand."""

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emulator.replay.conditions import Conditions, Pause
from emulator.replay.engine import replay
from emulator.replay.reference import Reference
from emulator.workload.builder import GraphBuilder
from emulator.workload.checks import check
from emulator.workload.costs import Costs, Fabric
from emulator.workload.graph import Collective, Kind, Order
from switchml.errors import BudgetSpent, ConfigError, Deadlock

import replay_graphs as graphs

thorough = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


def agree(case, conditions=None, *, engine="auto", exactly=True):
    played = replay(case.graph, case.costs, conditions, engine=engine)
    reference = Reference(case.graph, case.costs, conditions)
    span_s = reference.run()
    same = (
        np.testing.assert_array_equal
        if exactly
        else lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
    )
    same(played.start_s, reference.start_s)
    same(played.end_s, reference.end_s)
    same(played.meeting_start_s, reference.meeting_start_s)
    same(played.makespan_s, span_s)
    return played


@thorough
@given(case=graphs.cases(), data=st.data())
def test_sweep_is_the_reference(case, data):
    conditions = data.draw(graphs.conditions(len(case.graph.ranks)))
    assert agree(case, conditions, exactly=False).engine == "sweep"


@thorough
@given(case=graphs.cases())
def test_both_engines_and_the_reference_are_equal_without_noise(case):
    agree(case, engine="sweep")
    agree(case, engine="calendar")


@thorough
@given(case=graphs.cases(orders=(Order.READY, Order.PROGRAM)))
def test_calendar_is_the_reference_where_streams_choose(case):
    agree(case, engine="calendar")


@thorough
@given(case=graphs.cases(with_links=True), data=st.data())
def test_calendar_is_the_reference_where_links_are_shared(case, data):
    conditions = data.draw(graphs.conditions(len(case.graph.ranks), overlap=True))
    agree(case, conditions, engine="calendar", exactly=False)
