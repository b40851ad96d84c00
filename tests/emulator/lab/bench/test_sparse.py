"""`--density` of both benchmarks: the tensors that it makes, and what `bench allreduce` reports. No test asks how
long it took."""

import numpy as np
import pytest

from emulator.lab.bench import allreduce, sizes
from emulator.lab.bench.network.measure import Experiment
from emulator.lab.bench.ranks.inputs import shared_tensors
from emulator.lab.bench.sparsity import Sparsity
from emulator.networks.testbed.star import LinkOptions
from switchml.control.allocation import LARGE_SLOTS
from switchml.errors import ConfigError
from tests.support import commands


@pytest.mark.parametrize("overlap", ["random", "full", "none"])
@pytest.mark.parametrize("density", [0, 0.01, 0.2, 1])
def test_owned_blocks(overlap, density):
    sparsity = Sparsity(density, 64, overlap)
    owned = sparsity.owned(4, 64 * 1000 - 5)
    assert owned.shape == (4, 1000) and (owned.sum(1) == round(1000 * density)).all()
    union = {"full": density, "none": min(1, 4 * density), "random": 1 - (1 - density) ** 4}[overlap]
    assert sparsity.union_density(4, 64 * 1000 - 5) == pytest.approx(union, abs=0.05 if overlap == "random" else 0)
    assert (owned == Sparsity(density, 64, overlap).owned(4, 64 * 1000 - 5)).all()


def test_exact_sums_know_of_zeros():
    sparsity = Sparsity(0.3, 32)
    with shared_tensors(1000, 3, sparsity) as tensors:
        expected = np.zeros(1000)
        for rank, row in enumerate(sparsity.owned(3, 1000)):
            values = tensors.read_inputs(rank)[:1000].astype(np.float64)
            expected += np.where(sparsity.elements_of(row, 1000), values, 0)
            assert (tensors.zeros(rank, 1000) == ~sparsity.elements_of(row, 1000)).all()
        assert (tensors.read_sums() == expected).all()


def test_bounds():
    link = LinkOptions(rate_bps=200e6)
    one = Experiment(workers=4, link=link, size_bytes=1 << 20, sparsity=Sparsity(0.25, 256, "full"))
    assert one.union_density == 0.25 and one.union_bound_bps == 4 * one.framing_bound_bps
    assert Experiment(workers=4, link=link, size_bytes=1 << 20, sparsity=Sparsity(0)).union_bound_bps is None
    assert Experiment(workers=4, link=link, size_bytes=1 << 20).union_density == 1
    short, long = sizes.single(32 << 10, 1, 0), sizes.single(1 << 20, 1, 0)
    assert allreduce.union_of_case(Sparsity(1.0), 2, long.elements, short) == 1
    assert allreduce.union_of_case(None, 2, long.elements, short) == 1


@pytest.mark.parametrize(("density", "block"), [(-0.1, 256), (1.1, 256), (0.5, 0)])
def test_nonsense_is_refused(density, block):
    with pytest.raises(ConfigError):
        Sparsity(density, block)


def test_bench_allreduce():
    asked = "--ranks 2 --size 1M --density 0,0.1 --block 64 --against none --repeats 2 --warmup 1"
    empty, some = commands.run_json("bench", "allreduce", *asked.split())["results"]
    assert (some["density"], some["block"], some["overlap"]) == (0.1, 64, "random")
    assert some["union_density"] == pytest.approx(0.19, abs=0.02) and empty["union_density"] == 0
    assert set(some["seconds"]) == {"switchml", "dense"}
    assert some["fraction_of_union_bound"] == pytest.approx(some["ratio_to_dense"] * some["union_density"])
    assert some["max_error"]["switchml"] < 1e-6 and empty["max_error"]["switchml"] == 0
    # Of each call a packet a slot of its queue, and the seal that all ranks have called alike.
    sent = empty["packets"]["sent"] - empty["packets"]["retransmitted"]
    assert sent == 2 * 2 * (LARGE_SLOTS + 1) * empty["calls_per_repeat"]
