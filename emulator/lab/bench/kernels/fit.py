"""Fit an accelerator's constants to measured operators, and predict the operators with and without them.

Products: efficiency and fill steps with the least mean logarithmic error. Attention: for each direction the shares of
peak for heads of 64 and 128, and the sequence length at which half of it is reached. Operators bound by memory: the
share of the memory's rate, the median of each kind's rows.
"""

import dataclasses
import itertools
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from emulator.cluster.accelerator import A100_MATMUL_SHARE, Accelerator, accelerators, constants
from emulator.cluster.cluster import completed
from emulator.datafile import build
from emulator.jobs.workload.implementations import MEASURED
from emulator.lab.bench.kernels.measure import Row
from emulator.peers.script.costs import Costs
from emulator.peers.script.operators import Operator, TensorShape
from switchml.errors import ConfigError
from switchml.files import read_text
from switchml.output_files import toml_text, whole_file

OPERATORS = {
    "copy": ("element_wise", "copy_", 1, 1),
    "add": ("element_wise", "add", 2, 1),
    "gelu": ("transcendental", "gelu", 1, 1),
    "softmax": ("softmax", "_softmax", 1, 1),
    "sum": ("reduction", "sum", 1, 0),
    "layer_norm": ("norm", "native_layer_norm", 1, 1),
    "layer_norm_backward": ("norm_backward", "native_layer_norm_backward", 2, 1),
    "adamw_fused_bf16": ("optimizer", "_fused_adamw_", 4, 3),
}
"""Operator name in rows → kind in data/operators.toml, torch operator, number of half-precision matrices read and
written."""
MIN_S = 60e-6
"""Shorter times that include launch overhead (rows without `exact`) are ignored: they measure the host."""
_CACHE_BYTES_PER_S = 15.4e12 / 132
"""Cache bandwidth per processor of an unknown accelerator: H100's."""
_numbers = itertools.count()
"""Operator numbers; Costs caches results by them."""
_HALVES = ("bfloat16", "float16")
_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def read_rows(path: Path) -> list[Row]:
    """Read rows from JSON lines or from the output of `switchml bench kernels --json`. Raises ConfigError."""
    text = read_text(path)
    try:
        rows: list[Row]
        if text.lstrip().startswith('{"accelerator"'):
            rows = json.loads(text)["rows"]
        else:
            rows = [json.loads(line) for line in text.splitlines() if line.strip()]
        if not rows:
            raise ValueError("there are none")
        for number, row in enumerate(rows, 1):
            _check(row, f"{path.name}, row {number}")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: expected rows as switchml bench kernels --json prints them: {error}") from None
    return rows


_TEXTS = {"gemm": ("dtype",), "attention": (), "op": ("op",), "device": ("name", "architecture", "torch")}
_NUMBERS = {
    "gemm": ("m", "n", "k", "time_s"),
    "attention": ("batch", "heads", "sequence", "head_dim", "forward_s", "backward_s"),
    "op": ("rows", "cols", "time_s"),
    "device": ("processors", "memory_bytes", "launch_s"),
}


def _check(row: Row, where: str) -> None:
    if row.get("what") not in _NUMBERS:
        raise ConfigError(f"{where}: what is {row.get('what')!r}; expected {', '.join(_NUMBERS)}")
    for name in _NUMBERS[row["what"]]:
        if not isinstance(row.get(name), int | float) or not 0 < row[name] < 1e18:
            raise ConfigError(f"{where}: {name} is {row.get(name)!r}; expected a number above 0")
    for name in _TEXTS[row["what"]]:
        if not isinstance(row.get(name), str):
            raise ConfigError(f"{where}: {name} is {row.get(name)!r}; expected a text")
    if row["what"] == "gemm" and row["dtype"] not in _PRECISIONS:
        raise ConfigError(f"{where}: dtype is {row['dtype']!r}; expected {', '.join(_PRECISIONS)}")
    if row["what"] == "attention" and not isinstance(row.get("causal"), bool):
        raise ConfigError(f"{where}: causal is {row.get('causal')!r}; expected true or false")


def base_of(rows: Sequence[Row]) -> tuple[str, Accelerator]:
    """Return (name, accelerator) of the built-in accelerator that was measured, or ("", an accelerator derived from the
    rows)."""
    device = _device(rows)
    name = str(device["name"] if device else rows[0].get("device", ""))
    words = name.lower().replace("-", " ").split()
    alike = [key for key in accelerators() if key.split("-")[0] in words]
    if device:
        same = [key for key in alike if accelerators()[key].processors == device["processors"]]
        alike = sorted(same, key=lambda key: abs(accelerators()[key].memory_bytes - device["memory_bytes"]))
    if alike:
        return alike[0], accelerators()[alike[0]]
    if not device:
        raise ConfigError(f"{name or 'these rows'}: no built-in accelerator, and no device row that describes it")
    return "", _made_of(device, rows)


def _device(rows: Sequence[Row]) -> Row:
    """The row that describes the device; empty without one."""
    return next((row for row in rows if row["what"] == "device"), {})


