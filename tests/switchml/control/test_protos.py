"""The generated code belongs to the .proto files beside it, and v1's numbers are p4app-switchML's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from switchml.control import v2_pb2
from switchml.control.v1 import v1_pb2

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("module", [v1_pb2, v2_pb2])
def test_generated_code_is_up_to_date(module, tmp_path):
    protoc = pytest.importorskip("grpc_tools.protoc")
    source = module.DESCRIPTOR.name
    assert protoc.main(["protoc", f"-I{ROOT}", f"--descriptor_set_out={tmp_path / 'set'}", source]) == 0
    (fresh,) = descriptor_pb2.FileDescriptorSet.FromString((tmp_path / "set").read_bytes()).file
    committed = descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    for message in _messages(fresh):
        for field in message.field:
            field.ClearField("json_name")  # protoc adds it to a descriptor set only
    assert fresh == committed, "run scripts/generate-protos"


def _messages(parent):
    for message in getattr(parent, "message_type", None) or getattr(parent, "nested_type", ()):
        yield message
        yield from _messages(message)


def test_v1_messages_have_the_originals_bytes():
    # Written by hand after the field numbers in p4app-switchML's switchml.proto; packet_size is field 7.
    request = v1_pb2.UdpSessionRequest(
        session_id=300, rank=2, num_workers=3, mac=1, ipv4=0x0A000001, packet_size=v1_pb2.MTU_1024
    )
    assert request.SerializeToString() == bytes.fromhex("08ac02 1002 1803 2001 288180805 0 3803".replace(" ", ""))
    assert v1_pb2.UdpSessionResponse(session_id=1, mac=2, ipv4=3).SerializeToString() == bytes.fromhex("080110021803")
    assert v1_pb2.BroadcastRequest(value=1, rank=2, num_workers=3, root=4).SerializeToString() == bytes.fromhex(
        "0801100218032004"
    )
    assert v1_pb2.BroadcastResponse(value=5).SerializeToString() == bytes.fromhex("0805")
    assert v1_pb2.BarrierRequest(num_workers=6).SerializeToString() == bytes.fromhex("0806")
    rdma = v1_pb2.RdmaSessionRequest(
        session_id=1, rank=2, num_workers=3, mac=4, ipv4=5, rkey=6, packet_size=v1_pb2.MTU_256, message_size=8,
        qpns=[9], psns=[10],
    )  # fmt: skip
    assert rdma.SerializeToString() == bytes.fromhex("080110021803200428053006380140084a010952010a")
    assert v1_pb2.RdmaSessionResponse(
        session_id=1, mac=2, ipv4=3, rkey=4, qpns=[5], psns=[6]
    ).SerializeToString() == bytes.fromhex("08011002180320042a0105320106")
    services = {
        service.full_name: [method.name for method in service.methods]
        for service in v1_pb2.DESCRIPTOR.services_by_name.values()
    }
    assert services == {
        "switchml_proto.Session": ["RdmaSession", "UdpSession"],
        "switchml_proto.Sync": ["Barrier", "Broadcast"],
    }


CONTROLLER = """
import sys
import helper
from google.rpc import status_pb2
from p4.config.v1 import p4info_pb2
from p4.v1 import p4data_pb2, p4runtime_pb2, p4runtime_pb2_grpc
import p4.v1.p4runtime_pb2 as again

assert again is p4runtime_pb2 and sys.argv[1:] == ["a", "b"] and __name__ == "__main__"
update = p4runtime_pb2.Update(type=p4runtime_pb2.Update.INSERT)
update.entity.table_entry.table_id = 5
print(update.SerializeToString().hex(), p4info_pb2.MatchField.LPM, status_pb2.Status(code=3).code)
from switchml.control.p4runtime_protos import v1
assert v1.Update.FromString(update.SerializeToString()).entity.table_entry.table_id == 5
"""


def test_controllers_with_the_modules_of_p4runtime_run(tmp_path):
    pytest.importorskip("p4", reason="needs the package p4runtime")
    (tmp_path / "controller.py").write_text(CONTROLLER)
    (tmp_path / "helper.py").write_text("")
    command = [sys.executable, "-m", "switchml.control.p4runtime_modules", str(tmp_path / "controller.py"), "a", "b"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # By hand: Update.type 1, Update.entity with Entity.table_entry (2) with TableEntry.table_id 5; LPM is 3.
    assert done.stdout.split() == ["080112041202" + "0805", "3", "3"]
