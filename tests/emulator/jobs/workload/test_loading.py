"""Data loaders: caches against plain writings, SOLAR's invariants, and what the figures come from."""

import itertools
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.jobs.workload.loading.caches import lru_misses
from emulator.jobs.workload.loading.loading import LOADERS, Dataset, Storage, loading, loads, read_gap, solar, stalls_s
from host_agent.loading import solar as loading_solar
from host_agent.loading.heap import NEVER, next_uses
from host_agent.loading.plan import make_plan
from host_agent.loading.sources.base import joined
from switchml.errors import ConfigError
from tests.support.belady import fewest_misses
from tests.support.caches import belady_misses, fifo_misses
from tests.support.examples import examples

random_cases = examples(40)
accesses = st.lists(st.integers(0, 9), max_size=60).map(lambda found: np.array(found, np.int64))


@st.composite
def datasets(draw, most_ranks=4):
    ranks = draw(st.integers(1, most_ranks))
    batch = ranks * draw(st.integers(1, 4))
    return Dataset(
        samples=batch * draw(st.integers(1, 6)) + draw(st.integers(0, batch - 1)), sample_bytes=1000.0,
        global_batch=batch, ranks=ranks, epochs=draw(st.integers(1, 5)), buffer_samples=draw(st.integers(0, 12)),
        seed=draw(st.integers(0, 100)),
    )  # fmt: skip


SLOW_DISK = Storage(bytes_per_s=1e6, seek_s=2e-3)


# Caches


@random_cases
@given(accesses)
def test_next_uses(accesses):
    for position, sample in enumerate(accesses.tolist()):
        later = [other for other in range(position + 1, len(accesses)) if accesses[other] == sample]
        assert next_uses(accesses, 10, 1)[position] == (later[0] if later else NEVER)


@random_cases
@given(accesses, st.integers(0, 11))
def test_lru_and_fifo_are_what_their_names_say(accesses, capacity):
    for misses, is_lru in ((lru_misses(accesses, 10, capacity), True), (fifo_misses(accesses, 10, capacity), False)):
        held = OrderedDict()
        for position, sample in enumerate(accesses.tolist()):
            assert misses[position] == (sample not in held)
            if sample in held:
                if is_lru:
                    held.move_to_end(sample)
            elif capacity:
                if len(held) == capacity:
                    held.popitem(last=False)
                held[sample] = None


@examples(40)
@given(st.lists(st.integers(0, 4), max_size=9).map(lambda found: np.array(found, np.int64)), st.integers(0, 4))
def test_belady_is_the_best_there_is(accesses, capacity):
    assert belady_misses(accesses, 5, capacity).sum() == fewest_misses(accesses, capacity)


# SOLAR


def assign(*arguments):
    """Without windows, from the first step."""
    return loading_solar.assign(*arguments, 1, 1, 0)


@random_cases
@given(datasets(), st.floats(1, 2))
def test_solar_leaves_every_global_batch_as_it_was(dataset, imbalance):
    batches = dataset.batches().reshape(-1, dataset.global_batch)
    each = dataset.global_batch // dataset.ranks
    most = max(each, int(each * imbalance))
    rank_of, held_by, *_ = assign(batches, dataset.samples, dataset.ranks, dataset.buffer_samples, most)
    is_read = rank_of != held_by
    assert rank_of.min() >= 0 and rank_of.max() < dataset.ranks
    sizes = np.stack([(rank_of == rank).sum(axis=1) for rank in range(dataset.ranks)])
    assert sizes.max() <= most
    assert (sizes.sum(axis=0) == dataset.global_batch).all()
    # What is not read was read before, by the same rank; and no rank holds more than its buffer.
    seen = [set() for _ in range(dataset.ranks)]
    for step in range(len(batches)):
        for i, sample in enumerate(batches[step].tolist()):
            assert is_read[step, i] or sample in seen[rank_of[step, i]]
        for i, sample in enumerate(batches[step].tolist()):
            seen[rank_of[step, i]].add(sample)
    if dataset.buffer_samples == 0:
        assert is_read.all()


@random_cases
@given(datasets(most_ranks=1))
def test_solar_on_one_rank_misses_no_more_than_belady_and_lru(dataset):
    batches = dataset.batches().reshape(-1, dataset.global_batch)
    rank_of, held_by, *_ = assign(batches, dataset.samples, 1, dataset.buffer_samples, dataset.global_batch)
    is_read = rank_of != held_by
    flat = batches.ravel().astype(np.int64)
    best = belady_misses(flat, dataset.samples, dataset.buffer_samples).sum()
    assert is_read.sum() <= best <= lru_misses(flat, dataset.samples, dataset.buffer_samples).sum()


