"""Costs of codecs: measured on one core of this machine, or read from the output of `switchml bench codecs --json`."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from emulator.traces.whatif.edits import positive
from switchml.codecs import HALVES, Gather, Max, SparseSum, StepContext, Sum, parse, parse_error_feedback
from switchml.codecs import allreduce as exchange_of
from switchml.codecs.exchange import AsyncMax
from switchml.errors import ConfigError
from switchml.files import read_json

CHOICES = ("fp16", "thc", "topk:ratio=0.1", "topk:ratio=0.01")
"""Default candidates."""
ELEMENTS = 1 << 18
ROUNDS = 3
LANES = {"float32": "int32", **dict.fromkeys(HALVES, "int16")}
"""Lane type of a sum of floats in the aggregator."""


@dataclass(frozen=True)
class CodecCost:
    """Cost of a codec. `wire_share`: bytes sent per byte of float32. `bytes_per_s`: float32 bytes compressed and
    decompressed per second. `gathers`: whether ranks exchange payloads by all-gather. `rounds`: all-reduces in
    sequence. `error`: relative L2 error for a normal vector. `lanes`: lane type for sums of floats; else ""."""

    wire_share: float
    bytes_per_s: float
    gathers: bool = False
    rounds: int = 1
    error: float = 0.0
    lanes: str = ""

    def __post_init__(self) -> None:
        positive(self.wire_share, "a codec's share of bytes sent")
        positive(self.bytes_per_s, "a codec's rate")
        positive(self.rounds, "a codec's all-reduces")


def measure(specs: Iterable[str], ranks: int, seed: int = 0) -> dict[str, CodecCost]:
    """Measure codecs on ELEMENTS normally distributed elements, the fastest of ROUNDS. Raises ConfigError for unknown
    codecs."""
    vector = np.random.default_rng(seed).standard_normal(ELEMENTS).astype(np.float32)
    return {spec: _measure(spec, vector, ranks) for spec in specs}


def _measure(spec: str, vector: np.ndarray, ranks: int) -> CodecCost:
    codec = parse(spec)
    feedback = parse_error_feedback(codec.error_feedback)
    codec_state, feedback_state = codec.new_state(), feedback.new_state()
    best_s, wire, rounds, gathers, mean, error, lanes = np.inf, 0.0, 0, False, vector, 0.0, ""
    for step in range(ROUNDS + 1):  # the first round compiles
        context = StepContext(name="bucket", step=step, world=ranks, shape=(vector.size // 512, 512))
        exchange = exchange_of(codec, feedback, codec_state, feedback_state, vector, context)
        spent_s, wire, rounds = 0.0, 0.0, 0
        answer: object = None
        while True:
            before_s = time.perf_counter()
            try:
                request = exchange.send(answer)
            except StopIteration as stop:
                mean, spent_s = stop.value, spent_s + time.perf_counter() - before_s
                break
            spent_s += time.perf_counter() - before_s
            if isinstance(request, AsyncMax):  # a flag, concurrent with the rest
                answer = request.request.values.copy
                continue
            rounds += 1
            answer, sent, gathers = _answer(request, ranks)
            wire += sent
            lanes = LANES.get(request.wire, lanes) if isinstance(request, Sum) else lanes
        if step:
            best_s = min(best_s, spent_s)
        else:  # without error feedback yet
            error = float(np.linalg.norm(mean - vector) / np.linalg.norm(vector))
    return CodecCost(wire / vector.nbytes, vector.nbytes / best_s, gathers, max(rounds, 1), error, lanes)


def _answer(request, ranks: int) -> tuple[object, float, bool]:
    """Return the result that `ranks` equal ranks would get; bytes sent by one; whether they gather."""
    if isinstance(request, Sum):
        return request.values * request.values.dtype.type(ranks), request.nbytes, False
    if isinstance(request, Max):
        return request.values.copy(), request.nbytes, False
    if isinstance(request, SparseSum):
        total = np.zeros(request.count, np.float32)
        total[request.indices] = request.values * ranks
        return total, request.payload.nbytes, True
    assert isinstance(request, Gather)
    return [request.payload] * ranks, request.payload.nbytes, True


def load(path: Path) -> dict[str, CodecCost]:
    """Load costs from the output of `switchml bench codecs --json`. Raises ConfigError for other files."""
    document = read_json(path)
    try:
        rows = document["codecs"]
        return {
            row["name"]: CodecCost(
                wire_share=1 / row["ratio"],
                bytes_per_s=1 / (1 / row["compress_bytes_per_s"] + 1 / row["decompress_bytes_per_s"]),
                gathers=row["aggregation"] in ("gather", "sparse-sum"),
                error=row.get("relative_l2_error") or 0.0,
                lanes=LANES.get(parse(row["name"]).floats, ""),
            )
            for row in rows
            if row.get("ours", True) and row.get("compress_bytes_per_s") and row.get("decompress_bytes_per_s")
        }
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not what `switchml bench codecs --json` writes ({error!r})") from None
