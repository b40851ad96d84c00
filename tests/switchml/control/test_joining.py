"""Client and server together: joining, leaving, being refused, TLS, and a port that strangers talk nonsense to."""

from __future__ import annotations

import _thread
import socket
import threading
from pathlib import Path

import grpc
import pytest

from switchml.control import client, rpc, v2_pb2
from switchml.control.client import AggregatorLost, PeerLeft
from switchml.control.server import Controller
from switchml.errors import ConfigError, JoinError
from tests.support.certificates import certificate
from tests.support.fake_dataplane import FakeDataplane
from tests.support.launch import until
from tests.switchml.control.conftest import DEADLINE_S, Heard


def test_all_ranks_learn_the_same_job(aggregator):
    sessions = aggregator.fill(3, payload_bytes=256, wire=1, slots=64, receive_buffer_bytes=1 << 20)
    (spec,) = aggregator.plane.jobs.values()
    for rank, session in enumerate(sessions):
        info = session.info
        assert (info.job, info.rank, info.world_size) == ("x", rank, 3)
        assert (info.job_id, info.job_tag, info.isn, info.slots) == (
            spec.job_id,
            spec.job_tag,
            spec.isn,
            spec.slots,
        ) and info.slots == 64
        assert (info.payload_bytes, info.wire, info.window) == (256, 1, 64)
        assert info.data_address == aggregator.plane.address
        assert [peer.rank for peer in info.peers] == [0, 1, 2] and info.peers[0].host == socket.gethostname()


@pytest.mark.parametrize("padded", [False, True])
def test_ranks_learn_whether_the_switch_wants_padding(aggregator, padded):
    aggregator.plane.padded = padded
    assert [session.info.padded for session in aggregator.fill(2)] == [padded] * 2


def test_leaving_is_reported_to_the_others_and_frees_the_job(aggregator):
    first, second, third = aggregator.fill(3)
    heard = Heard(third)
    first.leave()
    first.leave()
    first.close()
    event = heard.next()
    assert isinstance(event, PeerLeft) and event.ranks == (0,) and event.reason.endswith("left the job")
    second.leave()
    assert heard.next().ranks == (1,)
    assert len(aggregator.plane.jobs) == 1
    third.leave()
    until(lambda: not aggregator.plane.jobs)
    assert heard.threads == {"switchml-events"} and len(heard.events) == 2
    with aggregator.join() as rejoined:
        assert rejoined.info.job == "x"


def test_events_that_came_early_are_not_lost(aggregator):
    first, second = aggregator.fill(2)
    first.leave()
    until(lambda: client.status(aggregator.address).jobs[0].state == "ending")
    assert Heard(second).next().ranks == (0,)
    with pytest.raises(ConfigError, match="called twice"):
        second.events(print)


def test_the_secret_comes_from_the_environment(aggregator, monkeypatch):
    monkeypatch.setenv("SWITCHML_SECRET", "ours")
    aggregator.join()
    monkeypatch.delenv("SWITCHML_SECRET")
    with pytest.raises(JoinError, match="has another secret"):
        aggregator.join(data_address=("127.0.0.1", 5))


def test_a_rank_that_waits_says_for_whom(aggregator, monkeypatch, caplog):
    monkeypatch.setattr(client, "NOTICE_S", 0.1)
    with pytest.raises(JoinError, match="did not fill"):
        aggregator.join(1, 3, timeout_s=2.0)
    assert "job 'x' rank 1: has waited 0 s (limit 2 s) for 2 of 3 ranks to join: ranks 0, 2" in caplog.messages


def test_arguments_that_make_no_sense_never_leave_the_client(aggregator):
    with pytest.raises(ConfigError, match="can't ask to join job 'x' as rank -1"):
        aggregator.join(-1)
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        client.join("nowhere", job="x", rank=0, world_size=1, data_address=("127.0.0.1", 1))


def test_workers_may_start_before_the_aggregator(start):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    joined: list[client.Session] = []
    waiting = threading.Thread(
        target=lambda: joined.append(
            client.join(
                f"127.0.0.1:{port}", job="x", rank=0, world_size=1, data_address=("127.0.0.1", 1), timeout_s=DEADLINE_S
            )
        )
    )
    waiting.start()
    until(lambda: any(thread.name == "switchml-control" for thread in threading.enumerate()))
    start(control_port=port, events_port=0)
    waiting.join()
    assert joined[0].info.world_size == 1


def test_nobody_there_is_an_error_that_says_where():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(JoinError, match=f"no aggregator answered at 127.0.0.1:{port} within 0.3 s.*switchml aggregate"):
        client.join(f"127.0.0.1:{port}", job="x", rank=0, world_size=1, data_address=("127.0.0.1", 1), timeout_s=0.3)
    with pytest.raises(JoinError, match=f"no answer from an aggregator at 127.0.0.1:{port}"):
        client.status(f"127.0.0.1:{port}")


def test_an_interrupted_join_removes_the_rank(aggregator):
    def interrupt() -> None:
        until(lambda: client.status(aggregator.address).jobs)
        _thread.interrupt_main()

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        aggregator.join(0, 2)
    until(lambda: client.status(aggregator.address).jobs[0].state == "failed")


