"""The messages come from PyPI's p4runtime, whatever protobuf is there."""

import pytest

pytest.importorskip("p4", reason="needs the package p4runtime: pip install 'switchml[p4]'")

from switchml.control import p4runtime_protos as protos


def test_messages_survive_the_wire():
    entry = protos.v1.TableEntry(table_id=7, match=[{"field_id": 1, "lpm": {"value": b"\n", "prefix_len": 8}}])
    assert protos.v1.TableEntry.FromString(entry.SerializeToString()) == entry
    assert protos.info.MatchField.OPTIONAL == 6
