"""Services `simple_pre` and `simple_pre_lag`: multicast groups and their nodes. A set of ports or LAGs is text, one
character 0 or 1 for each, port 0 last."""

from __future__ import annotations

import json
from operator import attrgetter

from emulator.p4switch.device import Device
from emulator.p4switch.state.replication import Replication
from emulator.p4switch.thrift.handlers import passed_to_part
from switchml.errors import ControlError

_replication = attrgetter("replication")


def ports_of(bits: str) -> list[int]:
    """The numbers in a set."""
    if set(bits) - set("01"):
        raise ControlError("Mc", "ERROR", f"{bits!r} is not a set of ports: expected 0s and 1s")
    return [number for number, bit in enumerate(reversed(bits)) if bit == "1"]


class SimplePreLag:
    """Answers for `device`."""

    def __init__(self, device: Device) -> None:
        self.device = device

    bm_mc_mgrp_create = passed_to_part(_replication, Replication.create_group)
    bm_mc_mgrp_destroy = passed_to_part(_replication, Replication.destroy_group)
    bm_mc_node_associate = passed_to_part(_replication, Replication.associate_node)
    bm_mc_node_dissociate = passed_to_part(_replication, Replication.dissociate_node)
    bm_mc_node_destroy = passed_to_part(_replication, Replication.destroy_node)

    def bm_mc_node_create(self, cxt, rid, ports, lags=""):
        return self.device.state.replication.create_node(rid, ports_of(ports), ports_of(lags))

    def bm_mc_node_update(self, cxt, node, ports, lags=""):
        self.device.state.replication.update_node(node, ports_of(ports), ports_of(lags))

    def bm_mc_set_lag_membership(self, cxt, lag, ports):
        self.device.state.replication.set_lag(lag, ports_of(ports))

    def bm_mc_get_entries(self, cxt):
        return json.dumps(self.device.state.replication.describe())
