"""CUDA tensors without a GPU: results are read behind their copies, whoever waits and how (support/cuda_model.py)."""

import contextlib
import threading
from datetime import timedelta
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
c10d = pytest.importorskip("torch._C._distributed_c10d")

from host_agent import recording  # noqa: E402
from host_agent.pytorch import cuda, process_group  # noqa: E402
from switchml.errors import RanksDisagree  # noqa: E402
from tests.support.cuda_model import GpuModel, GpuTensor  # noqa: E402
from tests.support.launch import LocalAggregator, good, on_all  # noqa: E402

RANKS = 2
SUM = sum(range(1, RANKS + 1))


@contextlib.contextmanager
def groups_of_ranks():
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


@pytest.fixture(scope="module")
def groups():
    with groups_of_ranks() as made:
        yield made


@pytest.fixture(params=["side", "caller"])
def model(request, groups, monkeypatch):
    """Either the side streams hold back their copies, or the caller's its kernels. Tensors go in pieces of 2 kB."""
    made = GpuModel(request.param)
    made.install(monkeypatch)
    monkeypatch.setattr(cuda, "PIECE_BYTES", 2048)
    yield made
    for group in groups:
        staging, group._cuda = group._cuda, None
        if staging is not None:
            staging.close()


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


@pytest.mark.parametrize("numel", [500, 3000])
@pytest.mark.parametrize("way", WAYS)
def test_other_collectives(groups, model, way, numel):
    def run(group, rank):
        def result(work, tensors):
            return [each.cpu() for each in way(work, tensors)]

        own = model.tensor(torch.full((numel,), float(rank)))
        own += 1
        gathered = [torch.empty(numel, device="cuda") for _ in range(RANKS)]
        most, root, part = own * 1, own * 1, torch.empty(numel // 2, device="cuda")
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


@pytest.mark.parametrize("turned", [False, True])
def test_each_element_goes_to_its_place(groups, model, turned):
    """Of all pieces of all ranks, also where a tensor does not lie in order."""
    values = [torch.randn(20, 150, generator=torch.Generator().manual_seed(rank)) for rank in range(RANKS)]

    def laid(values):
        return model.tensor(values.t().contiguous()).t() if turned else model.tensor(values)

    def run(group, rank):
        summed, root, part, whole = (laid(values[rank]) for _ in range(4))
        part, whole = part[:10] * 0, torch.cat([whole, whole]) * 0
        assert summed.is_contiguous() != turned
        from_1 = c10d.BroadcastOptions()
        from_1.rootRank = 1
        works = [
            group.allreduce([summed]),
            group.broadcast([root], from_1),
            group._reduce_scatter_base(part, laid(values[rank]), c10d.ReduceScatterOptions()),
            group._allgather_base(whole, laid(values[rank]), c10d.AllgatherOptions()),
        ]
        for work in works:
            work.wait()
        return [each.cpu() for each in (summed, root, part, whole)]

    total = values[0] + values[1]
    for rank, (summed, root, part, whole) in enumerate(on_ranks(groups, run)):
        torch.testing.assert_close(summed, total)
        torch.testing.assert_close(part, total[10 * rank : 10 * rank + 10])
        assert torch.equal(root, values[1]) and torch.equal(whole, torch.cat(values))


def test_a_piece_is_summed_while_the_next_comes_down(groups, model, monkeypatch):
    happened = []

    def noted(what, call):
        return lambda *args: (happened.append(what), call(*args))[1]

    def run(group, rank):
        x = model.tensor(torch.ones(3000))
        if rank == 0:
            staging = group.staging([x])
            monkeypatch.setattr(group, "call_agent", noted("called", group.call_agent))
            queue = staging.when_landed
            monkeypatch.setattr(
                staging,
                "when_landed",
                lambda landed, *rest, **named: queue(
                    SimpleNamespace(synchronize=noted("landed", landed.synchronize)), *rest, **named
                ),
            )
        group.allreduce([x]).wait()

    on_ranks(groups, run)
    assert happened == ["landed", "called"] * 6


def test_pieces_are_one_call_in_a_recording(groups, model):
    """And so for whoever reads a capture: as many calls as DDP has buckets."""
    recorded = recording.start()

    def run(group, rank):
        x, y = (model.tensor(torch.ones(numel)) for numel in (3000, 100))
        for work in [group.allreduce([x]), group.allreduce([y]), group.allreduce([x])]:
            work.wait()

    on_ranks(groups, run)
    recording.stop(recorded)
    logs = [log for log in recorded.logs if log.calls]
    assert len(logs) == RANKS
    for log in logs:
        calls = log.calls_array()
        assert calls["bytes"].tolist() == [12000, 400, 12000] and not calls["failed"].any()
        assert len(set(calls["launch"].tolist())) == 3 and (calls["launch"] >= 0).all()
        assert (calls["submitted"] <= calls["started"]).all() and (calls["started"] <= calls["done"]).all()
        packets = log.packets
        assert set(packets["tensor"].tolist()) == set(calls["tensor"].tolist())
        first = packets[packets["tensor"] == calls["tensor"][0]]
        assert len(set(first["chunk"].tolist())) >= 12, "those of different pieces are different chunks"


def test_pieces_never_meet_whole_tensors(monkeypatch):
    """Of ranks that call all-reduces of other sizes, or of tensors on other devices."""
    with groups_of_ranks() as groups:
        model = GpuModel("side")
        model.install(monkeypatch)
        monkeypatch.setattr(cuda, "PIECE_BYTES", 2048)

        def run(group, rank):
            xs = [model.tensor(torch.ones(512)) for _ in range(2)] if rank else [model.tensor(torch.ones(1024))]
            with pytest.raises(RanksDisagree, match="piece 1 of 2 of 1,024 elements"):
                for work in [group.allreduce([x]) for x in xs]:
                    work.wait()

        on_ranks(groups, run)


@pytest.mark.parametrize("numel, item", [(0, 4), (1, 2), (511, 4), (512, 4), (513, 4), (10_000, 1), (7, 4096)])
def test_cuts_are_the_whole(model, numel, item):
    pieces = cuda.cuts(numel, item)
    assert [n for begin, end in pieces for n in range(begin, end)] == list(range(numel))
    assert len(pieces) == max(1, -(-numel // max(2048 // item, 1)))


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
