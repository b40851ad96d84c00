"""CUDA tensors without a GPU: results are read behind their copies, whoever waits and how (support/cuda_model.py)."""

import threading
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
c10d = pytest.importorskip("torch._C._distributed_c10d")

from host_agent.pytorch import process_group  # noqa: E402
from tests.support.cuda_model import GpuModel, GpuTensor  # noqa: E402
from tests.support.launch import LocalAggregator, good, on_all  # noqa: E402

RANKS = 2
SUM = sum(range(1, RANKS + 1))


@pytest.fixture(scope="module")
def groups():
    """A group of two ranks, in this process."""
    aggregator = LocalAggregator()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SWITCHML_AGGREGATOR", aggregator.address)
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        store = dist.HashStore()

        def make(rank: int) -> process_group.SwitchMLProcessGroup:
            return process_group.SwitchMLProcessGroup(store, rank, RANKS, timedelta(seconds=100))

        made = good(on_all(range(RANKS), make))
        yield made
        good(on_all(made, lambda group: group.shutdown()))
    aggregator.stop()


@pytest.fixture(params=["side", "caller"])
def model(request, groups, monkeypatch):
    """Either the side streams hold back their copies, or the caller's its kernels."""
    made = GpuModel(request.param)
    made.install(monkeypatch)
    yield made
    for group in groups:
        cuda, group._cuda = group._cuda, None
        if cuda is not None:
            cuda.close()


def on_ranks(groups, do):
    """`do(group, rank)` on all ranks at once."""
    return good(on_all(groups, lambda group: do(group, group.rank())))


def by_wait(work, tensors):
    work.wait()
    return tensors


def by_future(work, tensors):
    """As DDP: the future's value, and nothing else."""
    return work.get_future().wait()


def by_then(work, tensors):
    return work.get_future().then(lambda done: [2 * each for each in done.value()]).then(
        lambda done: [each / 2 for each in done.value()]
    ).wait()  # fmt: skip


def late_future(work, tensors):
    """Asked for when all is over."""
    ended = threading.Event()
    work.get_future().then(lambda done: ended.set())
    assert ended.wait(60)
    return work.get_future().wait()


WAYS = [by_wait, by_future, by_then, late_future]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_sums_are_read_behind_their_copies(groups, model, way, dtype):
    def run(group, rank):
        x = model.tensor(torch.full((3000,), rank, dtype=dtype))
        x += 1  # the caller's kernel, perhaps still to run
        [result] = way(group.allreduce([x]), [x])
        return (result * 2).cpu()

    for seen in on_ranks(groups, run):
        assert torch.equal(seen, torch.full((3000,), 2 * SUM, dtype=dtype))


@pytest.mark.parametrize("way", WAYS)
def test_several_in_flight_and_coalesced(groups, model, way):
    def run(group, rank):
        xs = [model.tensor(torch.full((1000 + n,), float(rank + 1 + n))) for n in range(4)]
        works = [group.allreduce([xs[0]]), group.allreduce_coalesced(xs[1:3]), group.allreduce([xs[3].t()])]
        results = [each for work, of in zip(works, (xs[:1], xs[1:3], xs[3:]), strict=True) for each in way(work, of)]
        return [(each + 1).cpu() for each in results]

    for seen in on_ranks(groups, run):
        assert [each[0].item() for each in seen] == [SUM + RANKS * n + 1 for n in range(4)]
        assert all((each == each[0]).all() for each in seen)


@pytest.mark.parametrize("way", WAYS)
def test_other_collectives(groups, model, way):
    def run(group, rank):
        def result(work, tensors):
            return [each.cpu() for each in way(work, tensors)]

        own = model.tensor(torch.full((500,), float(rank)))
        own += 1
        gathered = [torch.empty(500, device="cuda") for _ in range(RANKS)]
        most, root, part = own * 1, own * 1, torch.empty(250, device="cuda")
        options = c10d.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX
        from_1 = c10d.BroadcastOptions()
        from_1.rootRank = 1
        return (
            result(group.allgather([gathered], [own], c10d.AllgatherOptions()), gathered),
            result(group.allreduce([most], options), [most]),
            result(group.broadcast([root], from_1), [root]),
            result(group._reduce_scatter_base(part, own, c10d.ReduceScatterOptions()), [part]),
        )

    for gathered, [most], [root], [part] in on_ranks(groups, run):
        assert [each.unique().tolist() for each in gathered] == [[1.0], [2.0]]
        assert most.unique().tolist() == root.unique().tolist() == [2.0]
        assert part.unique().tolist() == [SUM]


def test_cpu_tensors_keep_their_turn_among_those_of_a_gpu(groups, model):
    def run(group, rank):
        on_cpu = [torch.full((900 + n,), rank + 1.0 + n) for n in range(6)]
        mixed = [model.tensor(each) if n % 2 else each for n, each in enumerate(on_cpu)]
        works = [group.allreduce([each]) for each in mixed]
        for work in works:
            work.wait()
        return [each.cpu() for each in mixed]

    for seen in on_ranks(groups, run):
        assert [each.unique().tolist() for each in seen] == [[SUM + RANKS * n] for n in range(6)]


def test_the_model_shows_what_reads_too_early(model):
    """Its two hazards: a copy up that nobody waits for, and a copy down that does not wait for the kernel before it."""
    x, side = model.tensor(torch.zeros(8)), torch.cuda.Stream()
    assert isinstance(x, GpuTensor) and x.is_cuda
    x += 1
    if model.lazy == "side":
        with torch.cuda.stream(side):
            x.copy_(torch.full((8,), 5.0), non_blocking=True)
        assert (x * 1).cpu()[0] == 1
        torch.cuda.current_stream().wait_stream(side)
        assert (x * 1).cpu()[0] == 5
        return
    host = torch.empty(8, pin_memory=True)
    for waits in (False, True):
        if waits:
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            host.copy_(x, non_blocking=True)
        side.synchronize()
        assert (host[0] == 1) == waits
