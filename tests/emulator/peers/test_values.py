"""What absent ranks contribute."""

import pytest

torch = pytest.importorskip("torch")

from emulator.peers.exchange import Exchange  # noqa: E402
from emulator.peers.recording import Reader, Writer  # noqa: E402
from emulator.peers.values import Op, Values  # noqa: E402
from switchml.errors import ConfigError  # noqa: E402

OWN, NOISE, ZEROS = Values("own"), Values("noise", 0.5, seed=3), Values("zeros")


def reduced(values, tensor, op, real=1, absent=3, draw=0):
    out = tensor.clone()
    values.reduce(out, op, real, absent, draw)
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize(("op", "expected"), [
    (Op.SUM, [4, -8, 12]), (Op.AVG, [1, -2, 3]), (Op.PRODUCT, [1, 16, 81]), (Op.MAX, [1, -2, 3]), (Op.MIN, [1, -2, 3]),
])  # fmt: skip
def test_own_is_what_equal_ranks_would_reduce(op, expected, dtype):
    assert reduced(OWN, torch.tensor([1, -2, 3], dtype=dtype), op).tolist() == expected


def test_own_of_several_real_ranks_is_their_mean():
    """Two real ranks hold 1 and 3, so four hold 1, 3 and twice 2."""
    assert reduced(OWN, torch.tensor([4.0]), Op.SUM, 2, 2).tolist() == [8.0]
    assert reduced(OWN, torch.tensor([4.0]), Op.AVG, 2, 2).tolist() == [2.0]
    assert reduced(OWN, torch.tensor([4]), Op.SUM, 2, 1).tolist() == [6]


@pytest.mark.parametrize(
    ("op", "expected"),
    [(Op.SUM, [1, -2]), (Op.AVG, [0.25, -0.5]), (Op.PRODUCT, [0, 0]), (Op.MAX, [1, 0]), (Op.MIN, [0, -2])],
)
def test_zeros(op, expected):
    assert reduced(ZEROS, torch.tensor([1.0, -2.0]), op).tolist() == expected


def test_counts_and_flags_are_always_own():
    for values in (ZEROS, NOISE):
        assert reduced(values, torch.tensor([7]), Op.SUM).tolist() == [28]


def test_noise_is_of_its_size_and_drawn_anew_and_the_same_everywhere():
    tensor = torch.full((20_000,), 2.0)
    one, again, other = (reduced(NOISE, tensor, Op.SUM, 1, 15, draw) - 32.0 for draw in (5, 5, 6))
    # Fifteen ranks with a noise of 0.5 x 2 each.
    assert float(one.std()) == pytest.approx(15**0.5, rel=0.05)
    assert abs(float(one.mean())) < 0.2
    assert torch.equal(one, again) and not torch.equal(one, other)


@pytest.mark.parametrize(("op", "expected"), [(Op.BAND, 6), (Op.BOR, 6), (Op.BXOR, 0)])
def test_bits(op, expected):
    assert reduced(ZEROS, torch.tensor([6]), op).tolist() == [expected]


# Groups of one real rank


def alone(values=OWN, ranks=(0, 1, 2, 3), me=0, **kwargs):
    return Exchange(ranks, me, (me,), None, values, **kwargs)


def test_all_gather_and_reduce_scatter():
    outs = [torch.zeros(2) for _ in range(4)]
    alone(me=1).all_gather(outs, torch.tensor([1.0, 2.0]), 0)
    assert torch.stack(outs).tolist() == [[1.0, 2.0]] * 4
    alone(ZEROS, me=1).all_gather(outs, torch.tensor([1.0, 2.0]), 0)
    assert torch.stack(outs).tolist() == [[0, 0], [1, 2], [0, 0], [0, 0]]
    out = torch.zeros(1)
    alone(me=1).reduce_scatter(out, [torch.tensor([float(rank)]) for rank in range(4)], Op.SUM, 0)
    assert out.tolist() == [4.0]


def test_all_to_all_mirrors_so_that_sizes_hold():
    """Absent rank r sends what it is sent; where it was to send more, the same again."""
    chunks = [torch.tensor([1.0]), torch.tensor([2.0, 3.0]), torch.empty(0), torch.tensor([4.0])]
    outs = [torch.zeros(1), torch.zeros(2), torch.zeros(1), torch.zeros(3)]
    alone().all_to_all(outs, chunks, 0)
    assert [out.tolist() for out in outs] == [[1.0], [2.0, 3.0], [0.0], [4.0, 4.0, 4.0]]


def test_outputs_may_be_the_inputs():
    tensors = [torch.tensor([float(rank)]) for rank in range(4)]
    alone().all_to_all(tensors, tensors, 0)
    assert [float(tensor) for tensor in tensors] == [0, 1, 2, 3]


# Recorded runs


def record(folder, steps):
    """Rank 0 of two: it gave 1, 2, 3, …, the other ten times as much."""
    writer = Writer(folder, 0)
    for step in range(steps):
        given = torch.tensor([step + 1.0])
        writer.add(((0, 1), step), "all_reduce", [given], [given * 11])
    writer.close()


def replayed(folder, **kwargs):
    return Exchange((0, 1), 0, (0,), None, OWN, reader=Reader(folder, 0))


def test_recorded_peers_give_what_they_gave(tmp_path):
    record(tmp_path, 2)
    same, other = torch.tensor([1.0]), torch.tensor([5.0])
    exchange = replayed(tmp_path)
    exchange.all_reduce(same, Op.SUM, 0)
    exchange.all_reduce(other, Op.SUM, 1)
    assert (same.item(), other.item()) == (11.0, 25.0)


def test_recorded_chunks_and_copies(tmp_path):
    """A reduce-scatter and an all-gather of two ranks, played back to rank 0 alone."""
    writer = Writer(tmp_path, 0)
    mine, other = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])], torch.tensor([10.0, 20.0])
    writer.add(((0, 1), 0), "reduce_scatter", mine, [mine[0] + other])
    writer.add(((0, 1), 1), "all_gather", [mine[0]], [mine[0], other])
    writer.close()
    exchange = replayed(tmp_path)
    out = torch.zeros(2)
    exchange.reduce_scatter(out, [mine[0] * 2, mine[1]], Op.SUM, 0)
    assert out.tolist() == [12.0, 24.0]
    outs = [torch.zeros(2), torch.zeros(2)]
    exchange.all_gather(outs, mine[0] * 3, 1)
    assert torch.stack(outs).tolist() == [[3.0, 6.0], [10.0, 20.0]]


def test_a_recording_that_does_not_fit_says_so(tmp_path):
    record(tmp_path, 1)
    with pytest.raises(ConfigError, match="has 1 collectives of that group"):
        replayed(tmp_path).all_reduce(torch.ones(1), Op.SUM, 1)
    with pytest.raises(ConfigError, match="number 0 of ranks 0, 1.*float32.*float64.*record it again"):
        replayed(tmp_path).all_reduce(torch.ones(2, dtype=torch.float64), Op.SUM, 0)
    with pytest.raises(ConfigError, match="no recorded run of rank 3"):
        Reader(tmp_path, 3)
    (tmp_path / "rank0.jsonl").write_text("what\n")
    with pytest.raises(ConfigError, match="rank0.jsonl is not a recorded run"):
        Reader(tmp_path, 0)


def test_a_truncated_recording_says_so(tmp_path):
    record(tmp_path, 1)
    (tmp_path / "rank0.bin").write_bytes(b"\0\0")
    with pytest.raises(ConfigError, match="cut off"):
        replayed(tmp_path).all_reduce(torch.ones(1), Op.SUM, 0)
