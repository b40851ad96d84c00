"""Messages that can't be read: every call answers INVALID_ARGUMENT, and the log has one line."""

import logging

import grpc
import pytest

from switchml import logs
from switchml.control import p4runtime_protos as protos


def test_every_call_refuses_what_it_can_not_read(target, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("switchml.bmv2"), "filters", [logs.Limit()])
    with grpc.insecure_channel(target.address) as channel:
        for method in list(protos.SERVICE.methods) * 3:
            path = f"/{protos.SERVICE.full_name}/{method.name}"
            if method.client_streaming:
                answers = channel.stream_stream(path, bytes, bytes)(iter([b"\xff"]))
            elif method.server_streaming:
                answers = channel.unary_stream(path, bytes, bytes)(b"\xff")
            else:
                answers = None
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(path, bytes, bytes)(b"\xff") if answers is None else list(answers)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, method.name
    assert len(caplog.messages) == 1 and "can't be read" in caplog.messages[0]
