"""Actions with their arguments: P4Runtime's Action messages and the switch's RunAction (section "Action
Specification")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from emulator.p4switch.p4runtime.bytestrings import decode, encode
from emulator.p4switch.p4runtime.refusals import refuse
from emulator.p4switch.state.action_profiles import RunAction
from switchml.control.p4runtime_protos import info, v1


@dataclass(frozen=True)
class Param:
    """A parameter: P4Info's number, and its width in bits."""

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
        values = {param.param_id: param.value for param in message.params}
        return RunAction(
            self.index,
            tuple(decode(values[param.number], param.width, f"{self.name}, {param.name}") for param in self.params),
        )

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
