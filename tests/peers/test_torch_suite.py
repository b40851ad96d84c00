"""PyTorch's own tests of torch.distributed, run by `torch_suite.py`: what passes for Gloo passes for `switchml`.

torch_suite.csv lists the cases that fail on four or two ranks without a GPU, all of them for Gloo too.
"""

import csv
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ranks import environment

RUNNER = Path(__file__).with_name("torch_suite.py")
with Path(__file__).with_name("torch_suite.csv").open() as file:
    FAIL_FOR_GLOO = {row["case"] for row in csv.DictReader(file)}
QUICK = (
    "test_all_reduce_sum_async", "test_all_reduce_coalesced_full_group_max", "test_sparse_all_reduce_sum",
    "test_all_gather", "test_isend_torch_profiler", "test_monitored_barrier_gloo_subgroup",
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook", "test_get_backend",
)  # fmt: skip
"""One or two of each kind."""

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch"),
    pytest.mark.skipif(importlib.util.find_spec("expecttest") is None, reason="needs expecttest"),
]


def outcomes(*arguments: str) -> dict[str, dict]:
    """What the runner prints, by case."""
    command = [sys.executable, str(RUNNER), *arguments]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {row["case"]: row for row in map(json.loads, done.stdout.splitlines())}


def failures(rows: dict[str, dict]) -> dict[str, str]:
    return {case: row["why"] for case, row in rows.items() if row["outcome"] == "failed"}


def test_some_of_each_kind():
    """And one that can't pass here, which says why, with the rank's traceback."""
    rows = outcomes(*QUICK, "test_all_to_all")
    assert [row["case"] for row in rows.values() if row["outcome"] == "skipped"] == []
    [(case, why)] = failures(rows).items()
    assert case in FAIL_FOR_GLOO and "ProcessGroupGloo::alltoall" in why and "rank 0: Traceback" in why


@pytest.mark.needs("SWITCHML_TORCH_SUITE")  # any value; ten minutes or more for each number of ranks
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("ranks", [4, 2])
def test_all(ranks):
    rows = outcomes("--ranks", str(ranks))
    unexpected = {case: why for case, why in failures(rows).items() if case not in FAIL_FOR_GLOO}
    assert unexpected == {}, "\n".join(unexpected.values())
    assert sum(row["outcome"] == "passed" for row in rows.values()) >= 90
