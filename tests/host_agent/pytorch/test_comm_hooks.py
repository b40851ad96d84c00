"""The DDP hook in real processes, over our backend and over Gloo."""

import json
from pathlib import Path

import pytest

from tests.support.ranks import run_ranks

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.slow

CODECS = ("none", "bf16", "topk:ratio=0.1", "topk:ratio=1")
SCRIPT = Path(__file__).parent / "hooks_script.py"


@pytest.mark.parametrize("backend", ["switchml", "gloo"])
def test_hooked_models_stay_equal_and_send_less(tmp_path, backend):
    for rank in run_ranks(SCRIPT, 2, tmp_path, backend, *CODECS, timeout_s=200):
        report = json.loads(rank.out[rank.out.index("{") :])
        dense = report["none"]["bytes_dense"]
        assert dense == 4 * 4 * (20 * 40 + 40 + 40 * 3 + 3)
        assert dense <= report["none"]["bytes_sent"] <= dense + 100  # and the words by which the ranks agree
        assert report["topk:ratio=0.1"]["bytes_sent"] < dense / 4
        # What is sent whole changes nothing, or next to it; what is not does.
        assert report["none"]["difference"] < 1e-6 and report["topk:ratio=1"]["difference"] < 1e-6
        assert 0 < report["bf16"]["difference"] < report["topk:ratio=0.1"]["difference"]
        for codec, found in report["overflow"].items():
            # Of the third step only the first layer overflows, and no bucket remembers anything.
            assert found["finite"] == [[step != 2, True] for step in range(5)], (codec, found)
            assert found["kept"] == [step == 2 for step in range(5)], (codec, found)
            assert found["tensors"] >= 2 and found["scale"] == 1.0
        assert "RanksDisagree" in report["odd"] and "topk:ratio=0." in report["odd"]
