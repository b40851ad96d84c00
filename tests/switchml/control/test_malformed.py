"""Messages that can't be read: every call answers INVALID_ARGUMENT, they are counted, and the log has one line."""

import logging

import grpc
import pytest

from switchml import logs
from switchml.control import client, v2_pb2
from switchml.control.report import head
from switchml.control.v1 import v1_pb2

METHODS = [
    method
    for module in (v2_pb2, v1_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]


@pytest.fixture
def lines(caplog, monkeypatch):
    """The log of the control plane, with a minute of its own."""
    monkeypatch.setattr(logging.getLogger("switchml.control"), "filters", [logs.Limit()])
    return caplog


def test_every_call_refuses_what_it_can_not_read(start, lines):
    aggregator = start(v1=True)
    with grpc.insecure_channel(aggregator.address) as channel:
        for method in METHODS * 3:
            kind = channel.unary_stream if method.server_streaming else channel.unary_unary
            call = kind(f"/{method.containing_service.full_name}/{method.name}", bytes, bytes)
            with pytest.raises(grpc.RpcError) as caught:
                list(call(b"\xff"))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, method.full_name
    reply = client.status(aggregator.address)
    assert reply.refused["refused_message"] == 3 * len(METHODS) == 30
    assert "Control messages that could not be read: 30." in head(reply)
    assert len(lines.messages) == 1 and "it can't be read" in lines.messages[0]
