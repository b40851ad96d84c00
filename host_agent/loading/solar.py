"""SOLAR's planning algorithm (Sun et al., VLDB 2023, arXiv 2211.00224). Shuffles follow from a seed, so the lists of
all epochs are known before training, and a plan can be made offline:

1. Order epochs so that each begins with samples that the previous one leaves in the buffers.
2. In each global batch, assign a sample to the rank that holds it, and the others so that ranks read equally much,
   within a bound on the imbalance of batches. The global batch is unchanged, and so is synchronous SGD.
3. Evict the sample whose next use is latest (Belady).
4. Read missing samples that are close together in the file as one range.
"""

from itertools import pairwise

import numpy as np

from host_agent.loading.heap import NEVER, next_uses, pop, push
from switchml.runtime.jit import kernel

EXACT_EPOCHS = 11
"""Maximum number of epochs whose order is searched exactly, in epochs² · 2^epochs steps."""


def overlaps(lists: np.ndarray, samples: int, buffered: int) -> np.ndarray:
    """int64 (epochs, epochs): number of the last `buffered` samples of epoch i that are among the first of epoch j.
    `lists` is (epochs, samples of an epoch)."""
    epochs, used = lists.shape
    is_last = np.zeros((epochs, samples), bool)
    for epoch in range(epochs):
        is_last[epoch, lists[epoch, used - buffered :]] = True
    shared = [is_last[:, lists[epoch, :buffered]].sum(axis=1) for epoch in range(epochs)]
    return np.stack(shared, axis=1).astype(np.int64)


def epoch_order(weight: np.ndarray) -> list[int]:
    """Order of epochs with large overlaps between neighbors: the path of maximum weight, exact for up to EXACT_EPOCHS
    epochs, else greedy from every start and improved by 2-opt."""
    epochs = len(weight)
    if epochs <= 1:
        return list(range(epochs))
    if epochs <= EXACT_EPOCHS:
        return _best_path(weight)
    paths = [_two_opt(_greedy_path(weight, start), weight) for start in range(min(epochs, 16))]
    return max(paths, key=lambda path: path_weight(path, weight))


def path_weight(path: list[int], weight: np.ndarray) -> int:
    """Sum of weights over neighbors in the path."""
    return int(sum(weight[one, other] for one, other in pairwise(path)))


def _best_path(weight: np.ndarray) -> list[int]:
    """Held and Karp's dynamic program over sets of epochs, for a path."""
    epochs = len(weight)
    best = np.full((1 << epochs, epochs), -1, np.int64)
    came_from = np.full((1 << epochs, epochs), -1, np.int64)
    best[1 << np.arange(epochs), np.arange(epochs)] = 0
    for seen in range(1, 1 << epochs):
        for last in np.flatnonzero(best[seen] >= 0).tolist():
            for to in range(epochs):
                total = best[seen, last] + weight[last, to]
                if not seen >> to & 1 and total > best[seen | 1 << to, to]:
                    best[seen | 1 << to, to] = total
                    came_from[seen | 1 << to, to] = last
    seen = (1 << epochs) - 1
    last = int(np.argmax(best[seen]))
    path = []
    while last >= 0:
        path.append(last)
        seen, last = seen & ~(1 << last), int(came_from[seen, last])
    return path[::-1]


def _greedy_path(weight: np.ndarray, start: int) -> list[int]:
    path, left = [start], set(range(len(weight))) - {start}
    while left:
        path.append(max(left, key=lambda epoch: (weight[path[-1], epoch], -epoch)))
        left.remove(path[-1])
    return path


def _two_opt(path: list[int], weight: np.ndarray) -> list[int]:
    """Reverse segments of the path while that improves its weight."""
    best, has_changed = path_weight(path, weight), True
    while has_changed:
        has_changed = False
        for first in range(len(path) - 1):
            for last in range(first + 1, len(path)):
                turned = path[:first] + path[first : last + 1][::-1] + path[last + 1 :]
                total = path_weight(turned, weight)
                if total > best:
                    path, best, has_changed = turned, total, True
    return path


