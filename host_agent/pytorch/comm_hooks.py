"""Communication hooks for DistributedDataParallel: gradients are compressed by a codec of switchml/codecs.

    state = CodecState("topk:ratio=0.01", memory="residual")
    ddp.register_comm_hook(state, codec_hook)

They work with any process group. With the backend `switchml`, sums use the aggregator; with Gloo, NCCL or MPI they use
that backend's all-reduce. Gathers use the backend's all-gather in both cases.
"""

# No deferred annotations here: DDP compares those of a hook with its own classes.

import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from host_agent.compression.adaptive.compressor import AutoCompressor, Health
from host_agent.compression.adaptive.policy import is_auto, parse_auto
from host_agent.compression.by_bucket import BucketCompressor
from host_agent.compression.compressed import AgentReducer, Compressor, lanes_of, sum_of_payloads, values_of
from host_agent.pytorch.compiling import never_compiled
from host_agent.pytorch.futures import Promise
from host_agent.pytorch.modes import CallersModes
from switchml.codecs import Codec, ErrorFeedback, Gather, Max, Payload, Request, SparseSum, StepContext, Sum
from switchml.codecs.exchange import roll_back
from switchml.errors import ConfigError, UnsupportedTensor


class CodecState:
    """State of `codec_hook`: one per DDP module, created on every rank with the same arguments.

    `codec`, `memory`: texts as in docs/codecs.md, or "auto" (host_agent/compression/adaptive); `memory` None for the
    codec's default error feedback. `process_group`: the module's (None: the default one). `seed`: for codecs that use
    random numbers. Raises ConfigError.

    `compressor.lr`: the learning rate, for error feedback that depends on it (EF-signSGD's); set it when it changes.
    `bytes_sent`, `bytes_dense`: bytes that this rank has sent so far, and that it would have sent as float32;
    `compress_s`, `exchange_s`: seconds of computation, and of waiting for collectives.
    """

    def __init__(
        self,
        codec: str | Codec,
        memory: str | ErrorFeedback | None = None,
        *,
        process_group: dist.ProcessGroup | None = None,
        seed: int = 0,
    ):
        self.reducer = GroupReducer(process_group)
        self.compressor: Compressor | AutoCompressor | BucketCompressor
        if isinstance(codec, str) and is_auto(codec):
            self.compressor = AutoCompressor(
                self.reducer, parse_auto(codec), memory, seed=seed, health=self.reducer.health
            )
        else:
            self.compressor = Compressor(self.reducer, codec, memory, seed=seed)
        self.bytes_dense = 0
        self.busy_s = 0.0
        self._tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def bytes_sent(self) -> int:
        return self.reducer.bytes

    @property
    def exchange_s(self) -> float:
        return self.reducer.seconds

    @property
    def compress_s(self) -> float:
        return self.busy_s - self.reducer.seconds

    @property
    def choices(self) -> list[str]:
        """Current codecs of the buckets, in order; empty unless the codec is "auto"."""
        return self.compressor.choices if isinstance(self.compressor, AutoCompressor) else []

    @property
    def decisions(self) -> list[dict[str, Any]]:
        """Every change that `auto` made (AutoCompressor.decisions)."""
        return self.compressor.decisions if isinstance(self.compressor, AutoCompressor) else []

    def state_dict(self) -> dict[str, Any]:
        """The residuals of this rank, for `load_state_dict`: plain values and arrays. Each rank saves and loads its
        own. Raises ConfigError for `auto`, which repeats its measurements, and for codecs by bucket."""
        self._settle()
        return self._kept().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state. Raises ConfigError if it is of another codec, error feedback or seed."""
        self._settle()
        self._kept().load_state_dict(state_dict)

    def _kept(self) -> Compressor:
        if not isinstance(self.compressor, Compressor):
            kind = "'auto'" if isinstance(self.compressor, AutoCompressor) else "codecs by bucket"
            raise ConfigError(f"state_dict of {kind}: expected a CodecState with one codec")
        return self.compressor

    def _settle(self) -> None:
        """Wait for all submitted tasks."""
        if self._thread is not None:
            done = threading.Event()
            self._tasks.put(done.set)
            done.wait()

    def __getstate__(self) -> dict[str, Any]:
        """State for pickling, without the process group, like torch's hooks: unpickled, it has the default group."""
        return {"memory": str(self._kept().error_feedback), "state_dict": self.state_dict(), "lr": self.compressor.lr}

    def __setstate__(self, state: dict[str, Any]) -> None:
        saved = state["state_dict"]
        CodecState.__init__(self, saved["codec"], state["memory"], seed=saved["seed"])
        self.load_state_dict(saved)
        self.compressor.lr = state["lr"]

    def stats(self) -> dict[str, float]:
        """The counters above by name."""
        names = ("bytes_sent", "bytes_dense", "compress_s", "exchange_s")
        return {name: getattr(self, name) for name in names}

    def submit(self, task: Callable[[], None]) -> None:
        """Run `task()` on this state's thread, in the caller's modes, after earlier tasks: the same order on
        all ranks."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="switchml-codec", daemon=True)
            self._thread.start()
        self._tasks.put(partial(_run_in, CallersModes(), task))

    def _run(self) -> None:
        while True:
            task = self._tasks.get()
            start = time.perf_counter()
            task()
            del task  # otherwise its bucket would live until the next task
            self.busy_s += time.perf_counter() - start


def _run_in(modes: CallersModes, task: Callable[[], None]) -> None:
    with modes():
        task()


@never_compiled
def codec_hook(state: CodecState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Mean of a bucket's gradients, compressed.

    1. Take the bucket's buffer (or, if the codec works on matrices, each gradient in it) as float32.
    2. On the state's thread: add the error feedback, compress, exchange, decompress, store the residual.
    3. Write the mean into the buffer and complete the future.
    4. After the last bucket of a backward pass: if any was not finite, restore the residuals of all.

    A gradient that is not float32, float16, bfloat16 or float64 raises UnsupportedTensor out of `backward()`. The first
    iteration's residuals are lost if DDP then rebuilds its buckets.
    """
    buffer = bucket.buffer()
    if not buffer.is_floating_point():
        raise UnsupportedTensor(f"bucket of {buffer.dtype}: codecs take floating-point gradients")
    pieces: list[torch.Tensor] = [buffer]
    shapes: list[tuple[int, ...] | None] = [None]
    if state.compressor.by_matrix:
        pieces = [gradient.view(-1) for gradient in bucket.gradients()]
        shapes = [tuple(gradient.shape) for gradient in bucket.gradients()]
    index, is_last = bucket.index(), bucket.is_last()
    state.bytes_dense += 4 * buffer.numel()
    promise: Promise[torch.Tensor] = Promise([buffer])

    # float32 on the host, copied now: on a GPU this waits for the stream that the hook runs on.
    vectors = [piece.detach().to("cpu", torch.float32).numpy() for piece in pieces]

    def task() -> None:
        failure = None
        compressor = state.compressor
        if index == 0:
            compressor.guards = []
        try:
            for number, (piece, shape, vector) in enumerate(zip(pieces, shapes, vectors, strict=True)):
                mean = compressor.allreduce(f"bucket {index}.{number}", np.ascontiguousarray(vector), shape)
                piece.copy_(torch.from_numpy(mean))
            if is_last:
                roll_back(compressor.guards or [])
                compressor.guards = None
        except BaseException as error:
            failure = error
        promise.complete(buffer, failure)

    state.submit(task)
    return promise.future


