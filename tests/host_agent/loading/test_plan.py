"""The planner against slow, obvious writings of what it promises."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from host_agent.loading import orders
from host_agent.loading.heap import NEVER, next_uses
from host_agent.loading.plan import STORAGE, make_plan
from switchml.errors import ConfigError
from tests.support.belady import fewest_misses
from tests.support.examples import examples


@st.composite
def cases(draw, most_ranks=4):
    """Arguments of make_plan: batches of random permutations, the last one of an epoch perhaps in part."""
    ranks = draw(st.integers(1, most_ranks))
    width = ranks * draw(st.integers(1, 4))
    used = width * draw(st.integers(1, 5)) + draw(st.integers(0, 3)) * ranks
    samples = used - draw(st.integers(0, min(ranks, used) - 1))
    generator = np.random.default_rng(draw(st.integers(0, 999)))
    lists = np.array([np.resize(generator.permutation(samples), used) for _ in range(draw(st.integers(1, 4)))])
    return dict(
        batches=orders.batches(lists.astype(np.int32), ranks, width // ranks), samples=samples, ranks=ranks,
        buffer_samples=draw(st.integers(0, 12)), imbalance=draw(st.floats(1, 3)), use_peers=draw(st.booleans()),
        reorder_epochs=draw(st.booleans()), window=draw(st.integers(1, 4)),
    )  # fmt: skip


def played(plan, capacity):
    """Play every rank's steps with plain sets; yields (step, rank, its StepPlan, its buffer before)."""
    buffers = [set() for _ in range(plan.ranks)]
    for step in range(plan.first_step, plan.steps):
        for rank in range(plan.ranks):
            mine = plan.step(step, rank)
            yield step, rank, mine, frozenset(buffers[rank])
        for rank in range(plan.ranks):
            mine = plan.step(step, rank)
            for sample, evicted in mine.kept:
                buffers[rank] -= {evicted}
                assert sample not in buffers[rank]
                buffers[rank].add(sample)
            assert len(buffers[rank]) <= capacity