@kernel
def assign(
    batches: np.ndarray,
    samples: int,
    ranks: int,
    capacity: int,
    most: int,
    window: int,
    steps_per_epoch: int,
    first_step: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Steps 2 and 3 of the algorithm. `batches`: int32 (steps, global batch), -1 in empty positions of a short batch;
    each has at least `ranks` samples. `capacity`: number of samples that each rank's buffer holds. `most`: the largest
    local batch; ranks · most must be at least the global batch. Every rank gets at least one sample of each batch.

    `window`: number of steps whose reads are combined (`reads`); `first_step`: number of the first of `batches` in the
    run. Of samples with their next use in the same window, those last in storage are evicted first, so that the samples
    read then are adjacent.

    Returns arrays (steps, global batch): int32, the rank of each sample; int32, the rank whose buffer holds it at the
    beginning of the step, or -1; bool, whether its rank buffers it from then on; int32, the sample evicted for it, or
    -1.
    """
    steps, batch = batches.shape
    rank_of = np.full((steps, batch), -1, np.int32)
    held_by = np.full((steps, batch), -1, np.int32)
    is_kept = np.zeros((steps, batch), np.bool_)
    evicted = np.full((steps, batch), -1, np.int32)
    following = next_uses(batches.reshape(steps * batch), samples, batch)
    if window > 1:
        windows = -(-steps_per_epoch // window)
        for at in range(len(following)):
            if following[at] != NEVER:
                step = first_step + following[at] // batch
                number = step // steps_per_epoch * windows + step % steps_per_epoch // window
                following[at] = number * samples + batches[at // batch, at % batch]
    holder = np.full(samples, -1, np.int32)
    use_of = np.full(samples, -1, np.int64)
    entry_limit = 4 * capacity + batch + 16
    uses, entries = np.empty((ranks, entry_limit), np.int64), np.empty((ranks, entry_limit), np.int64)
    size, count = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
    for step in range(steps):
        for i in range(batch):
            if batches[step, i] >= 0:
                held_by[step, i] = holder[batches[step, i]]
        deal(batches[step], held_by[step], ranks, most, rank_of[step])
        # A rank uses the samples it holds before it evicts; a sample that another rank reads remains with its holder.
        for i in range(batch):
            sample, use, rank = batches[step, i], following[step * batch + i], held_by[step, i]
            if rank >= 0:
                use_of[sample] = use
                size[rank] = _note(holder, use_of, uses[rank], entries[rank], size[rank], rank, use, sample)
        for i in range(batch):
            sample, use, rank = batches[step, i], following[step * batch + i], rank_of[step, i]
            if sample < 0 or held_by[step, i] >= 0 or holder[sample] >= 0:
                continue
            if count[rank] == capacity:
                while size[rank] and _is_stale(holder, use_of, uses[rank, 0], entries[rank, 0], rank):
                    size[rank] = pop(uses[rank], entries[rank], size[rank])
                if size[rank] == 0 or uses[rank, 0] <= use:
                    continue
                evicted[step, i] = entries[rank, 0]
                holder[entries[rank, 0]] = -1
                size[rank] = pop(uses[rank], entries[rank], size[rank])
            else:
                count[rank] += 1
            is_kept[step, i] = True
            holder[sample] = rank
            use_of[sample] = use
            size[rank] = _note(holder, use_of, uses[rank], entries[rank], size[rank], rank, use, sample)
    return rank_of, held_by, is_kept, evicted


@kernel
def deal(batch: np.ndarray, held_by: np.ndarray, ranks: int, most: int, rank_of: np.ndarray) -> None:
    """Step 2 for one batch: fill in `rank_of`, which is initially -1. Samples not held by a rank with room are assigned
    so that ranks read equally much, and samples adjacent in storage go to the same rank."""
    sizes, reads = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
    turn, who = np.empty(ranks + 1, np.int64), np.empty(ranks + 1, np.int64)
    others = np.empty(len(batch), np.int64)
    left, used = 0, 0
    for i in range(len(batch)):
        if batch[i] < 0:
            continue
        used += 1
        rank = held_by[i]
        if rank >= 0 and sizes[rank] < most:
            rank_of[i] = rank
            sizes[rank] += 1
        else:
            others[left] = i
            left += 1
    # Each of the others goes to the rank that reads least so far, with ties broken by batch size: the top of the heap.
    waiting = 0
    for rank in range(ranks):
        if sizes[rank] < most:
            waiting = push(turn, who, waiting, -sizes[rank], rank)
    for _ in range(left):
        rank = who[0]
        waiting = pop(turn, who, waiting)
        sizes[rank] += 1
        reads[rank] += 1
        if sizes[rank] < most:
            waiting = push(turn, who, waiting, -(reads[rank] * (len(batch) + 1) + sizes[rank]), rank)
    by_place = others[:left][np.argsort(batch[others[:left]])]
    at = 0
    for rank in range(ranks):
        for i in by_place[at : at + reads[rank]]:
            rank_of[i] = rank
        at += reads[rank]
    # Every rank gets a sample: a mean over no samples has no gradient.
    for rank in range(ranks):
        if sizes[rank] == 0 and used >= ranks:
            largest = np.argmax(sizes)
            for i in range(len(batch)):
                if rank_of[i] == largest and batch[i] >= 0:
                    rank_of[i] = rank
                    break
            sizes[rank] += 1
            sizes[largest] -= 1


@kernel
def _note(
    holder: np.ndarray,
    use_of: np.ndarray,
    uses: np.ndarray,
    entries: np.ndarray,
    size: int,
    rank: int,
    use: int,
    sample: int,
) -> int:
    """Push a sample's new next use onto its rank's heap; returns the heap's new size. The old entry remains as stale;
    stale entries are removed when the heap is full."""
    if size == len(uses):
        valid = 0
        for at in range(size):
            if not _is_stale(holder, use_of, uses[at], entries[at], rank):
                valid = push(uses, entries, valid, uses[at], entries[at])
        size = valid
    return push(uses, entries, size, use, sample)


@kernel(forceinline=True)
def _is_stale(holder: np.ndarray, use_of: np.ndarray, use: int, sample: int, rank: int) -> bool:
    return bool(holder[sample] != rank or use_of[sample] != use)


@kernel
def ranges(indices: np.ndarray, gap: int) -> tuple[int, int]:
    """Cost of reading sorted `indices` if those at a distance of at most `gap` + 1 are combined into one range: (number
    of reads, samples read, including those in between)."""
    reads, span = 0, 0
    for i in range(len(indices)):
        if i == 0 or indices[i] - indices[i - 1] > gap + 1:
            reads += 1
            span += 1
        else:
            span += indices[i] - indices[i - 1]
    return reads, span


@kernel
def reads(
    batches: np.ndarray,
    rank_of: np.ndarray,
    is_read: np.ndarray,
    ranks: int,
    gap: int,
    window: int,
    steps_per_epoch: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """int64 (steps, ranks) each: local batch sizes, samples read, reads, samples that the reads span. Reads of each
    `window` steps are combined, and count in the first of them; an epoch's last window may be shorter."""
    steps, batch = batches.shape
    sizes, misses = np.zeros((steps, ranks), np.int64), np.zeros((steps, ranks), np.int64)
    joined, span = np.zeros((steps, ranks), np.int64), np.zeros((steps, ranks), np.int64)
    missing = np.empty(batch * window, np.int64)
    first = 0
    while first < steps:
        end = min(first + window, first - first % steps_per_epoch + steps_per_epoch)
        for rank in range(ranks):
            count = 0
            for step in range(first, end):
                for i in range(batch):
                    if rank_of[step, i] == rank:
                        sizes[step, rank] += 1
                        if is_read[step, i]:
                            misses[step, rank] += 1
                            missing[count] = batches[step, i]
                            count += 1
            joined[first, rank], span[first, rank] = ranges(np.unique(missing[:count]), gap)
        first = end
    return sizes, misses, joined, span
