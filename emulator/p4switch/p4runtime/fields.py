"""Messages whose fields have numbers in P4Info: actions with their arguments (section "Action Specification"), and
packets (section "Packet I/O"): frames on the CPU port begin with the headers that the program marks with
@controller_header, whose fields P4Runtime carries as metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from emulator.p4switch.p4runtime.bytestrings import decode, encode
from emulator.p4switch.p4runtime.refusals import refuse
from emulator.p4switch.state.action_profiles import RunAction
from emulator.p4switch.values import mask, n_bytes
from switchml.control.p4runtime_protos import info, v1

PACKET_IN, PACKET_OUT = "packet_in", "packet_out"


@dataclass(frozen=True)
class Param:
    """A parameter or a header's field: P4Info's number, and its width in bits."""

    number: int
    name: str
    width: int


@dataclass(frozen=True)
class Action:
    """An action of a table or a profile: `number` is P4Info's, `index` its place in Program.actions, `params` are in
    the order of the switch. `scope`: where it may be used (ActionRef.scope)."""

    number: int
    index: int
    name: str
    params: tuple[Param, ...]
    scope: int = info.ActionRef.TABLE_AND_DEFAULT

    def decode(self, message: v1.Action) -> RunAction:
        """Raises INVALID_ARGUMENT or OUT_OF_RANGE."""
        numbers = sorted(param.param_id for param in message.params)
        expected = sorted(param.number for param in self.params)
        if numbers != expected:
            raise refuse("INVALID_ARGUMENT", f"action {self.name} has the parameters {expected}, not {numbers}")
        data = {param.param_id: param.value for param in message.params}
        values = (decode(data[param.number], param.width, f"{self.name}, {param.name}") for param in self.params)
        return RunAction(self.index, tuple(values))

    def encode(self, run: RunAction) -> v1.Action:
        """The reverse of `decode`; parameters by ascending number."""
        message = v1.Action(action_id=self.number)
        for param, value in sorted(zip(self.params, run.args, strict=True), key=lambda pair: pair[0].number):
            message.params.add(param_id=param.number, value=encode(value))
        return message


@dataclass(frozen=True)
class Actions:
    """The actions of a table or profile, `owner`, by P4Info's number."""

    owner: str
    by_number: Mapping[int, Action]

    def decode(self, message: v1.Action, forbidden_scope: int | None = None) -> RunAction:
        """Raises INVALID_ARGUMENT, PERMISSION_DENIED or OUT_OF_RANGE."""
        action = self.by_number.get(message.action_id)
        if action is None:
            raise refuse("INVALID_ARGUMENT", f"{self.owner} has no action {message.action_id} ({message.action_id:#x})")
        if action.scope == forbidden_scope:
            raise refuse("PERMISSION_DENIED", f"{self.owner}: {action.name} may not be used there (its scope)")
        return action.decode(message)

    def encode(self, run: RunAction) -> v1.Action:
        """The reverse of `decode`; an action that P4Info lacks has no number."""
        for action in self.by_number.values():
            if action.index == run.action:
                return action.encode(run)
        return v1.Action()


class ControllerHeader:
    """One such header; fields in the order of P4Info, packed without gaps."""

    def __init__(self, name: str, fields: Sequence[Param]) -> None:
        self.name = name
        self.fields = fields
        self.width = sum(field.width for field in fields)
        self.n_bytes = n_bytes(self.width)

    @classmethod
    def of(cls, p4info: info.P4Info, name: str) -> ControllerHeader:
        """P4Info's header of that name; one without fields if it has none."""
        for item in p4info.controller_packet_metadata:
            if item.preamble.name == name:
                return cls(name, [Param(part.id, part.name, part.bitwidth) for part in item.metadata])
        return cls(name, [])

    def split(self, frame: bytes) -> v1.PacketIn:
        """A frame as a packet-in. Raises INVALID_ARGUMENT if it is too short."""
        if len(frame) < self.n_bytes:
            raise refuse("INVALID_ARGUMENT", f"{len(frame)} bytes: {self.name} alone has {self.n_bytes}")
        message = v1.PacketIn(payload=frame[self.n_bytes :])
        bits, left = int.from_bytes(frame[: self.n_bytes], "big"), 8 * self.n_bytes
        for field in self.fields:
            left -= field.width
            message.metadata.add(metadata_id=field.number, value=encode(bits >> left & mask(field.width)))
        return message

    def join(self, message: v1.PacketOut) -> bytes:
        """The frame for a packet-out. Missing fields are 0, as in BMv2's own server. Raises
        INVALID_ARGUMENT or OUT_OF_RANGE."""
        values = {item.metadata_id: item.value for item in message.metadata}
        unknown = set(values) - {field.number for field in self.fields}
        if unknown:
            raise refuse("INVALID_ARGUMENT", f"{self.name} has no metadata with the id {min(unknown)}")
        bits = 0
        for field in self.fields:
            bits <<= field.width
            if field.number in values:
                bits |= decode(values[field.number], field.width, f"{self.name}, {field.name}")
        bits <<= 8 * self.n_bytes - self.width
        return bits.to_bytes(self.n_bytes, "big") + message.payload
