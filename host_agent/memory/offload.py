"""`OffloadedAdam`: AdamW whose states are on the host, with one bucket at a time on the device (AxoNN, IPDPS 2022)."""

import contextlib
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from host_agent.memory.adam import (
    as_shard,
    by_kind,
    check,
    gradient_vector,
    local,
    options_of,
    restored,
    take_over,
    update,
    vector,
)
from switchml.errors import ConfigError

BUCKET = 16_000_000
"""Number of parameters on the device at a time: AxoNN's `bucket_size` (axonn/optim.py)."""
BUFFERS = 3
"""Number of buffers: one whose states are being loaded, one that is updated, one whose states are being stored."""
ROWS = ("exp_avg", "exp_avg_sq", "master")
"""States on the host. float32 parameters are their own masters."""


@dataclass(frozen=True)
class _Slice:
    """Elements `start` to `stop` of a parameter, at offset `at` in a piece."""

    parameter: nn.Parameter
    start: int
    stop: int
    at: int

    @property
    def place(self) -> slice:
        return slice(self.at, self.at + self.stop - self.start)


@dataclass(frozen=True)
class _Piece:
    """Unit of copies and updates: a third of a bucket, so that one piece can be loaded and another stored meanwhile."""

    group: int
    """Index of its parameter group."""
    host: torch.Tensor
    """States of all pieces of its group, dtype and device: float32[rows, elements]."""
    first: int
    size: int
    slices: tuple[_Slice, ...]

    @property
    def like(self) -> torch.Tensor:
        return local(self.slices[0].parameter)


