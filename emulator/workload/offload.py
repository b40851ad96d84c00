"""Memory that a job saves by keeping its states elsewhere or smaller, as published formulas: AxoNN's optimizer on the
host in buckets, SAMO's pruned states, COMET's compressed activations. `memory.py` has what an ordinary job keeps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from switchml.errors import ConfigError

DENSE_BYTES = 20.0
"""A parameter in mixed precision with Adam: weight 2, gradient 2, master weight 4, master gradient 4, moments 8
(Singh and Bhatele, IPDPS 2022, section IV-C)."""
ON_DEVICE_BYTES = 4.0
"""Of them half-precision weight and gradient, which offloading leaves on the device."""
BUCKET_BYTES = 16.0
"""The others, of parameters in the bucket that is being updated."""
HOST_WAY_BYTES = 12.0
"""Of a parameter of a bucket, each way: master weight and moments."""


@dataclass(frozen=True)
class Offload:
    """One optimizer step with states on the host, bucket by bucket; seconds."""

    step_s: float
    exposed_s: float
    """What of it is neither the update itself nor the all-reduce: copies that nothing hides."""
    device_bytes: float
    is_hidden: bool
    """Whether copying a bucket takes no longer than what runs beside it."""


def offload_bytes(parameters: float, bucket: float) -> float:
    """On the device: 4 φ + 16 · bucket (AxoNN, IPDPS 2022), in place of 20 φ."""
    if not bucket > 0:
        raise ConfigError(f"an offload bucket of {bucket} parameters; expected at least 1")
    return ON_DEVICE_BYTES * parameters + BUCKET_BYTES * min(bucket, parameters)


def offload_step(
    parameters: float,
    bucket: float,
    *,
    copy_bytes_per_s: float,
    adam_parameters_per_s: float,
    all_reduce_s: float = 0.0,
) -> Offload:
    """AxoNN's pipeline: while the device updates a bucket (and all-reduces the gradients of a later one,
    `all_reduce_s` for all of them together), the next bucket's states come in and the last one's go out. Both ways at
    once, at `copy_bytes_per_s` each."""
    if not (copy_bytes_per_s > 0 and adam_parameters_per_s > 0 and all_reduce_s >= 0):
        raise ConfigError("offload needs rates above 0, and an all-reduce that takes at least no time")
    buckets = max(1, math.ceil(parameters / bucket))
    each = parameters / buckets
    copy_s, adam_s, reduce_s = (
        HOST_WAY_BYTES * each / copy_bytes_per_s,
        each / adam_parameters_per_s,
        all_reduce_s / buckets,
    )
    # In, update, out: stages of a pipeline, whose slowest sets its pace.
    beside_s = max(adam_s, reduce_s)
    pace_s = max(copy_s, beside_s)
    step_s = copy_s + adam_s + copy_s + (buckets - 1) * pace_s
    return Offload(
        step_s=step_s,
        exposed_s=step_s - adam_s - (buckets - 1) * beside_s,
        device_bytes=offload_bytes(parameters, bucket),
        is_hidden=copy_s <= beside_s,
    )


def samo_bytes(parameters: float, sparsity: float) -> float:
    """With a share `sparsity` of weights pruned: the weight dense, all else for those that are left, and a 32-bit
    index of each: 2 φ + 24 (1 − p) φ (Singh and Bhatele, IPDPS 2023)."""
    _check_share("sparsity", sparsity)
    return 2.0 * parameters + 24.0 * (1.0 - sparsity) * parameters


def samo_gradient_share(sparsity: float) -> float:
    """Of the dense gradient's bytes, what SAMO all-reduces: the values that are left; all ranks know their places."""
    _check_share("sparsity", sparsity)
    return 1.0 - sparsity


def comet_bytes(activation_bytes: float, ratio: float, compressed_share: float = 1.0) -> float:
    """Saved activations when a share of them is compressed by `ratio` (COMET: Jin et al., VLDB 2022). One layer's
    worth is there in full while it is packed; `memory.py`'s workspace holds it."""
    if not ratio >= 1:
        raise ConfigError(f"activations compressed by {ratio}; expected a ratio of at least 1")
    _check_share("compressed share", compressed_share)
    return activation_bytes * (1.0 - compressed_share + compressed_share / ratio)


def _check_share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ConfigError(f"{name} is {value}; expected a share from 0 to 1")