def test_stopping_tells_every_rank(aggregator):
    running = Heard(aggregator.join(job="y", data_address=("127.0.0.1", 9)))
    outcome: list[JoinError] = []

    def wait() -> None:
        with pytest.raises(JoinError) as caught:
            aggregator.join(0, 2)
        outcome.append(caught.value)

    waiting = threading.Thread(target=wait)
    waiting.start()
    until(lambda: len(client.status(aggregator.address).jobs) == 2)
    aggregator.controller.stop()
    waiting.join()
    assert running.next() == AggregatorLost("aggregator shut down")
    assert "aggregator shut down" in str(outcome[0]) and aggregator.plane.jobs == {}


def test_leaving_for_another_rank_needs_its_token(aggregator):
    first, second = aggregator.fill(2)
    with grpc.insecure_channel(aggregator.address) as channel:
        rpc.client(channel, client.JOBS).Leave(v2_pb2.LeaveRequest(token="0" * 32), timeout=DEADLINE_S)
    assert client.status(aggregator.address).jobs[0].state == "running"


def test_a_used_port_is_one_clear_error(aggregator):
    port = aggregator.addresses.control[1]
    with pytest.raises(ConfigError, match=f"control port 127.0.0.1:{port} can't be opened: Address already in use"):
        Controller(FakeDataplane(), control_port=port).start()
    events = aggregator.addresses.events[1]
    with pytest.raises(ConfigError, match=f"events port 127.0.0.1:{events}: Address already in use"):
        Controller(FakeDataplane(), control_port=0, events_port=events).start()
    with pytest.raises(ConfigError, match="metrics port"):
        Controller(FakeDataplane(), control_port=0, metrics_port=port).start()
    with pytest.raises(ConfigError, match="peer timeout of 0.5 s: expected 2 to 86400"):
        Controller(FakeDataplane(), peer_timeout_s=0.5)


@pytest.fixture(scope="module")
def tls_files(tmp_path_factory) -> tuple[Path, Path]:
    """A certificate of its own for 127.0.0.1, and its key."""
    return certificate(tmp_path_factory.mktemp("tls"), "aggregator")[:2]


@pytest.fixture(scope="module")
def expired_files(tmp_path_factory) -> tuple[Path, Path]:
    """The same, an hour too old."""
    return certificate(tmp_path_factory.mktemp("expired"), "aggregator", days=-1 / 24)[:2]


def test_tls(start, tls_files, monkeypatch):
    certificate, key = tls_files
    aggregator = start(tls_cert=certificate, tls_key=key)
    with aggregator.join(tls_ca=certificate) as session:
        assert session.info.world_size == 1
    monkeypatch.setenv("SWITCHML_TLS_CA", str(certificate))
    assert client.status(aggregator.address).version
    with aggregator.join(data_address=("127.0.0.1", 9)):
        pass
    monkeypatch.delenv("SWITCHML_TLS_CA")
    with pytest.raises(JoinError, match="no aggregator answered .* TLS or neither"):
        aggregator.join(timeout_s=0.5)
    with pytest.raises(JoinError, match="no TLS connection to the aggregator at .*WRONG_VERSION_NUMBER"):
        start().join(tls_ca=certificate)


def test_tls_files_that_can_not_be_used_are_named(tls_files, tmp_path):
    certificate, key = tls_files
    other = tmp_path / "other.pem"
    other.write_text("nothing")
    with pytest.raises(ConfigError, match="TLS key: .*missing.pem: No such file"):
        Controller(FakeDataplane(), tls_cert=certificate, tls_key=tmp_path / "missing.pem")
    with pytest.raises(ConfigError, match="TLS certificate .*other.pem: not a PEM file"):
        Controller(FakeDataplane(), tls_cert=other, tls_key=key)
    with pytest.raises(ConfigError, match="TLS certificate .* with key "):
        Controller(FakeDataplane(), tls_cert=certificate, tls_key=certificate)
    with pytest.raises(ConfigError, match="both a certificate and a key"):
        Controller(FakeDataplane(), tls_cert=certificate)
    with pytest.raises(ConfigError, match="TLS CA file .*other.pem: not a PEM file"):
        client.join("127.0.0.1:1", job="x", rank=0, world_size=1, data_address=("127.0.0.1", 1), tls_ca=other)
    other.write_text("-----BEGIN CERTIFICATE-----\nnothing\n-----END CERTIFICATE-----\n")
    with pytest.raises(ConfigError, match="TLS CA file .*other.pem: holds no usable certificate"):
        client.join("127.0.0.1:1", job="x", rank=0, world_size=1, data_address=("127.0.0.1", 1), tls_ca=other)


def test_an_expired_certificate_and_plain_ports_are_said_at_start(start, tls_files, expired_files, caplog):
    certificate, key = tls_files
    start(tls_cert=certificate, tls_key=key, metrics_port=0)
    assert "TLS protects the control port alone; not encrypted: data, events, metrics" in caplog.text
    assert "agents will refuse it" not in caplog.text
    certificate, key = expired_files
    aggregator = start(tls_cert=certificate, tls_key=key)
    assert f"TLS certificate {certificate}: certificate has expired; agents will refuse it" in caplog.text
    with pytest.raises(JoinError, match="CERTIFICATE_VERIFY_FAILED"):
        aggregator.join(tls_ca=certificate, timeout_s=1.0)
