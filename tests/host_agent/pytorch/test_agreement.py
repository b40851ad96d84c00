"""Process groups whose ranks call what differs, what Gloo does of it included."""

import json
from pathlib import Path

import pytest

from tests.support.ranks import run_ranks

pytest.importorskip("torch")
HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.parametrize("debug", ["OFF", "DETAIL"])
def test_calls_that_differ_and_tensors_that_gloo_gets(tmp_path, debug):
    """All that differs is named by both ranks. Shapes are, where TORCH_DISTRIBUTED_DEBUG asks for it."""
    ranks = run_ranks(HERE / "agreement_script.py", 2, tmp_path, timeout_s=200, TORCH_DISTRIBUTED_DEBUG=debug)
    for rank in ranks:
        report = json.loads(rank.out[rank.out.index('{"heard"') :])
        heard = report["heard"]
        named = {
            "a dtype of Gloo's": ("of 10 float32", "of 10 uint8"),
            "sizes of Gloo's": ("of 3 float32 (product)", "of 5 float32 (product)"),
            "a gather": ("a gather of 4 float32", "a gather of 5 float32"),
            "sparse shapes": ("[10, 3]", "[12, 3]"),
        }
        if debug == "DETAIL":
            named["shapes"] = ("of shape [2, 3] on cpu", "of shape [3, 2] on cpu")
        else:
            assert heard["shapes"].startswith(" ("), heard
        for case, calls in named.items():
            assert heard[case].startswith("RanksDisagree") and all(call in heard[case] for call in calls), heard
        assert all(report["results"].values()), report["results"]