def test_solar_balances_reads():
    """Rank 0 holds all of the second batch that is held; the samples that must be read go to rank 1."""
    batches = np.array([[0, 1, 2, 3], [4, 5, 0, 2], [6, 7, 0, 2]], np.int32)
    rank_of, held_by, *_ = assign(batches, 8, 2, 8, 3)
    is_read = rank_of != held_by
    assert is_read.tolist() == [[True] * 4, [True, True, False, False], [True, True, False, False]]
    reads = [[int((is_read[step] & (rank_of[step] == rank)).sum()) for rank in range(2)] for step in range(3)]
    assert reads == [[2, 2], [1, 1], [1, 1]]


@examples(30)
@given(st.integers(1, 6), st.integers(0, 99))
def test_epoch_order_is_the_best_path(epochs, seed):
    weight = np.random.default_rng(seed).integers(0, 20, (epochs, epochs))
    path = loading_solar.epoch_order(weight)
    assert sorted(path) == list(range(epochs))
    best = max(loading_solar.path_weight(list(other), weight) for other in itertools.permutations(range(epochs)))
    assert loading_solar.path_weight(path, weight) == best


def test_epoch_order_of_many_epochs_beats_the_given_one():
    weight = np.random.default_rng(0).integers(0, 100, (24, 24))
    path = loading_solar.epoch_order(weight)
    assert sorted(path) == list(range(24))
    assert loading_solar.path_weight(path, weight) > 1.5 * loading_solar.path_weight(list(range(24)), weight)


def test_overlaps_by_hand():
    lists = np.array([[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]])
    assert loading_solar.overlaps(lists, 4, 2).tolist() == [[0, 2, 1], [2, 0, 1], [1, 1, 0]]


def test_ranges_by_hand():
    wanted = np.array([3, 4, 7, 20])
    assert loading_solar.ranges(wanted, 0) == (3, 4)
    assert loading_solar.ranges(wanted, 2) == (2, 6)
    assert loading_solar.ranges(wanted, 12) == (1, 18)
    assert loading_solar.ranges(wanted[:0], 5) == (0, 0)


# Loaders


@random_cases
@given(datasets())
def test_every_loader_accounts_for_every_sample(dataset):
    for name in LOADERS:
        found = loads(name, dataset, SLOW_DISK)
        assert found.batch.shape == (dataset.epochs * dataset.steps, dataset.ranks)
        assert (found.batch.sum(axis=1) == dataset.global_batch).all()
        assert (found.misses + found.peer_hits <= found.batch).all()
        assert (found.reads <= found.misses).all() and (found.misses <= found.read_samples).all()
        assert ((found.reads == 0) == (found.misses == 0)).all()
        assert sorted(found.epochs) == list(range(dataset.epochs))


def test_hit_rates_rank_as_published():
    """Few samples, buffers for a quarter of them each: SOLAR ahead of NoPFS's storage reads, LRU of shuffles near its
    share."""
    dataset = Dataset(samples=4096, sample_bytes=1e5, global_batch=128, ranks=4, epochs=10, buffer_samples=512, seed=1)
    rates = {name: loads(name, dataset, SLOW_DISK).hit_rate() for name in LOADERS}
    assert rates["pytorch"] == 0
    assert 0 < rates["lru"] < 0.15
    assert rates["lru"] < rates["nopfs"]
    assert rates["lru"] < rates["solar"]
    assert rates["solar"] > 0.4


def test_whole_dataset_in_buffers_is_read_once():
    """With no bound on local batches each sample goes to who holds it."""
    dataset = Dataset(samples=256, sample_bytes=1.0, global_batch=32, ranks=4, epochs=5, buffer_samples=64)
    found = solar(dataset, Storage(bytes_per_s=1.0), imbalance=4.0)
    assert found.misses.sum() == found.misses[:8].sum() == 256


def test_seconds_by_hand():
    dataset = Dataset(samples=8, sample_bytes=100.0, global_batch=8, ranks=2, epochs=1)
    storage = Storage(bytes_per_s=1000.0, client_bytes_per_s=400.0, seek_s=0.01, reads_at_once=2)
    found = loads("pytorch", dataset, storage)
    # Four reads of each rank, two at once; 400 bytes at 400 bytes/s, as half of the storage would be 500.
    assert found.seconds(dataset, storage).tolist() == [[0.02 + 1.0, 0.02 + 1.0]]
    assert read_gap(dataset, storage) == 0
    assert read_gap(dataset, Storage(bytes_per_s=1e6, seek_s=1e-3)) == 5