def _made_of(device: Row, rows: Sequence[Row]) -> Accelerator:
    """Derive an accelerator from its measurements: peak FLOP/s from the fastest product of each precision, memory
    bandwidth from the fastest operator, assumed to reach 90 % of it."""
    rates: dict[str, float] = {}
    for row in rows:
        if row["what"] == "gemm":
            precision = _PRECISIONS[row["dtype"]]
            rates[precision] = max(rates.get(precision, 0.0), 2 * row["m"] * row["n"] * row["k"] / row["time_s"])
    if "fp32" not in rates:
        raise ConfigError("no product in float32 among the rows: a device that is not built in needs one")
    moved = [_moved(row) / row["time_s"] for row in rows if row["what"] == "op" and row["op"] in OPERATORS]
    if not moved:
        raise ConfigError("no operator bound by memory among the rows: a device that is not built in needs one")
    return Accelerator(
        title=device["name"],
        source="measured by switchml bench kernels",
        flops=rates,
        memory_bytes=float(device["memory_bytes"]),
        memory_bytes_per_s=max(moved) / 0.9,
        processors=int(device["processors"]),
        cache_bytes_per_s=_CACHE_BYTES_PER_S * device["processors"],
        watts=0.0,
        architecture=device["architecture"],
        matmul_share=A100_MATMUL_SHARE,
    )


def predicted(rows: Iterable[Row], accelerator: Accelerator) -> list[tuple[Row, str, float, float]]:
    """Return (row, name of the time, measured seconds, predicted seconds) of all comparable rows."""
    costs, found = Costs(accelerator, constants()), []
    for row in rows:
        if row["what"] == "gemm" and _PRECISIONS[row["dtype"]] in accelerator.flops:
            dtype = getattr(torch, row["dtype"])
            found.append((row, "time_s", row["time_s"], costs.product(row["m"], row["n"], row["k"], 1, dtype, False)))
        elif row["what"] == "attention":
            for which in ("forward_s", "backward_s"):
                found.append((row, which, row[which], costs.attention(_attention(row, which), which == "backward_s")))
        elif row["what"] == "op" and row["op"] in OPERATORS:
            found.append((row, "time_s", row["time_s"], costs.device_s(_operator(row))))
    return [(row, which, here, there) for row, which, here, there in found if _counts(row, here)]


def _counts(row: Row, seconds: float) -> bool:
    """Whether a time is dominated by the kernel, not by its launch."""
    return bool(row.get("exact")) or seconds > MIN_S


def fit(rows: Sequence[Row]) -> dict[str, Any]:
    """Fit all constants; return the `[accelerator]` table of a file. Raises ConfigError."""
    (name, base), device = base_of(rows), _device(rows)
    filled = {key: value for key, value in dataclasses.asdict(base).items() if value not in ("", {})}
    table: dict[str, Any] = {"extends": name} if name else filled
    table |= {"title": f"{base.title}, measured", "source": "measured by switchml bench kernels"}
    best = max(map(_half_rate, rows), default=0.0)
    if name and best:
        table["matmul_share"] = min(1.0, best / base.peak(_half(base)))
        base = dataclasses.replace(base, matmul_share=table["matmul_share"])
    operators: dict[str, Any] = {}
    if "launch_s" in device:
        operators["launch_s"] = device["launch_s"]
    own = dataclasses.replace(base, operators=operators)
    operators |= _products(rows, own) | _shares(rows, own)
    rounded: dict[str, Any] = _rounded(table | _attention_kernel(rows) | {"operators": operators})
    return rounded


def write(path: Path, rows: Sequence[Row], table: dict[str, Any]) -> None:
    """Write a file for `--accelerator`. Raises ConfigError if it can't be written."""
    device = _device(rows)
    on = f"{device['name']}, torch {device['torch']}" if device else str(rows[0].get("device", "an accelerator"))
    with whole_file(path) as part:
        part.write_text(f"# Measured by `switchml bench kernels` on {on}.\n\n" + toml_text({"accelerator": table}))


def _rounded(value: Any) -> Any:
    """Round numbers to four significant digits, recursively."""
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def accelerator_of(table: dict[str, Any]) -> Accelerator:
    """Build the accelerator that a fitted table describes."""
    return build(Accelerator, completed(dict(table), "the fit"))


def _error(pairs: Iterable[tuple[Row, str, float, float]]) -> float:
    """Mean absolute difference of the logarithms of predicted and measured times; not squared, so that an outlier, such
    as a product with a slow kernel, has little weight."""
    return statistics.fmean(abs(math.log(there / here)) for _, _, here, there in pairs)


def _with(accelerator: Accelerator, **operators: Any) -> Accelerator:
    return dataclasses.replace(accelerator, operators=accelerator.operators | operators)


