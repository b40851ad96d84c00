"""Measuring codecs: size, speed both ways, error, and what an all-reduce would send; ours and others' in turn.

All run on one core in this process. Times are processor time, of the fastest of several rounds that go through all
codecs: what else the machine does can only add to it. The allocator is told to keep what is freed: fresh pages cost
more than some codecs, and a training process that has run for a while needs none either.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from emulator.bench.codecs import rivals
from emulator.bench.codecs.tensors import Tensor
from switchml.codecs import CODECS, Codec, Turn, parse
from switchml.codecs.exchange import reduce

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
"""malloc.h"""


@dataclass
class Measured:
    """One codec's figures. Times in seconds; bytes of one payload, header included. `ours` is False for rivals.

    `sent_bytes`, `received_bytes`: of one rank in an all-reduce of `workers`, lanes packed, no packet headers.
    """

    name: str
    ours: bool
    aggregation: str
    elements: int
    payload_bytes: int = 0
    sent_bytes: int | None = None
    received_bytes: int | None = None
    max_error: float = 0.0
    relative_error: float = 0.0
    compress_s: list[float] = field(default_factory=list)
    decompress_s: list[float] = field(default_factory=list)
    note: str = ""

    @property
    def ratio(self) -> float:
        return 4 * self.elements / self.payload_bytes

    def rate(self, seconds: list[float]) -> float | None:
        """Bytes of the float32 tensor a second; None if that was not measured apart."""
        return 4 * self.elements / min(seconds) if seconds else None

    @property
    def pays_below_bps(self) -> float:
        """The rate of a link (bits a second) below which compressing, sending and decompressing takes less time than
        sending the tensor: 1 / B = 1 / (ratio B) + 1 / compress rate + 1 / decompress rate."""
        work_s = min(self.compress_s) + (min(self.decompress_s) if self.decompress_s else 0)
        return max(0.0, 8 * (4 * self.elements - self.payload_bytes) / work_s)


@dataclass
class Report:
    tensor: Tensor
    workers: int
    bound: float
    ratio: float
    measured: list[Measured]
    missing: list[rivals.Missing]


def choose(specs: list[str] | None, *, ratio: float, bound: float, rank: int) -> list[Codec]:
    """The codecs of `specs`, or all, each at the ratio, bound or rank that the rivals get. Raises ConfigError."""
    if specs:
        return [parse(spec) for spec in specs]
    chosen = []
    for name, codec in CODECS.items():
        settings = {}
        for key, value in (("ratio", ratio), ("rank", rank)):
            if key in codec.__dataclass_fields__:
                settings[key] = value
        chosen.append(codec(**settings, **({"bound": bound} if name == "szx" else {})))
    return chosen


def measure(
    tensor: Tensor,
    codecs: list[Codec],
    *,
    bound: float,
    ratio: float,
    rank: int,
    workers: int,
    rounds: int,
    on_step: Callable[[str], None] = lambda name: None,
) -> Report:
    """Measure `codecs` and all rivals. `bound` is relative to the tensor's range."""
    _keep_freed_memory()
    x = tensor.values
    absolute = bound * (float(x.max()) - float(x.min()))
    with _one_torch_thread(), rivals.available(tensor, bound=absolute, ratio=ratio, rank=rank) as others:
        missing = [rival for rival in others if isinstance(rival, rivals.Missing)]
        runs = [_Ours(codec, tensor, workers) for codec in codecs]
        runs += [_Theirs(rival, tensor) for rival in others if isinstance(rival, rivals.Rival)]
        for turn in range(rounds + 1):  # the first is for compiling and warming up
            for run in runs:
                on_step(run.measured.name)
                run.once(turn, x)
                if turn == 0:
                    run.measured.compress_s.clear()
                    run.measured.decompress_s.clear()
        for run in runs[: len(codecs)]:
            run.count_traffic(x)
        return Report(tensor, workers, bound, ratio, [run.measured for run in runs], missing)


class _Ours:
    def __init__(self, codec: Codec, tensor: Tensor, workers: int) -> None:
        self.codec, self.shape, self.state = codec, tensor.shape, codec.new_state()
        self.measured = Measured(str(codec), True, codec.aggregation, tensor.values.size)
        self.workers = workers

    def once(self, step: int, x: np.ndarray) -> None:
        turn = Turn("bench", step, shape=self.shape)
        start = time.process_time()
        payload = self.codec.compress(self.state, x, turn)
        between = time.process_time()
        y = self.codec.decompress(payload, x.size)
        self.measured.decompress_s.append(time.process_time() - between)
        self.measured.compress_s.append(between - start)
        self.measured.payload_bytes = payload.nbytes
        _note_errors(self.measured, x, y)

    def count_traffic(self, x: np.ndarray) -> None:
        """Once the state has settled, as SIDCo's stages do."""
        turn = Turn("bench", world=self.workers, shape=self.shape)
        exchange = self.codec.exchange(self.state, x, turn)
        self.measured.sent_bytes, self.measured.received_bytes = _traffic(exchange, self.workers)


class _Theirs:
    def __init__(self, rival: rivals.Rival, tensor: Tensor) -> None:
        self.rival = rival
        self.measured = Measured(rival.name, False, f"as {rival.like}", tensor.values.size, note=rival.note)

    def once(self, step: int, x: np.ndarray) -> None:
        start = time.process_time()
        compressed = self.rival.compress(x)
        between = time.process_time()
        if self.rival.decompress is None:
            seconds, y = compressed
            self.measured.compress_s.append(seconds)
        else:
            y = self.rival.decompress(compressed)
            self.measured.decompress_s.append(time.process_time() - between)
            self.measured.compress_s.append(between - start)
        self.measured.payload_bytes = self.rival.nbytes(compressed)
        _note_errors(self.measured, x, y)


def _note_errors(measured: Measured, x: np.ndarray, y: np.ndarray) -> None:
    difference = x.astype(np.float64) - y
    measured.max_error = float(np.abs(difference).max())
    norm = float(np.linalg.norm(x.astype(np.float64)))
    measured.relative_error = float(np.linalg.norm(difference)) / norm if norm else 0.0


def _traffic(exchange: Any, workers: int) -> tuple[int, int]:
    """Bytes that one rank sends, and receives, if all ranks' vectors compress alike: sums come back in the lanes that
    they went in, gathered payloads from all others; sparse sums are counted as gathered."""
    sent = received = 0
    answer = None
    while True:
        try:
            request = exchange.send(answer)
        except StopIteration:
            return sent, received
        gathers = hasattr(request, "payload")
        sent += request.nbytes
        received += request.nbytes * (workers - 1 if gathers else 1)
        answer = reduce([request] * workers)[0]


def _keep_freed_memory() -> None:
    """glibc's malloc then neither maps large blocks apart nor returns any; other allocators stay as they are."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, 1 << 30)


class _one_torch_thread:
    """torch on one core while this lasts, as all others."""

    def __enter__(self) -> None:
        try:
            import torch
        except ImportError:
            self.threads = None
            return
        self.threads = torch.get_num_threads()
        torch.set_num_threads(1)

    def __exit__(self, *error) -> None:
        if self.threads is not None:
            import torch

            torch.set_num_threads(self.threads)
