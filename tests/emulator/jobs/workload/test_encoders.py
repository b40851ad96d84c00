"""Attention without a causal mask: pairs counted one by one, and its rates beside those of half the matrix."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.cluster.accelerator import accelerators
from emulator.jobs.workload.implementations import attended, attention_kernels
from emulator.jobs.workload.models import load


@given(st.integers(1, 40), st.integers(1, 45))
def test_pairs_as_counted(tokens, window):
    before, after = window // 2, (window - 1) // 2
    counted = sum(-before <= key - query <= after for query in range(tokens) for key in range(tokens))
    assert attended(tokens, window, is_causal=False) == (counted if window < tokens else tokens**2)


@pytest.mark.parametrize("name", sorted(attention_kernels()))
def test_a_full_matrix_has_a_higher_rate_than_its_half(name):
    """Each query has twice as many keys, and no block is half masked."""
    kernel, device = attention_kernels()[name], accelerators()["h100"]
    full, half = (kernel.rates(device, name, "bf16", 1024, 64, is_causal=causal) for causal in (False, True))
    assert all(there >= here for there, here in zip(full, half, strict=True))


def test_encoders_compute_all_pairs():
    encoder = load("bert-large")
    decoder = dataclasses.replace(encoder, causal=True)
    whole, half = (model.flops_per_sample(512, skips_future=True) for model in (encoder, decoder))
    assert whole - half == 3 * 2 * 24 * 2 * 1024 * 512**2 / 2
    assert whole == decoder.flops_per_sample(512)
