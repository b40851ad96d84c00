"""Execution of pipelines: from node to node through tables, conditionals and actions, until there is no next node or
the packet exits."""

from collections.abc import Sequence

from emulator.p4switch.interpreter.calculations import input_bytes
from emulator.p4switch.interpreter.expressions import Expressions
from emulator.p4switch.interpreter.packet import Packet
from emulator.p4switch.interpreter.primitives import Primitives
from emulator.p4switch.program import ir
from emulator.p4switch.program.expr import VALID
from emulator.p4switch.state.action_profiles import ActionProfile, RunAction, Target, UseGroup, UseMember
from emulator.p4switch.state.state import State
from emulator.p4switch.state.tables import Entry
from switchml import logs
from switchml.errors import PacketError

log = logs.of("switchml.bmv2")

MAX_STEPS = 1 << 20
"""Maximum primitives of one action, and nodes of one pipeline, for a packet; beyond, it is dropped."""


class Pipeline:
    """Applies pipelines to one packet."""

    def __init__(self, packet: Packet, state: State, primitives: Primitives) -> None:
        self.packet = packet
        self.state = state
        self.program = state.program
        self.primitives = primitives

    def apply(self, pipeline: ir.Pipeline) -> bool:
        """Run a pipeline to its end. Returns False if the packet exits before. Raises PacketError if it does not
        terminate."""
        number, n_nodes = pipeline.init_node, 0
        while number != ir.END and not self.packet.exit:
            n_nodes += 1
            if n_nodes > MAX_STEPS:
                raise PacketError(f"pipeline {pipeline.name} did not end after {MAX_STEPS} nodes")
            node = self.program.nodes[number]
            match node:
                case ir.Table():
                    number = self.apply_table(node)
                case ir.Conditional():
                    number = node.next_true if self.is_true(node) else node.next_false
                case ir.ActionCall():
                    self.run_action(node.action, ())
                    number = node.next_node
        return number == ir.END

    def is_true(self, node: ir.Conditional) -> bool:
        return bool(Expressions(self.packet, self.state).value(node.condition))

    # Tables

    def apply_table(self, table: ir.Table) -> int:
        """Look up the key and run the action. Returns the next node."""
        state = self.state.tables[table.index]
        entry = state.lookup(self.key(table))
        if entry is None:
            target = state.default
        else:
            target = entry.target
            state.hit(entry, self.packet.ingress_length)
            if state.direct_meter is not None and table.direct_meter is not None:
                color = state.direct_meter.execute(entry.index, self.packet.ingress_length, self.state.clock())
                field = self.program.meters[table.direct_meter].target
                assert field is not None
                self.packet.set(field.header, field.field, color)
        run = self.resolve(table, entry, target)
        if run is None and target is None:
            return table.next_miss if table.by_hit else table.next_default
        if run is None:
            return ir.END  # an empty group: BMv2 has no next node then
        self.run_action(run.action, run.args)
        if table.by_hit:
            return table.next_miss if entry is None else table.next_hit
        return table.next_of_action.get(run.action, table.next_default)

    def key(self, table: ir.Table) -> tuple[int, ...]:
        """Lookup key of a table. A field of an invalid header counts as 0."""
        values = []
        for field in table.key:
            header, number = field.value.header, field.value.field
            is_readable = number == VALID or self.packet.valid[header]
            value = self.packet.get_bits(header, number) if is_readable else 0
            values.append(value if field.mask is None else value & field.mask)
        return tuple(values)

    def resolve(self, table: ir.Table, entry: Entry | None, target: Target | None) -> RunAction | None:
        """The action of a target, from an entry or the default; None if there is no target or the group is empty."""
        profile = self.state.tables[table.index].profile
        match target:
            case UseMember(member):
                assert profile is not None
                return profile.members[member].run
            case UseGroup(group):
                assert profile is not None
                chosen = self.choose(profile, group)
                if chosen is None:
                    self.report_empty_group(table)
                    return None
                return profile.members[chosen].run
        return target

    def choose(self, profile: ActionProfile, group: int) -> int | None:
        """The group member that the selector's hash chooses; None if the group is empty."""
        choices = profile.groups[group].eligible
        if not choices:
            return None
        selector = profile.profile.selector
        assert selector is not None
        number = self.state.hashes[selector](input_bytes(self.program.calculations[selector], self.packet))
        return choices[number % len(choices)]

    def report_empty_group(self, table: ir.Table) -> None:
        log.error("Lookup in table '%s' yielded empty group", table.name)

    # Actions

    def run_action(self, index: int, args: Sequence[int]) -> None:
        """Execute an action's primitives, following jumps."""
        action = self.program.actions[index]
        on = Expressions(self.packet, self.state, args)
        at = n_steps = 0
        while 0 <= at < len(action.primitives):
            n_steps += 1
            if n_steps > MAX_STEPS:
                raise PacketError(f"action {action.name} did not end after {MAX_STEPS} primitives")
            self.primitives.jump_to = None
            self.primitives.run(action.primitives[at], on)
            at = at + 1 if self.primitives.jump_to is None else self.primitives.jump_to
