"""Service `simple_switch`: mirroring sessions, egress queues and the clock."""

from __future__ import annotations

import logging

from emulator.p4switch.device import Device
from switchml.control.thrift.protocol import Record
from switchml.errors import ControlError

log = logging.getLogger("switchml.bmv2")


class SimpleSwitch:
    """Answers for `device`."""

    def __init__(self, device: Device) -> None:
        self.device = device

    # Mirroring; the first three are from before BMv2 1.11, and report failure by their result

    def mirroring_mapping_add(self, session, port):
        self._add_session(session, port=port)
        return 0

    def mirroring_mapping_delete(self, session):
        try:
            self.device.state.mirroring.delete(session)
        except ControlError:
            return 1
        return 0

    def mirroring_mapping_get_egress_port(self, session):
        found = self.device.state.mirroring.sessions.get(session)
        return -1 if found is None or found.port is None else found.port

    def mirroring_session_add(self, session, config):
        self._add_session(session, port=config.port, mgid=config.mgid)

    def _add_session(self, session: int, **target: int | None) -> None:
        """As in BMv2, a number out of range is told to the log only."""
        try:
            self.device.state.mirroring.add(session, **target)
        except ControlError as error:
            log.error("%s", error)

    def mirroring_session_delete(self, session):
        self.device.state.mirroring.delete(session)

    def mirroring_session_get(self, session):
        found = self.device.state.mirroring.get(session)
        return Record(port=found.port, mgid=found.mgid)

    # Queues

    def set_egress_priority_queue_depth(self, port, priority, depth):
        self.device.state.queues.set_depth(depth, port, priority)
        return 0

    def set_egress_queue_depth(self, port, depth):
        self.device.state.queues.set_depth(depth, port)
        return 0

    def set_all_egress_queue_depths(self, depth):
        self.device.state.queues.set_depth(depth)
        return 0

    def set_egress_priority_queue_rate(self, port, priority, rate_pps):
        self.device.state.queues.set_rate(rate_pps, port, priority)
        return 0

    def set_egress_queue_rate(self, port, rate_pps):
        self.device.state.queues.set_rate(rate_pps, port)
        return 0

    def set_all_egress_queue_rates(self, rate_pps):
        self.device.state.queues.set_rate(rate_pps)
        return 0

    # Time

    def get_time_elapsed_us(self):
        return self.device.switch.clock()

    def get_time_since_epoch_us(self):
        return self.device.started_us + self.device.switch.clock()
