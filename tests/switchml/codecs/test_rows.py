"""Rows of embedding tables: errors within the bound, each distinct row once, and damaged streams refused."""

import itertools

import numpy as np
import pytest

from switchml.codecs import rows
from switchml.errors import PayloadError


def looked_up(seed: int, samples: int, distinct: int, width: int, scale: float = 1.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    table = (scale * rng.standard_normal((distinct, width))).astype(np.float32)
    return table[rng.integers(distinct, size=samples)]


def there_and_back(values: np.ndarray, bound: float) -> np.ndarray:
    return rows.decompress(np.frombuffer(rows.compress(values, bound), np.uint8), *values.shape)


@pytest.mark.parametrize("shape", [(0, 4), (1, 1), (3, 0), (40, 5), (600, 16)])
def test_no_value_moves_by_more_than_the_bound(shape):
    samples, width = shape
    for bound, scale in itertools.product((0.0, 1e-30, 1e-9, 1e-6, 1e-3, 0.05, 10.0), (1e-20, 1e-3, 1.0, 1e20)):
        values = looked_up(samples, samples, 30, width, scale)
        found = there_and_back(values, bound)
        assert found.dtype == np.float32 and found.shape == shape
        assert np.all(np.abs(found.astype(np.float64) - values) <= bound), (bound, scale)


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_is_kept_with_its_bits(special):
    values = looked_up(0, 50, 9, 4)
    values[7, 2] = special
    assert there_and_back(values, 0.1).tobytes() == values.tobytes()


def test_a_row_is_sent_once():
    few, many = (len(rows.compress(looked_up(1, samples, 10, 16), 0.01)) for samples in (100, 1_000))
    assert many - few == 900 * 4 // 8  # 4 bits say which of ten rows a sample has


def test_rows_within_the_bound_of_each_other_are_one():
    values = np.repeat(np.float32([[0.0, 1.0], [0.0, 1.001]]), 8, axis=0)
    assert rows.HEADER.unpack(rows.compress(values, 0.1)[: rows.HEADER.size])[:2] == (16, 1)


def test_more_rows_than_16_bits_can_number():
    values = looked_up(2, 70_000, 70_000, 2)
    values[-1] = values[0]
    assert np.abs(there_and_back(values, 1e-5) - values).max() <= 1e-5


def test_damaged_streams_are_refused_or_have_the_right_shape():
    rng, values = np.random.default_rng(3), looked_up(3, 60, 20, 5)
    for bound in (0.0, 0.05):
        stream = np.frombuffer(rows.compress(values, bound), np.uint8)
        refused = 0
        for _ in range(300):
            damaged = stream.copy()
            damaged[rng.integers(min(40, stream.size))] = rng.integers(256)
            damaged = damaged[: rng.choice([stream.size, rng.integers(stream.size)])]
            try:
                assert rows.decompress(damaged, 60, 5).shape == (60, 5)
            except PayloadError:
                refused += 1
        assert refused > 100
    with pytest.raises(PayloadError, match="60 samples, expected 61"):
        rows.decompress(stream, 61, 5)
    with pytest.raises(PayloadError, match="not those of 60 samples of 6"):
        rows.decompress(stream, 60, 6)
