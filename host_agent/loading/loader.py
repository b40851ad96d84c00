"""`PlannedLoader`, a replacement for `DataLoader` with `DistributedSampler`: a plan, its execution in the background,
and iteration over epochs.
"""

from __future__ import annotations

import contextlib
import hashlib
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from host_agent.loading import orders
from host_agent.loading.batches import collate, loss_weight
from host_agent.loading.execution import Execution
from host_agent.loading.fetch import Fetcher, Retries
from host_agent.loading.peers import Peers
from host_agent.loading.plan import IMBALANCE, LoadingPlan, make_plan
from host_agent.loading.sources.others import as_source, traffics
from host_agent.loading.sources.others import sample_bytes as found_bytes
from switchml.errors import ConfigError

WINDOW = 8
"""Default number of steps whose reads are combined."""
BLOCK_BYTES = 64 << 10
"""Default block size of `order="blocks"`: at 25 MB/s it takes 2.6 ms, about as long as a request between an HTTP client
and server."""


class PlannedLoader:
    """Batches of this rank, in every epoch: `for batch in loader` is one epoch, as with DataLoader.

    `dataset`: a source (`open_source`, or any object with `read(indices)`), or a map-style data set. `batch_size`:
    average per rank. `epochs`: total number of epochs. `seed`, `order`: "distributed" gives the global batches of
    DistributedSampler(seed=seed), "shuffled" those of DataLoader(shuffle=True) with a generator of that seed,
    "sequential" those without a shuffle; "blocks" shuffles blocks of `block_samples` adjacent samples (None: of 64 KiB)
    and mixes those of a window; or an integer array (epochs, samples of an epoch) of sample numbers.

    `buffer_bytes`: capacity of this rank's buffer between steps; in addition, it holds the samples read for up to three
    windows. `rank`, `world_size`: default to those of torch.distributed if it is initialized, else 0 of 1. `imbalance`:
    maximum local batch relative to an even share; 1 keeps local batches equal. Otherwise scale each loss: `scaled`.
    `peers`: access to other ranks' samples; "auto" measures whether that is faster than storage; None always uses
    storage. `reorder_epochs`: train epochs in the order with the most reuse of buffers. `window`: number of steps whose
    reads are combined. `prefetch`: number of batches prepared ahead of training. `sample_bytes`: size of the largest
    sample, if the source does not provide it.

    Raises ConfigError for arguments out of range; iterating raises LoadingError for a sample that cannot be read after
    every attempt (`retries`). No batch is lost then: the next iteration continues with that batch.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        epochs: int,
        seed: int = 0,
        buffer_bytes: int = 256 << 20,
        *,
        order: str | np.ndarray = "distributed",
        block_samples: int | None = None,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        imbalance: float = IMBALANCE,
        peers: Peers | str | None = "auto",
        reorder_epochs: bool = False,
        window: int = WINDOW,
        prefetch: int = 2,
        sample_bytes: int | None = None,
        collate_fn: Callable[[list[Any]], Any] = collate,
        retries: Retries | None = None,
    ):
        if batch_size < 1 or epochs < 1 or buffer_bytes < 0 or prefetch < 1 or window < 1:
            raise ConfigError(
                f"batch_size {batch_size}, epochs {epochs}, buffer_bytes {buffer_bytes}, prefetch {prefetch}, window "
                f"{window}; expected at least 1, 1, 0, 1 and 1"
            )
        if block_samples is not None and (block_samples < 1 or not isinstance(order, str) or order != "blocks"):
            raise ConfigError(f"block_samples {block_samples}; expected at least 1, and only with order='blocks'")
        self.source = as_source(dataset)
        self.rank, self.world_size = _place(rank, world_size)
        self.batch_size, self.prefetch = batch_size, prefetch
        self._sample_bytes = max(sample_bytes or found_bytes(self.source), 1)
        listed = (len(self.source), epochs, seed, self.world_size)
        if isinstance(order, str) and order == "blocks":
            block = max(BLOCK_BYTES // self._sample_bytes, 1) if block_samples is None else block_samples
            mixed = window * batch_size * self.world_size
            lists = orders.blocks(*listed, drop_last=drop_last, block=block, mixed=mixed)
        else:
            lists = _lists(order, *listed, drop_last)
        self._batches = orders.batches(lists, self.world_size, batch_size, drop_last=drop_last)
        self._retries = retries or Retries()
        self._collate = collate_fn
        self._peers = _connected(peers, self.source, self.rank, self.world_size)
        self._planning: dict[str, Any] = dict(
            buffer_samples=buffer_bytes // self._sample_bytes,
            imbalance=imbalance,
            use_peers=self._peers is not None,
            reorder_epochs=reorder_epochs,
            window=window,
        )
        self.plan = self._planned(0)
        self.weight = 1.0
        """Weight of the latest batch (`loss_weight`)."""
        self.step = 0
        """Number of batches that training has taken, over all epochs."""
        self._seconds = {"wait_s": 0.0, "waits": 0}
        self._execution: Execution | None = None
        self._thread: threading.Thread | None = None
        self._ready: queue.Queue[Any] = queue.Queue()
        self._stop = threading.Event()
        _latest[:] = [weakref.ref(self)]

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        return self.plan.steps_per_epoch

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the next epoch, or the rest of one that was begun. Raises ConfigError after the last one."""
        if self.step >= self.plan.steps:
            raise ConfigError(
                f"all {len(self.plan.epochs)} epochs of the plan are over; create a loader for more epochs"
            )
        end = (self.step // len(self) + 1) * len(self)
        while self.step < end:
            batch, weight = self._next()
            self.step += 1
            self.weight = weight
            yield batch

    @property
    def epoch(self) -> int:
        """Number of the next batch's epoch in the plain loader; differs from the count of epochs only with
        `reorder_epochs`."""
        return self.plan.epochs[min(self.step, self.plan.steps - 1) // len(self)]

    @property
    def counters(self) -> dict[str, float]:
        """Counters since the start: `steps` of `steps_in_all`; samples by origin (`buffer_hits`, `peer_hits`,
        `storage_samples`); `reads` and `read_bytes` of storage; samples `retried`; `peer_bytes` and `peer_failures`;
        `waits` of training for a batch, and their total seconds, `wait_s`."""
        counts = {name: 0 for name in ("buffer_hits", "peer_hits", "storage_samples", "peer_bytes", "peer_failures")}
        retried = 0
        if (execution := self._execution) is not None:  # another thread may read the counters
            counts |= dict(execution.counts)
            retried = execution.fetcher.retried
        traffic = traffics(self.source)
        return {
            "steps": self.step,
            "steps_in_all": self.plan.steps,
            **counts,
            "reads": sum(each.reads for each in traffic),
            "read_bytes": sum(each.bytes for each in traffic),
            "retried": retried,
            **self._seconds,
        }

    def scaled(self, loss: Any) -> Any:
        """Mean loss of the latest batch, weighted so that DDP's mean of gradients is that of the global batch."""
        return loss * self.weight

    def state_dict(self) -> dict[str, Any]:
        """Position in training, in the interface of torchdata's StatefulDataLoader: for a checkpoint, the same on all
        ranks."""
        return {"version": 1, "step": self.step, "batches": self._digest()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the batches that had been taken, on all ranks; buffers are refilled. Raises ConfigError for
        the state of another data set, seed, number of ranks, batch size or number of epochs."""
        if state.get("version") != 1 or not 0 <= int(state.get("step", -1)) <= self.plan.steps:
            raise ConfigError(f"{state} is not a state of this loader; expected a result of state_dict()")
        if state.get("batches") != self._digest():
            raise ConfigError(
                "the state is of a loader with other batches; expected the same data set, batch_size, epochs, seed, "
                "order and world_size"
            )
        self._end()
        self.step = int(state["step"])
        self.plan = self._planned(self.step)

    def close(self) -> None:
        """Stop the background thread and close connections."""
        self._end()
        if self._peers is not None:
            self._peers.close()

    def __enter__(self) -> PlannedLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _planned(self, first_step: int) -> LoadingPlan:
        return make_plan(self._batches, len(self.source), self.world_size, first_step=first_step, **self._planning)

    def _digest(self) -> str:
        order = np.ascontiguousarray(self._batches[list(self.plan.epochs)])
        return hashlib.sha256(repr(order.shape).encode() + order.tobytes()).hexdigest()

    def _next(self) -> tuple[Any, float]:
        """Take the next batch and its weight from the background thread."""
        if self._thread is None or not self._thread.is_alive() and self._ready.empty():
            self._begin()
        started, is_late = time.perf_counter(), self._ready.empty()
        with _traced():
            found = self._ready.get()
        if is_late:
            self._seconds["waits"] += 1
            self._seconds["wait_s"] += time.perf_counter() - started
        if isinstance(found, BaseException):
            assert self._thread is not None
            self._thread.join()
            raise found
        batch, weight = found
        return batch, weight

    def _begin(self) -> None:
        if self._execution is None:
            if self.plan.first_step != self.step:
                self.plan = self._planned(self.step)
            self._execution = Execution(self.plan, self.rank, Fetcher(self.source, self._retries), self._peers)
        self._ready = queue.Queue(self.prefetch)
        self._stop = threading.Event()
        arguments = (self._execution, self._collate, self._ready, self._stop)
        self._thread = threading.Thread(target=_run, args=arguments, name="switchml-loader", daemon=True)
        self._thread.start()
        weakref.finalize(self, _abandon, self._execution, self._stop)

    def _end(self) -> None:
        if self._execution is not None:
            _abandon(self._execution, self._stop)
            assert self._thread is not None
            self._thread.join()
        self._execution = self._thread = None
        self._ready = queue.Queue()


_latest: list[weakref.ref[PlannedLoader]] = []


def latest_counters() -> dict[str, float]:
    """`PlannedLoader.counters` of the loader created last in this process; empty if it no longer exists."""
    loader = _latest[0]() if _latest else None
    return loader.counters if loader is not None else {}


def _run(
    execution: Execution, collate_fn: Callable[[list[Any]], Any], ready: queue.Queue[Any], stop: threading.Event
) -> None:
    """Main function of the background thread: load batches until the plan's end, or the first error."""
    plan = execution.plan
    try:
        while execution.step < plan.steps and not stop.is_set():
            samples, mine = execution.next_batch()
            weight = loss_weight(len(mine.batch), mine.global_batch, plan.ranks)
            _put(ready, (collate_fn(samples), weight), stop)
    except BaseException as error:  # raised where training takes the batch
        _put(ready, error, stop)


def _abandon(execution: Execution, stop: threading.Event) -> None:
    """Stop the background thread of a loader that has been garbage-collected or closed."""
    stop.set()
    execution.close()


def _put(ready: queue.Queue[Any], item: Any, stop: threading.Event) -> None:
    while not stop.is_set():
        with contextlib.suppress(queue.Full):
            return ready.put(item, timeout=0.1)


def _place(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """(rank, world size), by default those of torch.distributed."""
    if (rank is None) != (world_size is None):
        raise ConfigError(f"rank {rank} and world_size {world_size}: expected both or none")
    if rank is None or world_size is None:
        distributed: Any = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return 0, 1
        return distributed.get_rank(), distributed.get_world_size()
    if not 0 <= rank < world_size:
        raise ConfigError(f"rank {rank} of {world_size}; expected 0 to {world_size - 1}")
    return rank, world_size


def _lists(order: str | np.ndarray, samples: int, epochs: int, seed: int, ranks: int, drop_last: bool) -> np.ndarray:
    if isinstance(order, str):
        if order not in orders.ORDERS:
            raise ConfigError(f"order {order!r}; expected {', '.join(orders.ORDERS)}, blocks or an array")
        return orders.ORDERS[order](samples, epochs, seed, ranks, drop_last=drop_last)
    lists = np.asarray(order)
    if lists.ndim != 2 or len(lists) != epochs or lists.size == 0 or lists.min() < 0 or lists.max() >= samples:
        raise ConfigError(
            f"an order of shape {lists.shape}; expected ({epochs} epochs, samples of an epoch), numbers from 0 to "
            f"{samples - 1}"
        )
    return lists.astype(np.int32)


def _connected(peers: Peers | str | None, source: Any, rank: int, world_size: int) -> Peers | None:
    if isinstance(peers, str):
        if peers != "auto":
            raise ConfigError(f"peers {peers!r}; expected 'auto', None or an object that lends and borrows")
        if world_size == 1 or "torch.distributed" not in sys.modules:
            return None
        from host_agent.loading.rendezvous import quick_peers

        return quick_peers(source, rank, world_size)
    return peers if world_size > 1 else None


def _traced() -> contextlib.AbstractContextManager[Any]:
    """Profiler scope of the wait for a batch, with the name under which profilers recognize data loading."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return contextlib.nullcontext()
    scope: contextlib.AbstractContextManager[Any] = torch.profiler.record_function(
        "enumerate(DataLoader)#PlannedLoader.__next__"
    )
    return scope
