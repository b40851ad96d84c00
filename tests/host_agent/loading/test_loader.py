"""The loader: the plain loader's batches, whatever the ranks, buffers and faults; resumed at every step."""

import sys
import threading
from collections import Counter
from typing import NamedTuple

import numpy as np
import pytest

from host_agent.loading import orders
from host_agent.loading.batches import collate
from host_agent.loading.fetch import Retries
from host_agent.loading.loader import PlannedLoader
from host_agent.loading.sources.opening import open_source
from switchml.errors import ConfigError, LoadingError
from tests.support.loading import Numbers, Ranks

torch = pytest.importorskip("torch")

SAMPLE_BYTES = 16
AT_ONCE = Retries(attempts=3, back_off_s=0)


class Pair(NamedTuple):
    first: float
    second: bytes


def loader_of(source, rank=0, ranks=1, **options):
    chosen = dict(batch_size=4, epochs=3, seed=5, buffer_bytes=6 * SAMPLE_BYTES, retries=AT_ONCE, window=2, peers=None)
    return PlannedLoader(source, rank=rank, world_size=ranks, **{**chosen, **options})


def numbers_of(batch):
    """The samples of a batch; each must be what it says."""
    assert (batch[:, 0] ** 2 == batch[:, 1]).all()
    return batch[:, 0].tolist()


def epochs_of(loader, count):
    return [[numbers_of(batch) for batch in loader] for _ in range(count)]


def plain(samples, ranks, epochs=3, batch_size=4, seed=5):
    """Samples of each global batch of torch's own loader, sorted: (epochs, steps)."""
    found = []
    for epoch in range(epochs):
        steps = {}
        for rank in range(ranks):
            sampler = torch.utils.data.DistributedSampler(range(samples), ranks, rank, seed=seed)
            sampler.set_epoch(epoch)
            for step, batch in enumerate(torch.utils.data.DataLoader(range(samples), batch_size, sampler=sampler)):
                steps.setdefault(step, []).extend(batch.tolist())
        found.append([sorted(steps[step]) for step in sorted(steps)])
    return found


