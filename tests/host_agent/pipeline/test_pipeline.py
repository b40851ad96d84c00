"""Pipelines in real processes: their gradients are those of one process, and a stage keeps no more than it may."""

import json
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.ranks import run_ranks

torch = pytest.importorskip("torch")

HERE = Path(__file__).parent


def test_pipelines(tmp_path):
    """Of stage counts, micro-batches, unequal stages, schedules and losses; refusals; what a stage keeps at once."""
    ranks = run_ranks(HERE / "pipeline_script.py", 4, tmp_path, timeout_s=60)
    reports = [json.loads(rank.out[rank.out.index("{") :]) for rank in ranks]
    for report in reports:
        assert len(report["equal"]) == 19
        assert {name: off for name, off in (report["equal"] | report["torch"]).items() if not off < 1e-4} == {}
        assert len(report["unusual"]) == 12
        assert {name: off for name, off in report["unusual"].items() if not off < 1e-5} == {}
        assert len(report["refusals"]) == 12, report["refusals"]
    assert [report["in flight"] for report in reports][0] == 4
    assert all(report["in flight"] <= 4 for report in reports) and reports[3]["in flight"] == 1


class TestInbox:
    def test_what_has_come_goes_first_and_gradients_before_activations(self):
        from host_agent.pipeline.messages import BACKWARD, FORWARD, Inbox

        inbox, arrives = Inbox(), [threading.Event() for _ in range(2)]
        inbox.put(FORWARD, 1)
        inbox.put(FORWARD, 0)
        inbox.put(BACKWARD, 0)
        inbox.receive(BACKWARD, 2, lambda micro_batch: arrives[micro_batch].wait())
        assert [inbox.take() for _ in range(3)] == [(BACKWARD, 0), (FORWARD, 0), (FORWARD, 1)]
        arrives[0].set()
        assert inbox.take() == (BACKWARD, 0)
        arrives[1].set()
        assert inbox.take() == (BACKWARD, 1)
        inbox.close()

    def test_a_lost_neighbour_is_heard_of_before_what_waits(self):
        from host_agent.pipeline.messages import FORWARD, Inbox
        from switchml.errors import PeerLost

        def lost(micro_batch):
            raise PeerLost("gone", (3,))

        inbox = Inbox()
        inbox.receive(FORWARD, 2, lost)
        inbox.close()
        inbox.put(FORWARD, 0)
        with pytest.raises(PeerLost, match="gone"):
            inbox.take()


def test_an_activation_of_another_shape_is_not_sent():
    from host_agent.pipeline.stages import send_only_what_fits
    from switchml.errors import UnsupportedTensor

    outputs = {0: ([torch.zeros(2, 6)], []), 1: ([torch.zeros(1, 6)], []), 2: ([torch.zeros(2, 6).half()], [])}
    meta = SimpleNamespace(outputs=(torch.zeros(2, 6),))
    stage = SimpleNamespace(
        is_last=False, stage_index=3, fwd_cache=outputs, _stage_meta=meta, get_fwd_send_ops=lambda micro_batch: "sent"
    )
    send_only_what_fits(stage)
    assert stage.get_fwd_send_ops(0) == "sent"
    with pytest.raises(
        UnsupportedTensor, match=r"output 0 of stage 3, micro-batch 1, is .*\(1, 6\): expected .*\(2, 6\)"
    ):
        stage.get_fwd_send_ops(1)
    with pytest.raises(UnsupportedTensor, match="float16"):
        stage.get_fwd_send_ops(2)