def test_stalls_by_hand():
    """Loading 3 s, training 2 s: from the second step on each waits 1 s. Loading 1 s hides after the first."""
    assert stalls_s(np.full((4, 1), 3.0), np.full(4, 2.0), 1).tolist() == [3, 1, 1, 1]
    assert stalls_s(np.full((4, 1), 1.0), np.full(4, 2.0), 1).tolist() == [1, 0, 0, 0]
    # One slow batch of one rank: two batches in hand bridge it, one does not.
    slow = np.ones((6, 2))
    slow[3, 1] = 5.0
    assert stalls_s(slow, np.full(6, 2.0), 1).tolist() == [1, 0, 0, 3, 0, 0]
    assert stalls_s(slow, np.full(6, 2.0), 3).tolist() == [1, 0, 0, 1, 0, 0]


def test_loading_of_a_job_by_hand():
    """Ten steps of two ranks that read 1 s each and train 2 s: only the first step waits."""
    dataset = Dataset(samples=20, sample_bytes=100.0, global_batch=2, ranks=2, epochs=1)
    found = loading("pytorch", dataset, Storage(bytes_per_s=200.0), 2.0)
    assert found.to_json() == {
        "loader": "pytorch", "stall_s": pytest.approx(0.1), "imbalance_s": 0.0, "busy_s": 1.0, "storage_bytes": 200.0,
        "hit_rate": 0.0, "largest_batch": 1,
    }  # fmt: skip
    with pytest.raises(ConfigError, match="0 batches ahead"):
        loading("pytorch", dataset, SLOW_DISK, 2.0, prefetch=0)


def test_unequal_batches_cost_compute():
    """SOLAR may give a rank a quarter more samples than its share; the step then computes a quarter longer."""
    dataset = Dataset(samples=4096, sample_bytes=1.0, global_batch=128, ranks=4, epochs=3, buffer_samples=1024, seed=1)
    storage = Storage(bytes_per_s=1e9)
    found = loading("solar", dataset, storage, 2.0, compute_s=1.0)
    assert found.largest_batch == 40
    largest = solar(dataset, storage).batch.max(axis=1)
    assert found.imbalance_s == pytest.approx((largest / 32 - 1).mean())
    assert 0.05 < found.imbalance_s <= 0.25
    assert found.stall_s >= found.imbalance_s
    assert loading("lru", dataset, storage, 2.0, compute_s=1.0).imbalance_s == 0


@pytest.mark.parametrize(
    "wrong", [{"samples": 0}, {"global_batch": 7}, {"global_batch": 512}, {"buffer_samples": -1}, {"sample_bytes": 0.0}]
)
def test_datasets_that_make_no_sense(wrong):
    with pytest.raises(ConfigError):
        Dataset(**{**dict(samples=256, sample_bytes=1.0, global_batch=32, ranks=4, epochs=5), **wrong})


def test_unknown_loader():
    with pytest.raises(ConfigError, match="unknown loader 'dali'; expected one of pytorch, lru, nopfs, solar"):
        loads("dali", Dataset(samples=1, sample_bytes=1.0, global_batch=1, ranks=1, epochs=1), SLOW_DISK)


# Beside PlannedLoader


def test_reads_are_those_of_a_planned_loader():
    """Its joined ranges, in its windows, of the same batches."""
    dataset = Dataset(samples=500, sample_bytes=100.0, global_batch=24, ranks=3, epochs=3, buffer_samples=30)
    plan = make_plan(dataset.batches(), 500, 3, buffer_samples=30, use_peers=False, window=8)
    played = solar(dataset, SLOW_DISK, window=8, gap_bytes=250.0, reorder=False)
    found = np.zeros((2, 3), np.int64)
    for rank in range(3):
        for window in {plan.window_of(step) for step in range(plan.steps)}:
            wanted = plan.reads(window, rank)
            for begin, end in joined(100 * wanted, 100 * wanted + 100, gap=250, most=10**9):
                found[:, rank] += 1, wanted[end - 1] + 1 - wanted[begin]
    assert found.tolist() == [played.reads.sum(axis=0).tolist(), played.read_samples.sum(axis=0).tolist()]


def test_reads_that_take_the_processor_longer_than_the_link():
    dataset = Dataset(samples=64, sample_bytes=1000.0, global_batch=8, ranks=2, epochs=1)
    waits = loads("pytorch", dataset, SLOW_DISK)
    slow = Storage(bytes_per_s=1e6, seek_s=2e-3, read_cpu_s=1.0)
    assert waits.seconds(dataset, slow).tolist() == waits.reads.tolist()
    assert loading("solar", dataset, slow, 1.0, window=4, gap_bytes=0).hit_rate == 0
    with pytest.raises(ConfigError, match="in windows of 0"):
        loading("solar", dataset, slow, 1.0, window=0)