class GroupReducer:
    """A Reducer (compressed.py) over a process group of torch.distributed; `seconds` is the time spent in its
    collectives.

    With the backend `switchml`, sums are passed directly to its agent, which supports more kinds of lanes than torch
    has dtypes.
    """

    def __init__(self, group: dist.ProcessGroup | None = None):
        self._group = group
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self.bytes, self.seconds = 0, 0.0
        self._backend = dist.get_backend(group)
        agent = getattr(group or dist.group.WORLD, "agent", None)
        self._agent = AgentReducer(agent) if agent is not None else None
        self._stats = agent.stats if agent is not None else dict
        self._device = torch.device("cuda", torch.cuda.current_device()) if self._backend == "nccl" else "cpu"

    def health(self) -> Health:
        """Counters of the backend's agent."""
        stats: dict[str, Any] = self._stats()
        return Health(**{name: stats[name] for name in ("rtt_s", "sent", "retransmitted")}) if stats else Health()

    def reduce(self, request: Request, context: StepContext) -> Any:
        start = time.perf_counter()
        try:
            return self._reduce(request, context)
        finally:
            self.seconds += time.perf_counter() - start

    def later(self, request: Max, context: StepContext) -> Callable[[], np.ndarray]:
        """Start the request now; the returned function waits for its answer."""
        if self._agent is not None:
            return self._agent.later(request, context)
        tensor = torch.from_numpy(request.values.copy()).to(self._device)
        self.bytes += request.nbytes
        work = dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._group, async_op=True)

        def answer() -> np.ndarray:
            work.wait()
            return tensor.cpu().numpy()

        return answer

    def wire_bytes(self, request: Request) -> int:
        if isinstance(request, Sum | Max) and self._agent is not None:
            return self._agent.wire_bytes(request)
        if isinstance(request, Sum | Max):  # a ring sends and receives nearly twice the vector
            return 2 * request.nbytes * (self.world - 1) // self.world
        gathered = (self.world - 1) * (request.payload.nbytes + 8)
        if isinstance(request, Gather) or self._agent is None:
            return gathered
        return int(min(gathered, self._agent.summed_bytes(request)))

    def _reduce(self, request: Request, context: StepContext) -> Any:
        if self._agent is not None and isinstance(request, Sum | Max):
            before = self._agent.bytes
            answer = self._agent.reduce(request, context)
            self.bytes += self._agent.bytes - before
            return answer
        if isinstance(request, Sum):
            return self._sum(request)
        if isinstance(request, Max):
            return self._all_reduce(request.values, dist.ReduceOp.MAX)
        if isinstance(request, Gather):
            return self._gather(request.payload)
        assert isinstance(request, SparseSum)
        return self._sparse_sum(request, context)

    def _sparse_sum(self, request: SparseSum, context: StepContext) -> np.ndarray:
        """Sum of sparse vectors: gathered, or through the aggregator if that puts fewer bytes on the links."""
        if self._agent is None:
            sizes = self.world * [request.payload.nbytes] if request.is_sized else None
            return sum_of_payloads(self._gather(request.payload, sizes))
        before = self._agent.bytes
        route, payload_bytes = self._agent.route(request, context, lambda largest: (self.world - 1) * largest)
        if route == "gather":
            answer = sum_of_payloads(self._gather(request.payload, payload_bytes.tolist()))
        else:
            answer = self._agent.add_sparse(request, route)
        self.bytes += self._agent.bytes - before
        return answer

    def _sum(self, request: Sum) -> np.ndarray:
        values = request.values
        if values.dtype in (np.int8, np.int16):  # not every backend supports them: NCCL lacks int16
            lanes = self._all_reduce(lanes_of(values), dist.ReduceOp.SUM)
            return values_of(lanes, values.dtype, values.size)
        return self._all_reduce(values, dist.ReduceOp.SUM, request.wire)

    def _all_reduce(self, values: np.ndarray, op: Any, wire: str = "") -> np.ndarray:
        tensor = torch.from_numpy(values.copy()).to(self._device)
        tensor = tensor.to({"float16": torch.float16, "bfloat16": torch.bfloat16}.get(wire, tensor.dtype))
        self.bytes += tensor.numel() * tensor.element_size()
        dist.all_reduce(tensor, op, group=self._group)
        return tensor.to("cpu", torch.from_numpy(values).dtype).numpy()

    def _gather(self, payload: Payload, sizes: list[int] | None = None) -> list[Payload]:
        """Gather all ranks' payloads; `sizes`: their sizes in bytes, if known."""
        raw = torch.frombuffer(bytearray(payload.to_bytes()), dtype=torch.uint8).to(self._device)
        if sizes is None:
            sizes = [int(size) for size in self._all_gather(torch.tensor([raw.numel()], device=self._device))]
            self.bytes += 8
        padded = torch.zeros(max(sizes), dtype=torch.uint8, device=self._device)
        padded[: raw.numel()] = raw
        places = self._all_gather(padded)
        self.bytes += raw.numel()
        rows = [place[:size] for place, size in zip(places, sizes, strict=True)]
        return [Payload.from_bytes(row.cpu().numpy()) for row in rows]

    def _all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        places = [torch.empty_like(tensor) for _ in range(self.world)]
        dist.all_gather(places, tensor, group=self._group)
        return places
