"""The running program and its entities: SetForwardingPipelineConfig and GetForwardingPipelineConfig.

A pipeline that was saved but not committed has its own state, used by reads and writes, and by the switch once the
pipeline is committed.
"""

from collections.abc import Callable
from copy import deepcopy

from emulator.p4switch.device import Device
from emulator.p4switch.p4runtime.entities import Entities, writable
from emulator.p4switch.p4runtime.errors import INSERT, MODIFY, rpc_error
from emulator.p4switch.p4runtime.pipeline import Pipeline, program_in
from emulator.p4switch.state.state import State
from switchml import logs
from switchml.control.p4runtime_protos import v1
from switchml.errors import ProgramError

log = logs.of("switchml.bmv2")

Request = v1.SetForwardingPipelineConfigRequest


class Configs:
    """The pipelines of `device`. `notify` is called with messages for the primary controllers."""

    def __init__(self, device: Device, notify: Callable[[v1.StreamMessageResponse], None]) -> None:
        self.device = device
        self.notify = notify
        self._running: Entities | None = None
        self._saved: Entities | None = None

    @property
    def running(self) -> Entities | None:
        """The entities of the running program, if a controller has set it and Thrift has not replaced it since."""
        if self._running is not None and self._running.pipeline.state is not self.device.state:
            self._running = None
        return self._running

    def entities(self) -> Entities:
        """The entities that reads and writes operate on. Raises FAILED_PRECONDITION."""
        entities = self._saved or self.running
        if entities is None:
            raise rpc_error("FAILED_PRECONDITION", "no forwarding pipeline config was set")
        return entities

    def get(self, response_type: int) -> v1.GetForwardingPipelineConfigResponse:
        """The most recently set config, with the requested parts; empty if none was set."""
        kinds = v1.GetForwardingPipelineConfigRequest
        entities = self._saved or self.running
        if entities is None:
            return v1.GetForwardingPipelineConfigResponse()
        response = v1.GetForwardingPipelineConfigResponse(config=entities.pipeline.config)
        if response_type in (kinds.COOKIE_ONLY, kinds.P4INFO_AND_COOKIE):
            response.config.ClearField("p4_device_config")
        if response_type in (kinds.COOKIE_ONLY, kinds.DEVICE_CONFIG_AND_COOKIE):
            response.config.ClearField("p4info")
        return response

    def set(self, action: int, config: v1.ForwardingPipelineConfig | None) -> None:
        """Execute a controller's request; `config` is None if it has none."""
        if action == Request.UNSPECIFIED or action not in Request.Action.values():
            raise rpc_error("INVALID_ARGUMENT", f"there is no action {action}")
        if action == Request.COMMIT:
            if config is not None:
                raise rpc_error("INVALID_ARGUMENT", "COMMIT takes the config that was saved, not another")
            if self._saved is None:
                raise rpc_error("NOT_FOUND", "no config was saved")
            self._commit(self._saved)
            return
        if config is None:
            raise rpc_error("INVALID_ARGUMENT", "there is no config")
        entities = self._verified(config)
        if action == Request.VERIFY_AND_SAVE:
            self._saved = entities
        elif action == Request.VERIFY_AND_COMMIT:
            self._commit(entities)
        elif action == Request.RECONCILE_AND_COMMIT:
            with self.device.switch.lock:
                self._take_over(entities)
                self._commit(entities)

    def _verified(self, config: v1.ForwardingPipelineConfig) -> Entities:
        """Check a config and create its pipeline. Raises INVALID_ARGUMENT."""
        switch = self.device.switch
        program = program_in(config)
        try:
            state = State(program, switch.clock, switch.lock)
        except ProgramError as error:
            raise rpc_error("INVALID_ARGUMENT", f"p4_device_config can't be run: {error}") from error
        state.replication.max_groups = self.device.state.replication.max_groups
        state.replication.max_nodes = self.device.state.replication.max_nodes
        return Entities(Pipeline(deepcopy(config), state, self.notify, self.device.ports_up))

    def _commit(self, entities: Entities) -> None:
        if not self.device.can_swap:
            raise rpc_error("FAILED_PRECONDITION", "the switch was started with --disable-swap")
        try:
            self.device.switch.run(entities.pipeline.state)
        except ProgramError as error:
            raise rpc_error("INVALID_ARGUMENT", f"the program can't be run: {error}") from error
        log.info("P4Runtime: runs %s", entities.pipeline.program.name or "a program")
        self._running, self._saved = entities, None

    def _take_over(self, entities: Entities) -> None:
        """Write all current entities to a new pipeline. Raises INVALID_ARGUMENT if an entity does not fit there."""
        for entity in self.running.everything() if self.running else ():
            kind = _kind(entity)
            error = entities.write([v1.Update(type=kind, entity=writable(entity))])[0] if kind is not None else None
            if error is not None:
                raise rpc_error("INVALID_ARGUMENT", f"the state can't be transferred: {error}") from error


_INSERTED = {"action_profile_member", "action_profile_group", "packet_replication_engine_entry", "digest_entry"}


def _kind(entity: v1.Entity) -> int | None:
    """The type of update that writes an entity to a new pipeline; None if it is constant."""
    if entity.HasField("table_entry"):
        entry = entity.table_entry
        if entry.is_default_action:
            return None if entry.is_const else MODIFY
        return MODIFY if entry.is_const else INSERT
    return INSERT if entity.WhichOneof("entity") in _INSERTED else MODIFY
