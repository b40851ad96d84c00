"""What kernels take: waves of tiles, memory-bound kernels, and a plain loop beside the vectorized form."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.cluster import kernels
from emulator.cluster.accelerator import accelerators, constants, notes
from switchml.errors import ConfigError

A100 = accelerators()["a100-80g"]
SIZE = st.integers(1, 20_000)


def reference_s(row, device, precision="fp16"):
    """The same from the docstring, one kernel at a time."""
    c, (batch, m, n, k, moved, *_) = constants(), row
    element = kernels.ELEMENT_BYTES[precision]
    best = 0.0
    if m:
        moved = element * batch * (m * k + k * n + m * n)
        best = math.inf
        for high, wide in kernels.TILES:
            waves = math.ceil(batch * math.ceil(m / high) * math.ceil(n / wide) / device.processors)
            multiply = 2 * high * wide / (device.flops[precision] * c.gemm_efficiency / device.processors)
            read = element * (high + wide) / (device.cache_bytes_per_s * c.cache_efficiency / device.processors)
            best = min(best, waves * max(multiply, read) * (32 * math.ceil(k / 32) + c.tile_fill_steps))
    return max(best, moved / (device.memory_bytes_per_s * c.memory_efficiency)) + c.kernel_s


@given(st.lists(st.tuples(st.integers(1, 64), SIZE, SIZE, SIZE), min_size=1, max_size=5), st.floats(0, 1e10))
def test_kernels_as_in_the_reference(products, moved):
    rows = [kernels.gemm(m, n, k, batch) for batch, m, n, k in products] + [kernels.memory(moved)]
    found = kernels.seconds(np.array(rows), A100, constants())
    assert found == pytest.approx([reference_s(row, A100) for row in rows], rel=1e-9)


def start_bytes(rows, element):
    """Of what power of two rows that follow each other start at multiples, counted row by row; 16 at most."""
    starts = [element * size * number for size in rows for number in range(16)]
    return max(each for each in (1, 2, 4, 8, 16) if all(start % each == 0 for start in starts))


@given(st.lists(SIZE, min_size=1, max_size=2), st.sampled_from(["fp16", "tf32", "fp32"]))
def test_products_of_rows_that_start_anywhere_take_longer(rows, precision):
    here, aligned = kernels.gemm(512, 4096, 4096, rows=tuple(rows)), kernels.gemm(512, 4096, 4096)
    own, other = kernels.seconds(np.array([here, aligned]), A100, constants(), precision) - constants().kernel_s
    is_slow = precision != "fp32" and start_bytes(rows, kernels.ELEMENT_BYTES[precision]) < 16
    assert own / other == pytest.approx(A100.unaligned_times if is_slow else 1.0)


def test_a_few_tiles_more_than_processors_take_another_wave():
    """108 tiles of 256 x 128 are one wave of an A100; 120 waste most of a second one, or run in smaller tiles."""
    full, over = kernels.seconds(np.array([kernels.gemm(12 * 256, n * 128, 4096) for n in (9, 10)]), A100, constants())
    assert 1.2 < over / full < 2.0


def test_large_product_comes_near_the_sustained_peak():
    rows = np.array([kernels.gemm(8192, 8192, 8192)])
    rate = kernels.flops(rows) / kernels.seconds(rows, A100, constants())[0]
    assert 0.9 < rate / (A100.flops["fp16"] * constants().gemm_efficiency) <= 1.0


@pytest.mark.parametrize(("precision", "times"), [("bf16", 1.0), ("fp8", 2.0), ("mxfp8", 2.0), ("nvfp4", 4.0)])
def test_quantized_products_reach_their_own_peak(precision, times):
    """A large product is as many times faster as its peak is higher; what stays in half precision is not."""
    b200 = accelerators()["b200"]
    rows = np.array([kernels.gemm(16384, 16384, 16384), kernels.gemm(16384, 16384, 16384, half=True)])
    own_s, half_s = kernels.seconds(rows, b200, constants(), precision) - constants().kernel_s
    assert half_s / own_s == pytest.approx(times, rel=0.01)


@pytest.mark.parametrize(("name", "precision"), [("H100", "mxfp8"), ("H100", "nvfp4"), ("V100-16G", "bf16")])
def test_precisions_that_an_accelerator_lacks_are_refused(name, precision):
    with pytest.raises(ConfigError, match=f"{name[:4]}.*has no {precision}; it has"):
        kernels.seconds(np.array([kernels.gemm(8, 8, 8)]), accelerators()[name.lower()], constants(), precision)


def test_every_number_has_a_source():
    assert all(device.source for device in accelerators().values())
    assert all(note.source and note.meaning and note.unit for note in notes().values())