def _products(rows: Sequence[Row], base: Accelerator) -> dict[str, float]:
    """Fit GEMM efficiency and fill steps, to half-precision products if there are any."""
    products = [row for row in rows if row["what"] == "gemm"]
    products = [row for row in products if row["dtype"] in _HALVES] or products
    if not predicted(products, base):
        return {}
    best = (math.inf, 0.0, 0.0)
    efficiencies, steps = np.geomspace(0.2, 1.3, 24), np.linspace(0, 400, 9)
    for _ in range(2):  # first a coarse grid, then a fine one around its best point
        for efficiency, fill in itertools.product(efficiencies, steps):
            own = _with(base, gemm_efficiency=float(efficiency), tile_fill_steps=float(fill))
            best = min(best, (_error(predicted(products, own)), float(efficiency), float(fill)))
        efficiencies = np.linspace(best[1] * 0.93, best[1] * 1.07, 8)
        steps = np.linspace(max(0.0, best[2] - 50), best[2] + 50, 6)
    return {"gemm_efficiency": best[1], "tile_fill_steps": best[2]}


def _attention_kernel(rows: Sequence[Row]) -> dict[str, Any]:
    """Fit an attention kernel: for each direction the rates for both head sizes, and for each mask the sequence length
    at which half of them is reached."""
    taken = [row for row in rows if row["what"] == "attention" and row["head_dim"] in (64, 128)]
    rates, halves = [], []
    for which, factor in (("forward_s", 1.0), ("backward_s", 2.5)):
        kept = [row for row in taken if _counts(row, row[which])]
        if {row["head_dim"] for row in kept} != {64, 128}:
            return {}
        reached = {id(row): factor * _attention_flops(row) / row[which] for row in kept}
        best: tuple[float, float, float, list[float]] = (math.inf, 0.0, 0.0, [])
        for masked, plain in itertools.product(np.linspace(0, 1500, 31), repeat=2):
            whole = {
                id(row): reached[id(row)] * (1 + (masked if row["causal"] else plain) / row["sequence"]) for row in kept
            }
            logs = [[math.log(whole[id(row)]) for row in kept if row["head_dim"] == head] for head in (64, 128)]
            middles = [statistics.median(each) for each in logs]
            error = sum(abs(log - middle) for each, middle in zip(logs, middles, strict=True) for log in each)
            best = min(best, (error, float(masked), float(plain), [math.exp(middle) for middle in middles]))
        halves.append(best[1:3])
        rates.append(best[3])
    (_, forward), (_, backward) = rates
    both = 3.5 / (1 / forward + 2.5 / backward)
    lengths = ({"half_length": masked, "half_length_full": plain} for masked, plain in halves)
    forwards, backwards = (
        {"narrow": narrow / wide, **length} for (narrow, wide), length in zip(rates, lengths, strict=True)
    )
    kernel = {"forward": forward / both, "backward": backward / both, **forwards, "backwards": backwards}
    return {"attention": kernel, "attention_flops": {MEASURED: both}}


def _shares(rows: Sequence[Row], base: Accelerator) -> dict[str, dict[str, float]]:
    """Fit the share of memory bandwidth of each kind: the median of its rows."""
    reached: dict[str, list[float]] = {}
    costs = Costs(base, constants())
    for row, _, here, there in predicted([row for row in rows if row["what"] == "op"], base):
        kind = OPERATORS[row["op"]][0]
        kernel_s = costs.device_s(_operator({**row, "rows": 1, "cols": 1}))
        built_in = costs.share(_operator(row))
        reached.setdefault(kind, []).append(built_in * (there - kernel_s) / max(here - kernel_s, 0.1 * here))
    return {"shares": {kind: min(1.0, statistics.median(all_)) for kind, all_ in reached.items()}} if reached else {}


def _half(accelerator: Accelerator) -> str:
    """Name of the accelerator's half precision, or "fp32" if it has none."""
    return next((name for name in ("bf16", "fp16") if name in accelerator.flops), "fp32")


def _half_rate(row: Row) -> float:
    is_half = row["what"] == "gemm" and row["dtype"] in _HALVES
    return float(2 * row["m"] * row["n"] * row["k"] / row["time_s"]) if is_half else 0.0


def _attention_flops(row: Row) -> float:
    """FLOPs of the forward pass; half if causal."""
    work = 4.0 * row["batch"] * row["heads"] * row["sequence"] ** 2 * row["head_dim"]
    return float(work / 2 if row["causal"] else work)


def _moved(row: Row) -> float:
    _, _, read, written = OPERATORS.get(row["op"], ("", "", 1, 1))
    return float(2 * row["rows"] * row["cols"] * (read + written))


def _shape(*size: int) -> TensorShape:
    stride = tuple(math.prod(size[at + 1 :]) for at in range(len(size)))
    return TensorShape(size, stride, 0, torch.bfloat16, 2)


def _operator(row: Row) -> Operator:
    _, name, read, written = OPERATORS[row["op"]]
    one = _shape(int(row["rows"]), int(row["cols"]))
    return Operator(
        next(_numbers), f"aten.{name}.default", (one,) * read, (), {}, (False, False), written * one.bytes, True
    )


def _attention(row: Row, which: str) -> Operator:
    one = _shape(int(row["batch"]), int(row["heads"]), int(row["sequence"]), int(row["head_dim"]))
    name = "_scaled_dot_product_flash_attention" + ("_backward" if which == "backward_s" else "")
    causal = {"is_causal": row["causal"]}
    return Operator(next(_numbers), f"aten.{name}.default", (one,) * 4, (one,), causal, (False, False), 0, True)
