"""Numbers with units: every spelling, and what is refused."""

import pytest

from switchml import units
from switchml.errors import ConfigError


@pytest.mark.parametrize(("kind", "text", "value"), [
    (units.SIZE, "25MB", 25e6), (units.SIZE, "25MiB", 25 * 2**20), (units.SIZE, "25M", 25 * 2**20),
    (units.SIZE, "1.5 kib", 1536), (units.SIZE, "300B", 300), (units.RATE, "200mbit", 200e6),
    (units.RATE, "10gbit", 10e9), (units.RATE, "10Gb/s", 10e9), (units.RATE, "10GB/s", 80e9),
    (units.RATE, "1GiB/s", 8 * 2**30), (units.TIME, "2ms", 0.002), (units.TIME, "25us", 25e-6),
    (units.TIME, "1.5h", 5400), (units.COUNT, "300B", 300e9), (units.COUNT, "1k", 1000), (units.COUNT, "1_000", 1000),
    (units.COUNT, "2.5e3", 2500), (units.COUNT, "-3", -3),
])  # fmt: skip
def test_spellings(kind, text, value):
    assert kind.parse(text) == value


@pytest.mark.parametrize(("kind", "text"), [
    (units.SIZE, "25"), (units.SIZE, "25 lots"), (units.SIZE, "MB"), (units.SIZE, ""), (units.SIZE, "1e999MB"),
    (units.RATE, "10gigabit"), (units.RATE, "10"), (units.TIME, "2 fortnights"), (units.COUNT, "1k2"),
    (units.COUNT, "nan"),
])  # fmt: skip
def test_what_is_refused_with_an_example(kind, text):
    with pytest.raises(ConfigError, match="such as"):
        kind.parse(text)


@pytest.mark.parametrize(("name", "text", "value"), [
    ("timeout_s", "2ms", 0.002), ("--timeout-s", "2", 2), ("mtbf_hours", "30min", 0.5), ("rate_bps", "10gbit", 10e9),
    ("bytes_per_s", "10gbit", 1.25e9), ("total_bytes_per_s", "100e9", 100e9), ("bucket_bytes", "25MiB", 25 * 2**20),
    ("packets_per_s", "1G", 1e9), ("tokens", "300B", 300e9),
])  # fmt: skip
def test_a_name_says_the_unit(name, text, value):
    assert units.parse_named(name, text) == value


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(84.99e9, "79.2 GiB"), (2**30, "1.0 GiB"), (0.5e9, "0.5 GiB"), (2**20, "1.0 MiB"), (0, "0.0 GiB")],
)
def test_memory_is_in_powers_of_two(size_bytes, text):
    assert units.memory_text(size_bytes) == text
