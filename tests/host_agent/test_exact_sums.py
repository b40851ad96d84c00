"""`wire="exact"` end to end: sums of floats within one unit in the last place, whatever differs in magnitude."""

from fractions import Fraction

import numpy as np
import pytest

from host_agent.agent import HostAgent
from host_agent.core import format_of
from switchml.errors import ConfigError
from tests.support.agents import reduce_all, same_bits
from tests.support.reference_exact import unit_in_last_place


def apart(rank: int, numel: int, dtype: str) -> np.ndarray:
    """Values whose magnitudes differ by 2^180, element by element; the first ranks' large ones cancel."""
    generator = np.random.default_rng((7, rank))
    x = generator.standard_normal(numel) * 2.0 ** np.random.default_rng(7).integers(-90, 90, numel)
    x[::5] = (1e30, -1e30, 4.0)[rank]
    return x.astype(dtype)


@pytest.mark.parametrize("transport", ["udp", "shm"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_are_within_one_unit_in_the_last_place(join, transport, dtype):
    agents = join(3, wire="exact", transport=transport)
    assert {agent.wire for agent in agents} == {"exact"}
    arrays = [apart(rank, 3000, dtype) for rank in range(3)]
    results = reduce_all(agents, arrays)
    assert same_bits(results)
    assert results[0][0] == 4.0
    for i, value in enumerate(results[0].tolist()):
        true = sum(Fraction(float(array[i])) for array in arrays)
        assert abs(Fraction(value) - true) <= unit_in_last_place(true, dtype)
    lost = reduce_all(agents, arrays, wire="int32")[0]
    assert lost[0] == 0.0  # what the job's wire is for


def test_half_precision_needs_few_further_rounds(join):
    agents = join(2, wire="exact")
    generator = np.random.default_rng(3)
    arrays = [generator.standard_normal(100_000).astype("float16") for _ in agents]
    before = agents[0].stats()["repeats"]
    results = reduce_all(agents, arrays)
    np.testing.assert_array_equal(results[0], sum(array.astype("float64") for array in arrays).astype("float16"))
    assert agents[0].stats()["repeats"] - before < 100_000 / 256 / 4


def test_formats():
    assert format_of("float16", "exact") == "float16/exact" and format_of("float64", "exact") == "float64/exact"
    assert format_of("bfloat16", "int8") == "bfloat16/int8" and format_of("float32", "int8") == "float32/int8"
    assert format_of("float16", "int32") == "float16" and format_of("float64", "int8") == "float64"
    assert format_of("int64", "exact") == "int64"


def test_what_does_not_go_with_it(aggregator, join, monkeypatch):
    with pytest.raises(ConfigError, match="exact sums are dense"):
        HostAgent.join(aggregator.address, job="x", rank=0, world_size=1, wire="exact", sparse="on")
    monkeypatch.setenv("SWITCHML_WIRE", "exact")
    with pytest.raises(ConfigError, match="add floats in memory, which is not exact"):
        HostAgent.join(aggregator.address, job="x", rank=0, world_size=1, hierarchy="node")
    (agent,) = join(1)
    assert agent.wire == "exact"
    with pytest.raises(ConfigError, match="are dense"):
        agent.allreduce(np.ones(3, "float32"), sparse="on")
    assert agent.allreduce(np.ones(300, "float32"), sparse="auto").sum() == 300
    assert agent.allreduce(np.ones(300, "float32"), sparse="on", wire="int32").sum() == 300
