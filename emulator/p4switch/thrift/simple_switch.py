"""Service `simple_switch`: mirroring sessions, egress queues and the clock."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace

from emulator.p4switch.device import Device
from emulator.p4switch.state.state import Queues
from emulator.p4switch.thrift.handlers import Answer
from switchml.errors import ControlError

log = logging.getLogger("switchml.bmv2")


def _queue_setting(set_value: Callable[..., None]) -> Answer:
    """The answer to a call that sets the depth or rate of all egress queues, of a port's or of one: the port and the
    priority come first, the value last."""

    def answer(self, *arguments: int) -> int:
        *queue, value = arguments
        set_value(self.device.state.queues, value, *queue)
        return 0

    return answer


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
        target = self.device.state.mirroring.sessions.get(session)
        return -1 if target is None or target.port is None else target.port

    def mirroring_session_add(self, session, config):
        self._add_session(session, port=config.port, mgid=config.mgid)

    def _add_session(self, session: int, **target: int | None) -> None:
        """As in BMv2, only the log reports a number out of range."""
        try:
            self.device.state.mirroring.add(session, **target)
        except ControlError as error:
            log.error("%s", error)

    def mirroring_session_delete(self, session):
        self.device.state.mirroring.delete(session)

    def mirroring_session_get(self, session):
        target = self.device.state.mirroring.get(session)
        return SimpleNamespace(port=target.port, mgid=target.mgid)

    # Queues

    set_egress_priority_queue_depth = _queue_setting(Queues.set_depth)
    set_egress_queue_depth = _queue_setting(Queues.set_depth)
    set_all_egress_queue_depths = _queue_setting(Queues.set_depth)
    set_egress_priority_queue_rate = _queue_setting(Queues.set_rate)
    set_egress_queue_rate = _queue_setting(Queues.set_rate)
    set_all_egress_queue_rates = _queue_setting(Queues.set_rate)

    # Time

    def get_time_elapsed_us(self):
        return self.device.switch.clock()

    def get_time_since_epoch_us(self):
        return self.device.started_us + self.device.switch.clock()