class OffloadedAdam(torch.optim.Optimizer):
    """AdamW with its states, and master weights of half-precision parameters, on the host: of CUDA parameters in pinned
    memory, of CPU parameters in a memory-mapped file in `folder` (default: the folder for temporary files), which has
    no name and disappears with the process.

    bucket: number of parameters whose states are on the device at a time. One third of it is updated while the next
        third is loaded and the previous one stored, each on its own stream; half-precision parameters take 4 φ + 16 ·
        bucket bytes including gradients (AxoNN, IPDPS 2022, section IV-C). The bucket's memory stays allocated on the
        device, as in AxoNN.
    group: ranks over which gradients are averaged, in pieces of a third of a bucket, while the previous piece is
        updated. A parameter without a gradient then counts as zeros, and `.grad` is unchanged. None if gradients are
        averaged elsewhere, for example by DistributedDataParallel.

    Half-precision weights changed by other code between steps, such as `load_state_dict`, are copied to their masters.
    On a CPU the results are bitwise equal to those of torch.optim.AdamW, and each optimizer accepts the other's
    `state_dict()`.

    Raises ConfigError, UnsupportedTensor; `step` raises what all-reduces raise, after which some parameters are a step
    ahead."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        bucket: int = BUCKET,
        folder: str | None = None,
        group: dist.ProcessGroup | None = None,
    ):
        if bucket < BUFFERS:
            raise ConfigError(f"bucket={bucket}: expected at least {BUFFERS} parameters")
        self._piece, self._folder, self._group = bucket // BUFFERS, folder, group
        self._pieces: list[_Piece] = []
        self._buffers: dict[tuple[torch.device, int, int], torch.Tensor] = {}
        self._streams: dict[tuple[torch.device, str], torch.cuda.Stream] = {}
        self._stats = {"update_s": 0.0, "copy_wait_s": 0.0, "reduce_wait_s": 0.0}
        super().__init__(params, options_of(lr, betas, eps, weight_decay))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; its states are initialized to zeros, and masters to the current parameters."""
        super().add_param_group(param_group)
        self._buffers.clear()  # pieces may be larger now
        for parameter in self.param_groups[-1]["params"]:
            check(parameter)
        number = len(self.param_groups) - 1
        for (dtype, device), parameters in by_kind(self.param_groups[-1]["params"]).items():
            count = sum(local(parameter).numel() for parameter in parameters)
            host = _on_host(2 if dtype == torch.float32 else 3, count, device, self._folder)
            self._pieces += _pieces(number, parameters, host, self._piece)
            at = 0
            for parameter in parameters:
                part = local(parameter)
                rows = zip(ROWS, host[:, at : at + part.numel()], strict=False)
                views = {name: row.as_strided(part.size(), part.stride()) for name, row in rows}
                if "master" in views:
                    views["master"].copy_(part)
                shards = {name: as_shard(view, parameter) for name, view in views.items()}
                self.state[parameter] = {"step": torch.tensor(0.0), **shards}
                at += part.numel()

    def stats(self) -> dict[str, float]:
        """`host_bytes` of states; seconds so far: `update_s` of updates, `copy_wait_s` and `reduce_wait_s` of waiting
        for copies and all-reduces that were not hidden by updates."""
        hosts = {piece.host.untyped_storage()._cdata: piece.host.nbytes for piece in self._pieces}
        return {"host_bytes": float(sum(hosts.values())), **self._stats}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Copy the states to the host. Raises ConfigError if they are of another model or of a rule other than AdamW's
        (amsgrad, maximize)."""
        restored(self, state_dict, ("step", *ROWS))
        mine = dict(self.state)
        super().load_state_dict({**state_dict, "state": {}})
        self.state.update(mine)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of AdamW; with `group`, on the mean of its ranks' gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        pieces = [piece for piece in self._pieces if any(self._has_gradient(part) for part in piece.slices)]
        storing: list[Future[None]] = []
        with ThreadPoolExecutor(1) as loads, ThreadPoolExecutor(1) as stores:

            def load(number: int) -> Future[torch.Tensor]:
                """Load a piece once its buffer's previous piece has been stored."""
                piece = pieces[number]
                key = (piece.like.device, len(piece.host), number % BUFFERS)
                fresh = None
                if key not in self._buffers:
                    alike = (each for each in self._pieces if each.like.device == key[0] and len(each.host) == key[1])
                    self._buffers[key] = torch.empty((key[1] + 1, max(each.size for each in alike)), device=key[0])
                    fresh = _so_far(key[0])  # other tensors that used the memory may still be in use
                after = storing[number - BUFFERS] if number >= BUFFERS else None
                stream = self._stream(key[0], "load")
                return loads.submit(partial(_load, piece, self._buffers[key], after, fresh, stream))

            loading = load(0) if pieces else None
            reducing = self._reduce(pieces[0]) if pieces else None
            for number, piece in enumerate(pieces):
                assert loading is not None
                with self._timed("copy_wait_s"):
                    buffer = loading.result()
                summed, wait = reducing if reducing is not None else (None, None)
                if number + 1 < len(pieces):
                    loading = load(number + 1)
                    reducing = self._reduce(pieces[number + 1])
                if wait is not None:
                    with self._timed("reduce_wait_s"):
                        wait()
                with self._timed("update_s"):
                    self._update(piece, buffer, summed)
                stream = self._stream(buffer.device, "store")
                storing.append(stores.submit(partial(_store, piece, buffer, _so_far(buffer.device), stream)))
            with self._timed("copy_wait_s"):
                for each in storing:
                    each.result()
        return loss

    def _stream(self, device: torch.device, of: str) -> torch.cuda.Stream | None:
        """Stream for copies in one direction, on CUDA."""
        if device.type == "cuda" and (device, of) not in self._streams:
            self._streams[device, of] = torch.cuda.Stream(device)
        return self._streams.get((device, of))

    def _has_gradient(self, part: _Slice) -> bool:
        return part.parameter.grad is not None or (self._group is not None and part.parameter.requires_grad)

    def _reduce(self, piece: _Piece) -> tuple[torch.Tensor, Callable[[], object]] | None:
        """Start to sum a piece's gradients over the group; returns the mean and a function that waits for it."""
        if self._group is None:
            return None
        gradient = torch.zeros(piece.size, dtype=piece.like.dtype, device=piece.like.device)
        for part in piece.slices:
            if part.parameter.grad is not None:
                gradient[part.place] = gradient_vector(part.parameter)[part.start : part.stop]
        gradient.div_(dist.get_world_size(self._group))
        work = dist.all_reduce(gradient, group=self._group, async_op=True)
        return gradient, work.wait if work is not None else lambda: None

    def _update(self, piece: _Piece, buffer: torch.Tensor, summed: torch.Tensor | None) -> None:
        """Update a piece. `buffer`: exp_avg, exp_avg_sq, a row for gradients, and masters if there are any."""
        for part in piece.slices:
            if not self._has_gradient(part):
                continue
            step = self.state[part.parameter]["step"]
            if part.start == 0:
                step += 1
            exp_avg, exp_avg_sq, gradient, *masters = (row[part.place] for row in buffer)
            weight = vector(part.parameter)[part.start : part.stop]
            if summed is not None:
                gradient.copy_(summed[part.place])
            else:
                gradient.copy_(gradient_vector(part.parameter)[part.start : part.stop])
            master = masters[0] if masters else weight
            if masters:
                take_over(master, weight)
            update(master, gradient, exp_avg, exp_avg_sq, int(step), self.param_groups[piece.group])
            if masters:
                weight.copy_(master)

    @contextlib.contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._stats[name] += time.perf_counter() - started


