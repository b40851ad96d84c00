"""Actions with their arguments (section 9.1.2)."""

from __future__ import annotations

from typing import Any

from emulator.bmv2.action_profiles import RunAction
from emulator.bmv2.p4runtime.p4info import Info
from emulator.bmv2.p4runtime.values import Code, Refused, decode, encode, invalid


def run_action(info: Info, table: Any, ours: Any, action: Any) -> RunAction:
    """Our form of an Action; `ours` is the table or profile that must have it."""
    described = info.action(table, action.action_id)
    given = {param.param_id: param.value for param in action.params}
    wanted = {param.id: param for param in described.params}
    if given.keys() != wanted.keys() or len(given) < len(action.params):
        names = ", ".join(param.name for param in described.params) or "nothing"
        raise invalid(f"action {described.preamble.name} takes {names}")
    name = described.preamble.name
    args = tuple(decode(given[param.id], param.bitwidth, f"{name}.{param.name}") for param in described.params)
    return RunAction(ours.action(name), args)


def tell_action(info: Info, told: Any, run: RunAction) -> None:
    """P4Runtime's form of an action, written into `told`."""
    described = info.named("actions", info.state.program.actions[run.action].name)
    if described is None:
        raise Refused(Code.INTERNAL, f"the P4Info lacks action {info.state.program.actions[run.action].name}")
    told.action_id = described.preamble.id
    for param, value in zip(described.params, run.args, strict=True):
        told.params.add(param_id=param.id, value=encode(value))