def together(found):
    """Per rank, epoch, step → global batches."""
    return [[sorted(sum(parts, [])) for parts in zip(*epoch, strict=True)] for epoch in zip(*found, strict=True)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("with_peers", [False, True])
def test_global_batches_are_those_of_the_plain_loader(ranks, with_peers):
    team, sources = Ranks(ranks), [Numbers(45) for _ in range(ranks)]

    def train(rank):
        peers = team.peers() if with_peers else None
        chosen = dict(peers=peers, imbalance=1.0 if with_peers else 1.5, buffer_bytes=12 * SAMPLE_BYTES)
        with loader_of(sources[rank], rank, ranks, **chosen) as loader:
            assert len(loader) == len(plain(45, ranks)[0])
            found = epochs_of(loader, 3)
            team.exchange(None)  # nobody leaves before all have got what they borrow
            return found, loader.counters, loader.plan.counts()

    results = team.run(train)
    assert together([found for found, *_ in results]) == plain(45, ranks)
    for rank, (_, counters, planned) in enumerate(results):
        # Everything came from where the plan says, and storage gave each sample once a window.
        plan = {name: int(planned[name][:, rank].sum()) for name in planned}
        for name in ("buffer_hits", "peer_hits", "storage_samples"):
            assert counters[name] == plan[name]
        assert sum(sources[rank].read_counts.values()) <= plan["storage_samples"] + 1  # and one for its size
        assert counters["peer_failures"] == 0 and counters["steps"] == counters["steps_in_all"]
    assert not with_peers or ranks == 1 or sum(counters["peer_hits"] for _, counters, _ in results) > 0


@pytest.mark.parametrize("ranks", [1, 2])
def test_resumed_at_every_step(ranks):
    expected = plain(22, ranks, epochs=2)
    flat = [batch for epoch in expected for batch in epoch]

    def until(step, rank):
        """State after so many batches, with others ready that nobody took."""
        with loader_of(Numbers(22), rank, ranks, epochs=2) as loader:
            taken = 0
            while taken < step:
                for _ in loader:
                    taken += 1
                    if taken == step:
                        break
            return loader.state_dict()

    for step in range(len(flat) + 1):
        found = []
        for rank in range(ranks):
            with loader_of(Numbers(22), rank, ranks, epochs=2) as loader:
                loader.load_state_dict(until(step, rank))
                found.append(
                    [numbers_of(batch) for _ in range(-(-(len(flat) - step) // len(loader))) for batch in loader]
                )
        assert [sorted(sum(parts, [])) for parts in zip(*found, strict=True)] == flat[step:]


def test_a_state_of_something_else_is_refused():
    state = loader_of(Numbers(22)).state_dict()
    with pytest.raises(ConfigError, match="other batches"):
        loader_of(Numbers(22), seed=6).load_state_dict(state)
    with pytest.raises(ConfigError, match="not a state of this loader"):
        loader_of(Numbers(22)).load_state_dict({"version": 1, "step": 99})


def test_an_epoch_left_early_goes_on():
    loader = loader_of(Numbers(22))
    first = [numbers_of(next(iter(loader)))]
    rest = [numbers_of(batch) for batch in loader]
    assert [sorted(batch) for batch in first + rest] == plain(22, 1)[0]


def test_after_the_last_epoch():
    loader = loader_of(Numbers(22), epochs=1)
    assert len(list(loader)) == 6
    with pytest.raises(ConfigError, match="all 1 epochs of the plan are over"):
        next(iter(loader))


# Faults


def planned_reads(plan):
    """How often the plan reads each sample, on rank 0."""
    windows = {plan.window_of(step) for step in range(plan.steps)}
    return Counter(sample for window in windows for sample in plan.reads(window, 0).tolist())


def test_storage_that_fails_for_a_while():
    """Only what failed is read again; the batches are the same."""
    source = Numbers(22, failures={7: 2, 8: 1})
    loader = loader_of(source)
    assert [sorted(batch) for batch in epochs_of(loader, 1)[0]] == plain(22, 1)[0]
    assert loader.counters["retried"] == 3
    source.read_counts[0] -= 1  # for its size
    assert source.read_counts <= planned_reads(loader.plan)  # how far it has read ahead is chance


def test_a_source_that_raises_is_read_one_by_one_in_the_end():
    class OneIsBad(Numbers):
        def read(self, indices):
            if 9 in indices:
                raise ValueError("bad block")
            return super().read(indices)

    loader = loader_of(OneIsBad(22))
    seen = []
    with pytest.raises(LoadingError, match=r"step \d+: sample 9 of Numbers: bad block .tried 3 times.") as caught:
        for batch in loader:
            seen.append(sorted(numbers_of(batch)))
    assert caught.value.samples == (9,)
    assert seen == plain(22, 1)[0][: len(seen)] and 9 in plain(22, 1)[0][len(seen)]


def test_an_error_names_the_sample_and_nothing_is_lost():
    """Three attempts fail, the fourth, in the next iteration, goes well: that batch and all others come once."""
    source = Numbers(22, failures={13: 3})
    loader = loader_of(source, sample_bytes=SAMPLE_BYTES)
    seen, errors = [], []
    while loader.step < loader.plan.steps:
        try:
            for batch in loader:
                seen.append(sorted(numbers_of(batch)))
        except LoadingError as error:
            errors.append(error)
    assert [error.samples for error in errors] == [(13,)]
    assert seen == [batch for epoch in plain(22, 1) for batch in epoch]
    # And nothing twice: each is read as often as the plan says.
    assert source.read_counts == planned_reads(loader.plan)


def test_storage_that_goes_away_ends_with_one_error():
    loader = loader_of(Numbers(22, failures={None: 10**6}), sample_bytes=SAMPLE_BYTES)
    with pytest.raises(LoadingError, match="storage is away .tried 3 times.; 3 more of this step failed"):
        next(iter(loader))


def test_a_rank_whose_peers_are_gone_reads_from_storage():
    """Rank 1 ends after the first epoch; rank 0 goes on, with the same batches."""
    team, sources = Ranks(2), [Numbers(24) for _ in range(2)]

    def train(rank):
        loader = loader_of(sources[rank], rank, 2, peers=team.peers(), imbalance=1.0, buffer_bytes=24 * SAMPLE_BYTES)
        found = epochs_of(loader, 1)
        team.exchange(None)
        if rank == 1:
            loader.close()
        team.exchange(None)
        return found + (epochs_of(loader, 2) if rank == 0 else []), loader

    (found, loader), _ = team.run(train)
    assert loader.counters["peer_failures"] > 0
    for step, batch in enumerate(batch for epoch in found for batch in epoch):
        assert batch == loader.plan.step(step, 0).batch.tolist()
    loader.close()


def test_close_ends_threads():
    before = set(threading.enumerate())
    loader = loader_of(Numbers(400))
    next(iter(loader))
    loader.close()
    assert {thread.name for thread in set(threading.enumerate()) - before} <= {"switchml-reader_0", "switchml-reader_1"}


# Weights


def test_gradients_are_those_of_one_process():
    """Unequal local batches: the mean of the ranks' scaled gradients is the gradient of the whole batch."""
    generator = torch.Generator().manual_seed(1)
    images, labels = torch.randn(40, 5, generator=generator), torch.randn(40, generator=generator)
    model = torch.nn.Linear(5, 1)

    def gradient(samples, weight=1.0):
        model.zero_grad()
        loss = torch.nn.functional.mse_loss(model(images[samples])[:, 0], labels[samples])
        (loss * weight).backward()
        return torch.cat([model.weight.grad.ravel().clone(), model.bias.grad.clone()])

    loaders = [loader_of(Numbers(40), rank, 3, imbalance=2.0, buffer_bytes=10 * SAMPLE_BYTES) for rank in range(3)]
    sizes = set()
    for _ in range(3):
        for batches in zip(*loaders, strict=True):
            samples = [batch[:, 0] for batch in batches]
            sizes |= {len(each) for each in samples}
            each = [
                gradient(own, loader.scaled(torch.tensor(1.0))) for own, loader in zip(samples, loaders, strict=True)
            ]
            whole = gradient(torch.cat(samples))
            assert torch.allclose(sum(each) / 3, whole, rtol=1e-5, atol=1e-6)
    assert len(sizes) > 2


# Arguments


@pytest.mark.parametrize(("wrong", "what"), [
    ({"batch_size": 0}, "batch_size 0"), ({"prefetch": 0}, "prefetch 0"),
    ({"order": "random"}, "order 'random'; expected distributed, shuffled, sequential, blocks or an array"),
    ({"order": np.array([[0, 99]])}, "expected .3 epochs"), ({"rank": 4}, "rank 4 of 1"),
    ({"ranks": None}, "expected both or none"), ({"peers": "yes"}, "peers 'yes'"),
    ({"imbalance": 0.5}, "imbalance 0.5"), ({"window": 0}, "window 0"),
    ({"order": "blocks", "block_samples": 0}, "block_samples 0; expected at least 1"),
    ({"block_samples": 8}, "block_samples 8; expected at least 1, and only with order='blocks'"),
])  # fmt: skip
def test_arguments_out_of_range(wrong, what):
    with pytest.raises(ConfigError, match=what):
        loader_of(Numbers(22), **wrong)


def test_own_order_and_items():
    order = np.array([[3, 2, 1, 0], [0, 1, 2, 3]])
    loader = PlannedLoader([10, 11, 12, 13], 2, 2, order=order)
    assert [[batch.tolist() for batch in loader] for _ in range(2)] == [[[13, 12], [11, 10]], [[10, 11], [12, 13]]]
    assert loader.counters["reads"] >= 4
    with pytest.raises(ConfigError, match="has no length"):
        PlannedLoader(iter([1]), 1, 1)


@pytest.mark.parametrize("options", [{}, {"block_samples": 16}])
def test_blocks_come_in_few_reads(tmp_path, options):
    """Two ranks together: every sample once an epoch, in a sixth of the reads that a full shuffle takes."""
    np.save(tmp_path / "x.npy", np.arange(1024 * 1024, dtype=np.float32).reshape(1024, 1024))
    reads = {}
    for order in ("blocks", "distributed"):
        loaders = [
            PlannedLoader(
                open_source(str(tmp_path / "x.npy"), gap_bytes=0),
                8,
                2,
                buffer_bytes=400 << 10,
                order=order,
                rank=rank,
                world_size=2,
                peers=None,
                **(options if order == "blocks" else {}),
            )
            for rank in range(2)
        ]
        for _ in range(2):
            found = [int(row[0]) // 1024 for loader in loaders for batch in loader for row in batch]
            assert sorted(found) == list(range(1024))
        reads[order] = sum(loader.counters["reads"] for loader in loaders)
    assert 6 * reads["blocks"] < reads["distributed"]


def test_reordered_epochs_are_all_there():
    loader = loader_of(Numbers(40), reorder_epochs=True, buffer_bytes=20 * SAMPLE_BYTES, order="distributed")
    lists = orders.distributed(40, 3, 5, 1)
    for _ in range(3):
        epoch = loader.epoch
        assert sorted(sum((numbers_of(batch) for batch in loader), [])) == sorted(lists[epoch].tolist())
    assert sorted(loader.plan.epochs) == [0, 1, 2]


@pytest.mark.filterwarnings("ignore:The given NumPy array")
@pytest.mark.parametrize(
    "samples",
    [
        [(np.ones(2), 1, {"name": "a"}), (np.zeros(2), 2, {"name": "b"})],
        [[np.ones(2, np.float32), 1], [np.zeros(2), 0]],  # two samples, not two parts
        [torch.ones(1), torch.zeros(1)],
        [Pair(1.5, b"x"), Pair(2, b"y")],
        [np.frombuffer(b"ab", np.uint8), np.frombuffer(b"cd", np.uint8)],
        [np.float32(1), np.float32(2)],
        [True, False],
        ["a", "b"],
        [["a"], ["b", "c"]],
        [np.array(["a"]), np.array(["b"])],
        [None, None],
    ],
    ids=repr,
)
def test_batches_are_those_of_a_data_loader(samples):
    def made(collated):
        try:
            return repr(collated(samples))
        except (TypeError, RuntimeError) as error:
            return repr(error)

    assert made(collate) == made(torch.utils.data.default_collate)


def test_batches_without_torch(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
        monkeypatch.setitem(sys.modules, name, None)
    x, y = collate([[np.ones(2), {"label": 1}], [np.zeros(2), {"label": 2}]])
    assert x.tolist() == [[1, 1], [0, 0]] and y["label"].tolist() == [1, 2]