def _on_host(rows: int, count: int, device: torch.device, folder: str | None) -> torch.Tensor:
    """Zeros on the host, float32[rows, count]."""
    if device.type == "cuda":
        return torch.zeros((rows, count), pin_memory=True)
    if not count:
        return torch.zeros((rows, 0))
    with tempfile.TemporaryFile(dir=folder) as file:
        file.truncate(4 * rows * count)
        return torch.from_numpy(np.memmap(file, np.float32, "r+", shape=(rows, count)))


def _pieces(group: int, parameters: list[nn.Parameter], host: torch.Tensor, most: int) -> Iterator[_Piece]:
    """Divide the concatenated parameters into pieces of equal size, except for the last."""
    count = host.shape[1]
    size = math.ceil(count / math.ceil(count / most)) if count else 0
    starts, first = [], 0
    for parameter in parameters:
        starts.append(first)
        first += local(parameter).numel()
    for begin in range(0, count, size or 1):
        end = min(begin + size, count)
        slices = [
            _Slice(parameter, max(begin - start, 0), min(end - start, local(parameter).numel()), max(start - begin, 0))
            for parameter, start in zip(parameters, starts, strict=True)
            if start < end and start + local(parameter).numel() > begin
        ]
        yield _Piece(group, host, begin, end - begin, tuple(slices))


def _so_far(device: torch.device) -> torch.cuda.Event | None:
    """Event after all work queued on this thread's current stream, on CUDA."""
    return torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None


def _load(
    piece: _Piece,
    buffer: torch.Tensor,
    stored: Future[None] | None,
    before: torch.cuda.Event | None,
    stream: torch.cuda.Stream | None,
) -> torch.Tensor:
    """Load a piece's states into `buffer`, whose previous piece must have been `stored`."""
    if stored is not None:
        stored.result()
    with _on_stream(stream, before):
        for row, host in zip(_state_rows(buffer), piece.host, strict=True):
            row[: piece.size].copy_(host[piece.first : piece.first + piece.size], non_blocking=True)
    return buffer


def _store(
    piece: _Piece, buffer: torch.Tensor, before: torch.cuda.Event | None, stream: torch.cuda.Stream | None
) -> None:
    with _on_stream(stream, before):
        for row, host in zip(_state_rows(buffer), piece.host, strict=True):
            host[piece.first : piece.first + piece.size].copy_(row[: piece.size], non_blocking=True)


def _state_rows(buffer: torch.Tensor) -> list[torch.Tensor]:
    """All rows except the one for gradients."""
    return [row for number, row in enumerate(buffer) if number != 2]


@contextlib.contextmanager
def _on_stream(stream: torch.cuda.Stream | None, before: torch.cuda.Event | None) -> Iterator[None]:
    """On CUDA, run the context on `stream`, concurrently with other streams but after `before`, and synchronize at its
    end."""
    if stream is None:
        yield
        return
    with torch.cuda.device(stream.device), torch.cuda.stream(stream):
        if before is not None:
            stream.wait_event(before)
        yield
    stream.synchronize()
