"""Sub-groups whose packets are lost and reordered go on at a standby, each with sums of its own."""

from pathlib import Path

import pytest

from tests.support.launch import Aggregator, until
from tests.support.ranks import start_ranks

pytest.importorskip("torch")

HERE = Path(__file__).parent
STEPS = 10
"""Before and after each loss of an aggregator."""


@pytest.mark.slow
def test_sub_groups_under_loss(tmp_path):
    aggregators = [Aggregator(), Aggregator()]
    ranks = start_ranks(
        HERE / "subgroups_script.py", 3, tmp_path,
        SWITCHML_AGGREGATOR=f"{aggregators[0].address},standby={aggregators[1].address}",
        SWITCHML_FAILOVER_TIMEOUT="100s", SWITCHML_TRANSPORT="udp", SWITCHML_LOSS_RATE="0.03",
        SWITCHML_REORDER_RATE="0.03",
    )  # fmt: skip

    def steps() -> int:
        return int((tmp_path / "steps").read_text()) if (tmp_path / "steps").exists() else 0

    def more_steps() -> None:
        most = steps() + STEPS
        until(lambda: steps() >= most or any(rank.process.poll() is not None for rank in ranks))

    try:
        more_steps()
        for number in (0, 1):
            other = aggregators[number]
            ports = {"control_port": other.control_port, "data_port": other.data_address[1]}
            other.kill()
            more_steps()
            aggregators[number] = Aggregator(**ports)
        (tmp_path / "stop").touch()
        for rank in ranks:
            rank.finish(100)
        assert [(rank.returncode, rank.err[-500:]) for rank in ranks if rank.returncode] == []
        assert f"steps {steps()}" in ranks[0].out
    finally:
        for process in (*(rank.process for rank in ranks), *aggregators):
            process.kill()
