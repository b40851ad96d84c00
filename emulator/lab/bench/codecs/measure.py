"""Measurement of codecs: size, speed in both directions, error, and bytes sent in an all-reduce; switchml's codecs and
the baselines alternate.

All run on one core in this process. Times are CPU time, the minimum over several rounds through all codecs, since other
load on the machine can only add to it. The allocator is configured not to return freed memory: faulting in fresh pages
costs more than some codecs, and a warmed-up training process does not need to.
"""

import contextlib
import ctypes
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from emulator.lab.bench.codecs import baselines
from emulator.lab.bench.codecs.tensors import Tensor
from switchml.codecs import CODECS, Codec, StepContext, parse
from switchml.codecs.exchange import reduce

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
"""mallopt parameters, from malloc.h."""


@dataclass
class Measured:
    """One codec's results. Times in seconds; bytes of one payload, header included. `ours` is False for baselines.
    `sent_bytes`, `received_bytes`: of one rank in an all-reduce of `workers` ranks, lanes packed, without packet
    headers.
    """

    name: str
    ours: bool
    aggregation: str
    elements: int
    note: str = ""
    payload_bytes: int = 0
    sent_bytes: int | None = None
    received_bytes: int | None = None
    max_error: float = 0.0
    relative_error: float = 0.0
    compress_s: list[float] = field(default_factory=list)
    decompress_s: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        return 4 * self.elements / self.payload_bytes

    def rate(self, seconds: list[float]) -> float | None:
        """Throughput: bytes of the float32 tensor per second; None if that direction was not timed separately."""
        return 4 * self.elements / min(seconds) if seconds else None

    @property
    def pays_below_bps(self) -> float:
        """Link rate (bits/s) below which compressing, sending and decompressing takes less time than sending the
        tensor: 1 / B = 1 / (ratio B) + 1 / compress rate + 1 / decompress rate."""
        work_s = min(self.compress_s) + (min(self.decompress_s) if self.decompress_s else 0)
        return max(0.0, 8 * (4 * self.elements - self.payload_bytes) / work_s)


@dataclass
class Report:
    tensor: Tensor
    workers: int
    bound: float
    ratio: float
    measured: list[Measured]
    missing: list[baselines.Missing]


def choose(specs: list[str] | None, *, ratio: float, bound: float, rank: int) -> list[Codec]:
    """The codecs of `specs`, or all, each with the ratio, bound or rank that the baselines use. Raises ConfigError."""
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
    """Measure `codecs` and all baselines. `bound` is relative to the tensor's range."""
    _keep_freed_memory()
    x = tensor.values
    absolute = bound * (float(x.max()) - float(x.min()))
    with _one_torch_thread(), baselines.available(tensor, bound=absolute, ratio=ratio, rank=rank) as others:
        missing = [baseline for baseline in others if isinstance(baseline, baselines.Missing)]
        states = [codec.new_state() for codec in codecs]
        runs = [_ours(codec, state, tensor) for codec, state in zip(codecs, states, strict=True)]
        runs += [baseline for baseline in others if isinstance(baseline, baselines.Baseline)]
        measured = [
            Measured(run.name, number < len(codecs), run.aggregation, x.size, run.note)
            for number, run in enumerate(runs)
        ]
        for turn in range(rounds + 1):  # the first turn compiles and warms up
            for run, one in zip(runs, measured, strict=True):
                on_step(run.name)
                _once(run, one, x)
                if turn == 0:
                    one.compress_s.clear()
                    one.decompress_s.clear()
        for codec, state, one in zip(codecs, states, measured, strict=False):
            # Once the state has settled, as SIDCo's stages do.
            exchange = codec.exchange(state, x, StepContext("bench", world=workers, shape=tensor.shape))
            one.sent_bytes, one.received_bytes = _traffic(exchange, workers)
        return Report(tensor, workers, bound, ratio, measured, missing)


def _ours(codec: Codec, state: Any, tensor: Tensor) -> baselines.Baseline:
    """A switchml codec wrapped in the baselines' interface."""
    steps, n = itertools.count(), tensor.values.size
    return baselines.Baseline(
        str(codec),
        codec.aggregation,
        compress=lambda x: codec.compress(state, x, StepContext("bench", next(steps), shape=tensor.shape)),
        decompress=lambda payload: codec.decompress(payload, n),
        nbytes=lambda payload: payload.nbytes,
    )


def _once(run: baselines.Baseline, measured: Measured, x: np.ndarray) -> None:
    start = time.process_time()
    compressed = run.compress(x)
    between = time.process_time()
    if run.decompress is None:
        seconds, y = compressed
        measured.compress_s.append(seconds)
    else:
        y = run.decompress(compressed)
        measured.decompress_s.append(time.process_time() - between)
        measured.compress_s.append(between - start)
    measured.payload_bytes = run.nbytes(compressed)
    difference = x.astype(np.float64) - y
    measured.max_error = float(np.abs(difference).max())
    norm = float(np.linalg.norm(x.astype(np.float64)))
    measured.relative_error = float(np.linalg.norm(difference)) / norm if norm else 0.0


def _traffic(exchange: Any, workers: int) -> tuple[int, int]:
    """Bytes that one rank sends and receives if all ranks' vectors compress alike: sums come back in lanes of the same
    width, gathered payloads from all other ranks; sparse sums are counted as gathered."""
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
    """Configure glibc's malloc to serve large blocks without mmap and never to trim the heap; other allocators are
    unaffected."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, 1 << 30)


@contextlib.contextmanager
def _one_torch_thread() -> Iterator[None]:
    """Limit torch, if installed, to one thread within this context, as for all other codecs."""
    try:
        import torch
    except ImportError:
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
