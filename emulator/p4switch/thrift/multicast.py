"""Services `simple_pre` and `simple_pre_lag`: multicast groups and their nodes. A set of ports or LAGs is text, one
character 0 or 1 for each, port 0 last."""

from __future__ import annotations

import json

from emulator.p4switch.device import Device
from emulator.p4switch.state.replication import Replication
from switchml.errors import ControlError


def ports_of(bits: str | None) -> list[int]:
    """The numbers in a set."""
    if set(bits or "") - set("01"):
        raise ControlError("Mc", "ERROR", f"{bits!r} is not a set of ports: expected 0s and 1s")
    return [number for number, bit in enumerate(reversed(bits or "")) if bit == "1"]


class SimplePreLag:
    """Answers for `device`."""

    def __init__(self, device: Device) -> None:
        self.device = device

    @property
    def _replication(self) -> Replication:
        return self.device.state.replication

    def bm_mc_mgrp_create(self, cxt, mgid):
        return self._replication.create_group(mgid)

    def bm_mc_mgrp_destroy(self, cxt, group):
        self._replication.destroy_group(group)

    def bm_mc_node_create(self, cxt, rid, ports, lags=""):
        return self._replication.create_node(rid, ports_of(ports), ports_of(lags))

    def bm_mc_node_update(self, cxt, node, ports, lags=""):
        self._replication.update_node(node, ports_of(ports), ports_of(lags))

    def bm_mc_node_associate(self, cxt, group, node):
        self._replication.associate_node(group, node)

    def bm_mc_node_dissociate(self, cxt, group, node):
        self._replication.dissociate_node(group, node)

    def bm_mc_node_destroy(self, cxt, node):
        self._replication.destroy_node(node)

    def bm_mc_set_lag_membership(self, cxt, lag, ports):
        self._replication.set_lag(lag, ports_of(ports))

    def bm_mc_get_entries(self, cxt):
        return json.dumps(self._replication.describe())
