"""Sparse gradients in torch: COO tensors and `nn.Embedding(sparse=True)` under DDP, in real processes."""

import json
from pathlib import Path

import pytest

from tests.support.ranks import run_ranks

torch = pytest.importorskip("torch")


@pytest.mark.slow
@pytest.mark.parametrize("hierarchy", ["none", "node"])
def test_coo_tensors_and_sparse_embeddings(tmp_path, hierarchy):
    ranks = run_ranks(Path(__file__).with_name("sparse_script.py"), 3, tmp_path, SWITCHML_HIERARCHY=hierarchy)
    reports = [json.loads(rank.out[rank.out.index("{") :]) for rank in ranks]
    assert len({report["checksum"] for report in reports}) == 1
    for report in reports:
        assert report["difference"] < 1e-5
        # Four steps of 192 rows of 100 000: dense, each would take 3125 packets.
        assert report["packets"] < 4 * 3125 / 5
    senders = reports[:1] if hierarchy == "node" else reports
    assert all(report["streamed"] > 0 for report in senders)
