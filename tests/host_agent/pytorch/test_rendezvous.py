"""How ranks of a group name their job, wait for an aggregator, and say that there is none: without ranks' processes."""

import sys
from datetime import timedelta

import pytest

pytest.importorskip("torch")

from torch.distributed import HashStore

from host_agent.pytorch import store
from host_agent.pytorch.rendezvous import Rendezvous, ToldByAnother, reach_timeout_s, without_traceback
from host_agent.pytorch.store import own_part
from switchml.control import client
from switchml.errors import ConfigError, JoinError
from tests.support.launch import good, on_all


def ranks(count=2, known=None, store=None):
    store = store or HashStore()
    return [Rendezvous(store, rank, count, "group", timedelta(seconds=30), known) for rank in range(count)]


@pytest.mark.parametrize(("chosen", "run_id", "known", "pattern"), [
    ("", "none", None, r"torch-[0-9a-f]{6}"),
    ("", "c0ffee00-1234-5678-9abc-def012345678", None, r"c0ffee00-123-[0-9a-f]{6}"), ("mine", "none", None, "mine"),
    ("mine", "none", "127.0.0.1:1", r"mine-[0-9a-f]{6}"),
])  # fmt: skip
def test_job_names_are_short_and_can_be_chosen(monkeypatch, chosen, run_id, known, pattern):
    import re

    monkeypatch.setenv("SWITCHML_JOB", chosen)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", run_id)
    monkeypatch.setenv("SWITCHML_AGGREGATOR", "127.0.0.1:1")
    monkeypatch.setattr(client, "wait_for", lambda *args, **options: None)
    zero, one = ranks(known=known)
    invitation = zero.meet()
    assert re.fullmatch(pattern, invitation.job) and one.meet() == invitation


def test_rank_0_waits_for_an_aggregator_and_tells_the_others(monkeypatch):
    monkeypatch.setenv("SWITCHML_AGGREGATOR", "127.0.0.1:1")
    monkeypatch.setenv("SWITCHML_JOIN_TIMEOUT", "250ms")
    zero, one = ranks()
    with pytest.raises(JoinError, match=r"no aggregator answered at 127.0.0.1:1 within 0.25 s") as first:
        zero.meet()
    assert not isinstance(first.value, ToldByAnother)
    with pytest.raises(ToldByAnother, match="rank 0: no aggregator answered at 127.0.0.1:1"):
        one.meet()


def test_a_round_finds_nothing_of_the_rounds_before_it():
    """As torchrun restarts workers on one store: rounds end before all have come, and change their size."""
    store, found = HashStore(), []

    def arrive(rank, size, timeout_s=30.0):
        found.append((rank, own_part(store, rank, size, timedelta(seconds=timeout_s))))

    with pytest.raises(JoinError, match="ranks 1-2 did not join within 0.01 s"):
        arrive(0, 3, timeout_s=0.01)
    with pytest.raises(JoinError, match="no rendezvous in torch's store"):  # rank 2 came, rank 0 had died
        arrive(2, 3, timeout_s=0.01)
    for size in (3, 3, 2):
        found.clear()
        good(on_all(range(size), lambda rank, size=size: arrive(rank, size)))
        parts = dict(found)
        assert sorted(parts) == list(range(size))
        assert not parts[0].check(["invitation"])
        parts[0].set("invitation", "of this round")
        assert all(part.get("invitation") == b"of this round" for part in parts.values())


def test_waiting_is_said_once(monkeypatch, caplog):
    monkeypatch.setattr(client, "NOTICE_S", 0.0)
    with pytest.raises(JoinError):
        client.wait_for("127.0.0.1:1", timeout_s=0.7)
    assert [record.getMessage() for record in caplog.records] == [
        "switchml: waiting for the aggregator at 127.0.0.1:1, 1 s at most …"
    ]


def test_how_long_it_waits(monkeypatch):
    monkeypatch.delenv("SWITCHML_JOIN_TIMEOUT", raising=False)
    assert reach_timeout_s() == 30
    monkeypatch.setenv("SWITCHML_JOIN_TIMEOUT", "2min")
    assert reach_timeout_s() == 120
    monkeypatch.setenv("SWITCHML_JOIN_TIMEOUT", "soon")
    with pytest.raises(ConfigError, match="SWITCHML_JOIN_TIMEOUT: 'soon'"):
        reach_timeout_s()


def test_one_rank_says_what_is_wrong_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "excepthook", lambda *error: print("traceback", file=sys.stderr))
    without_traceback()
    sys.excepthook(ToldByAnother, ToldByAnother("rank 0: nobody there"), None)
    assert capsys.readouterr().err == ""
    sys.excepthook(JoinError, JoinError("nobody there"), None)
    assert capsys.readouterr().err == "switchml: error: nobody there\n"
    sys.excepthook(ValueError, ValueError("other"), None)
    assert capsys.readouterr().err == "traceback\n"
    assert client.REACH_TIMEOUT == "30s"


def test_rank_0_says_who_has_not_come(monkeypatch, caplog):
    monkeypatch.setattr(store, "NOTICE_S", 0.1)
    with pytest.raises(JoinError, match="ranks 1-2 did not join within 0.5 s"):
        own_part(HashStore(), 0, 3, timedelta(seconds=0.5))
    assert "rank 0 has waited 0 s for ranks 1-2 to join the process group" in caplog.messages
