"""Every number of a description has a range, which is checked wherever the description comes from."""

import dataclasses
import math
import typing

import pytest

import switchml
from emulator.cluster.cluster import Cluster
from emulator.jobs.description import Request, request
from emulator.jobs.workload.job import Job
from emulator.jobs.workload.models import Transformer
from emulator.networks.netsim.config import NetworkConfig
from emulator.peers.settings import PeerSettings
from emulator.ranges import Range, Ranged, number
from switchml.errors import ConfigError

ELSEWHERE = {Request: {"switch"}, NetworkConfig: {"slow_hosts"}}
"""Fields of another class, which checks them: the cluster's Switch, LinkConfig."""
ROOTS = (Request, Cluster, Transformer, NetworkConfig, PeerSettings)


def kinds(hint) -> set[type]:
    """The types inside a hint."""
    arguments = typing.get_args(hint)
    return {hint} if not arguments else set().union(*map(kinds, arguments))


def described(cls: type, found: dict[type, None]) -> dict[type, None]:
    """A dataclass and those of its fields."""
    found[cls] = None
    for hint in typing.get_type_hints(cls).values():
        for kind in kinds(hint) - found.keys():
            if dataclasses.is_dataclass(kind):
                described(kind, found)
    return found


@pytest.mark.parametrize("cls", [cls for root in ROOTS for cls in described(root, {})], ids=lambda cls: cls.__name__)
def test_every_number_has_a_range(cls):
    hints = typing.get_type_hints(cls)
    numbers = [each.name for each in dataclasses.fields(cls) if kinds(hints[each.name]) & {int, float}]
    without = {each.name for each in dataclasses.fields(cls) if each.name in numbers and "range" not in each.metadata}
    assert without == ELSEWHERE.get(cls, set())
    assert issubclass(cls, Ranged) or set(numbers) == without


@pytest.mark.parametrize(("range", "inside", "outside", "text"), [
    (Range(1, 1_000_000), (1, 1_000_000), (0, 1_000_001, math.nan, math.inf), "1 to 1,000,000"),
    (Range(0, 1e33, "(]"), (1e-100, 1e33), (0, 5e-324, 1e34), "more than 0 and at most 1e33"),
    (Range(0, 1, "[)"), (0, 0.999), (1, -1e-9), "at least 0 and less than 1"),
])  # fmt: skip
def test_ranges(range, inside, outside, text):
    assert all(value in range for value in inside) and not any(value in range for value in outside)
    assert str(range) == text


@pytest.mark.parametrize(("tables", "message"), [
    ({"run": {"mtbf_hours": 5e-324}}, "mtbf_hours is 5e-324; expected .*, 1e-100 or more if not 0"),
    ({"memory": {"offload_bucket": 1e-300}}, "offload_bucket is 1e-300; expected .*, 1e-100 or more if not 0"),
    ({"memory": {"offload_bucket": 0.5}}, "offload_bucket is 0.5 parameters; expected 0, or at least 1"),
])  # fmt: skip
def test_numbers_next_to_nothing_are_refused(tables, message):
    with pytest.raises(ConfigError, match=message):
        request({"model": "gpt2-124m", "job": {"gpus": 8}, **tables})


def test_tables_and_lists_are_checked_number_by_number():
    @dataclasses.dataclass(frozen=True)
    class Described(Ranged):
        rates: dict[int, float] = number(Range(1, 2), factory=dict)
        pairs: tuple[tuple[int, ...], ...] = number(Range(0, 9), ())

    Described(rates={3: 1.5}, pairs=((0, 9),))
    with pytest.raises(ConfigError, match=r"rates\.3 is nan; expected 1 to 2"):
        Described(rates={3: math.nan})
    with pytest.raises(ConfigError, match=r"pairs\[0\]\[1\] is 2\*\*16609 or more; expected 0 to 9"):
        Described(pairs=((0, 10**5000),))


@pytest.mark.parametrize(("tables", "message"), [
    ({"job": {"batch": 10**9}}, "the job, job: batch is 1000000000; expected 0 to 100,000,000"),
    ({"job": {"gpus": 10**12}}, "the job, job: gpus is 1000000000000; expected 1 to 1,000,000"),
    ({"job": {"zero": 3, "fsdp": {"prefetch": -1}}}, "job, fsdp: prefetch is -1; expected 0 to 10,000"),
    ({"noise": {"seed": -1}}, "noise: seed is -1; expected 0 to 4,294,967,295"),
    ({"switch": {"slots": 0.0}}, "switch: slots is 0; expected 1 to"),
    ({"network": {"loss": 0.6}}, "network: loss is 0.6; expected 0 to 0.5"),
    ({"run": {"steps": -1.0}}, "run: steps is -1.0; expected 0 to 1e12"),
    ({"data": {"epochs": 10**6}}, "data: epochs is 1000000; expected 1 to 1,000"),
    ({"memory": {"pruned": 1.0}}, "memory: pruned is 1.0; expected at least 0 and less than 1"),
])  # fmt: skip
def test_errors_name_field_value_and_range(tables, message):
    with pytest.raises(ConfigError) as caught:
        request({"model": "gpt3-13b", **tables})
    assert message in str(caught.value)


@pytest.mark.slow
def test_large_jobs_stay_allowed():
    found = switchml.emulate(
        model="llama3-405b", cluster="h100-grand-teton", gpus=16_384, tp=8, cp=16, pp=16, sequence=131_072, batch=128,
        recompute="full", ignore_memory=True,
    )  # fmt: skip
    assert 0 < found.mfu < 1
    assert Job(batch=2**23).batch == 2**23