@examples(60)
@given(cases(), st.data())
def test_a_plan_keeps_its_promises(case, data):
    total = case["batches"].shape[0] * case["batches"].shape[1]
    first = data.draw(st.integers(0, total))
    plan = make_plan(**case, first_step=first)
    width = case["batches"].shape[2]
    most = max(width // plan.ranks, int(width // plan.ranks * case["imbalance"]))
    assert sorted(plan.epochs) == list(range(len(case["batches"])))
    at, trained, lent, fetched = -1, [], set(), set()
    for step, rank, mine, buffer in played(plan, case["buffer_samples"]):
        if step != at:
            at, trained = step, []
            assert lent == fetched
            lent, fetched = set(), set()
        trained += mine.batch.tolist()
        assert 1 <= len(mine.batch) <= most
        # What is said to be in its buffer or another's is there; what it lends, too.
        assert set(mine.batch[mine.source == rank].tolist()) <= buffer
        assert set(mine.lent.tolist()) <= buffer
        lent |= {(rank, sample) for sample in mine.lent.tolist()}
        others = (mine.source != rank) & (mine.source != STORAGE)
        fetched |= set(zip(mine.source[others].tolist(), mine.batch[others].tolist(), strict=True))
        assert case["use_peers"] or not others.any()
        # What it keeps it has just read.
        assert {sample for sample, _ in mine.kept} <= set(mine.batch[mine.source == STORAGE].tolist())
        if rank == plan.ranks - 1:
            epoch, position = divmod(step, plan.steps_per_epoch)
            there = case["batches"][plan.epochs[epoch], position]
            assert sorted(trained) == sorted(there[there >= 0].tolist())
            assert mine.global_batch == len(trained)


@examples(40)
@given(cases())
def test_reads_cover_every_miss_once_a_window(case):
    plan = make_plan(**case)
    for rank in range(plan.ranks):
        step = 0
        while step < plan.steps:
            window = plan.window_of(step)
            assert window.start == step and all(plan.window_of(each) == window for each in window)
            assert step // plan.steps_per_epoch == window[-1] // plan.steps_per_epoch
            missed = {
                sample
                for each in window
                for mine in [plan.step(each, rank)]
                for sample in mine.batch[mine.source == STORAGE].tolist()
            }
            assert plan.reads(window, rank).tolist() == sorted(missed)
            step = window.stop


@examples(40)
@given(cases())
def test_counts_are_those_of_the_steps(case):
    plan = make_plan(**case)
    counts = plan.counts()
    for step, rank, mine, _ in played(plan, case["buffer_samples"]):
        found = [counts[name][step, rank] for name in ("samples", "buffer_hits", "storage_samples", "peer_hits")]
        own, stored = int((mine.source == rank).sum()), int((mine.source == STORAGE).sum())
        assert found == [len(mine.batch), own, stored, len(mine.batch) - own - stored]


@examples(40)
@given(st.integers(1, 5), st.integers(1, 3), st.integers(0, 4), st.integers(0, 99))
def test_evictions_are_the_best_there_are(samples, epochs, capacity, seed):
    generator = np.random.default_rng(seed)
    lists = np.array([generator.permutation(samples) for _ in range(epochs)], np.int32)
    plan = make_plan(orders.batches(lists, 1, 1), samples, 1, buffer_samples=capacity)
    assert plan.counts()["storage_samples"].sum() == fewest_misses(lists.ravel(), capacity)


def test_next_uses_of_batches_by_hand():
    """Not the second time in the same batch; empty places are not used."""
    accesses = np.array([3, 1, 3, 1, 3, -1, 0, 3, -1], np.int64)
    assert next_uses(accesses, 4, 3).tolist() == [4, 3, 4, NEVER, 7, NEVER, NEVER, NEVER, NEVER]


def test_what_a_window_keeps_lies_together():
    """Ten samples, all needed again in one window of the second epoch: the buffer has the first ones of the storage,
    though the last ones are needed earlier."""
    lists = np.array([[4, 9, 1, 6, 3, 8, 0, 5, 2, 7], [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]], np.int32)
    plan = make_plan(orders.batches(lists, 1, 2), 10, 1, buffer_samples=4, window=5)
    assert plan.reads(plan.window_of(5), 0).tolist() == [4, 5, 6, 7, 8, 9]


def test_nobody_goes_without():
    """Both samples of the second batch are in rank 0's buffer; rank 1 gets one of them from there."""
    batches = np.array([[[0, 1, 2, 3], [0, 1, -1, -1]], [[0, 1, 2, 3], [2, 3, -1, -1]]], np.int32)
    plan = make_plan(batches, 4, 2, buffer_samples=4, imbalance=2.0)
    mine, other = (plan.step(1, rank) for rank in range(2))
    assert (len(mine.batch), len(other.batch)) == (1, 1)
    assert (mine.source.tolist(), other.source.tolist(), len(mine.lent)) == ([0], [0], 1)


def test_neighbours_in_storage_go_to_the_same_rank():
    plan = make_plan(np.array([[[5, 0, 4, 1]]], np.int32), 6, 2, buffer_samples=0)
    assert [plan.step(0, rank).batch.tolist() for rank in range(2)] == [[0, 1], [5, 4]]


@pytest.mark.parametrize(
    "wrong", [{"imbalance": 0.5}, {"buffer_samples": -1}, {"window": 0}, {"first_step": 2}, {"first_step": -1}]
)
def test_numbers_out_of_range(wrong):
    arguments = dict(samples=4, ranks=2, buffer_samples=1)
    with pytest.raises(ConfigError, match="expected at least"):
        make_plan(np.array([[[0, 1, 2, 3]]], np.int32), **{**arguments, **wrong})


# Orders


@pytest.mark.parametrize("samples", [12, 13, 15, 23])
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_are_those_of_the_plain_loader(samples, ranks, drop_last):
    torch_data = pytest.importorskip("torch.utils.data")
    ours = orders.batches(orders.distributed(samples, 3, 7, ranks, drop_last=drop_last), ranks, 2, drop_last=drop_last)
    for epoch in range(3):
        plain = []
        for rank in range(ranks):
            sampler = torch_data.DistributedSampler(
                range(samples), num_replicas=ranks, rank=rank, seed=7, drop_last=drop_last
            )
            sampler.set_epoch(epoch)
            loader = torch_data.DataLoader(range(samples), batch_size=2, sampler=sampler, drop_last=drop_last)
            plain.append([batch.tolist() for batch in loader])
        assert len(ours[epoch]) == len(plain[0])
        for step, batch in enumerate(ours[epoch]):
            assert sorted(batch[batch >= 0].tolist()) == sorted(itertools.chain(*(each[step] for each in plain)))


def test_shuffled_is_what_one_process_gets():
    torch = pytest.importorskip("torch")
    loader = torch.utils.data.DataLoader(
        range(11), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(3)
    )
    for lists in orders.shuffled(11, 3, 3):
        assert lists.tolist() == list(itertools.chain(*(batch.tolist() for batch in loader)))


def test_sequential_pads_and_cuts():
    assert orders.sequential(5, 2, 0, 2).tolist() == [[0, 1, 2, 3, 4, 0]] * 2
    assert orders.sequential(5, 1, 0, 2, drop_last=True).tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize(("samples", "drop_last"), [(96, True), (101, True), (101, False)])
def test_blocks_stay_together_and_every_batch_has_as_much_of_each(samples, drop_last):
    first, second = orders.blocks(samples, 2, 7, 4, drop_last=drop_last, block=8, mixed=48)
    assert first.tolist() != second.tolist()
    assert first.tolist() == orders.blocks(samples, 1, 7, 4, drop_last=drop_last, block=8, mixed=48)[0].tolist()
    own = first[: samples - samples % 4]
    assert len(set(own.tolist())) == len(own) and set(first.tolist()) <= set(range(samples))
    assert len(first) == (len(own) if drop_last or samples == 96 else 104)
    for order in (first, second):
        stretch = order[:48]
        blocks, counts = np.unique(stretch // 8, return_counts=True)
        if samples == 96:  # six whole ones
            assert counts.tolist() == [8] * 6 and stretch.tolist() != sorted(stretch.tolist())
            for batch in stretch.reshape(4, 12):  # two of each, where three more or less would be chance
                assert set(np.unique(batch // 8, return_counts=True)[1].tolist()) <= {1, 2, 3}


def test_batches_that_make_no_sense():
    lists = np.arange(10, dtype=np.int32)[None]
    with pytest.raises(ConfigError, match="global batch of 12 .3 ranks, 4 each. from 10 samples"):
        orders.batches(lists, 3, 4, drop_last=True)
    with pytest.raises(ConfigError, match="last batch of an epoch has 1 samples for 3 ranks"):
        orders.batches(lists, 3, 3)
