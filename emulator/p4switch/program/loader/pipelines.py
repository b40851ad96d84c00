"""Loading of pipelines: action profiles, tables with their default and const entries, conditionals."""

import graphlib
import types
from dataclasses import replace
from typing import Any

from emulator.p4switch.program import expr as e
from emulator.p4switch.program import ir
from emulator.p4switch.program.loader.context import (
    Json,
    Names,
    algorithm,
    expect,
    hex_int,
    one_of,
    reading,
    source_of,
    unique_ids,
)
from emulator.p4switch.program.loader.expressions import condition
from switchml.errors import ProgramError

MAX_ENTRIES = (1 << 24) - 1
"""Maximum number of entries per table; BMv2 also limits larger tables to this."""
MATCH_TYPES = ("exact", "lpm", "ternary", "range")


class Pipelines:
    """Loads the JSON's `pipelines`; the results are lists in the order of the IR's tuples.

    `calculations` is the program's list; the selectors of action profiles are appended to it."""

    def __init__(self, names: Names, calculations: list[ir.Calculation], objs: list[Json]) -> None:
        self.names = names
        self.calculations = calculations
        self.profiles: list[ir.ActionProfile] = []
        self.profile_actions: dict[int, list[int]] = {}
        self.node_at: dict[int, ir.Node] = {}
        self.tables: list[ir.Table] = []
        self.pipelines: list[ir.Pipeline] = []
        for obj in objs:
            with reading("pipeline", obj):
                self._declare(obj)
        for obj in objs:
            with reading("pipeline", obj):
                self._fill(obj)
        self.profiles = [
            replace(profile, actions=tuple(dict.fromkeys(self.profile_actions[i])))
            for i, profile in enumerate(self.profiles)
        ]
        self.nodes = [node for _, node in sorted(self.node_at.items())]
        self._check_acyclic()
        for sort, objects in (("table", self.tables), ("pipeline", self.pipelines), ("action profile", self.profiles)):
            unique_ids(sort, objects)

    def _declare(self, obj: Json) -> None:
        """Number all nodes first, as they refer to each other in any order."""
        for profile in obj.get("action_profiles") or ():
            with reading("action profile", profile):
                self._profile(profile["name"], profile["id"], profile.get("max_size", 0), profile.get("selector"))
        for table in obj["tables"]:
            with reading("table", table):
                self._node(table["name"])
                self.names.add("table", table["name"], len(self.names.indices.get("table", ())))
                if "act_prof_name" in table and "action_profile" not in table:  # the format before 2.0
                    self._profile(table["act_prof_name"], table["id"], 0, table.get("selector"))
        for node in [*(obj.get("conditionals") or ()), *(obj.get("action_calls") or ())]:
            with reading("control-flow node", node):
                self._node(node["name"])

    def _node(self, name: str) -> None:
        self.names.add("control-flow node", name, len(self.names.indices.get("control-flow node", ())))

    def _profile(self, name: str, id_: int, size: int, selector: Json | None) -> None:
        index = len(self.profiles)
        self.names.add("action profile", name, index)
        calculation = None
        if selector is not None:
            inputs = tuple(ir.CalcInput(self.names.field(item["value"])) for item in selector["input"])
            calculation = len(self.calculations)
            self.calculations.append(
                ir.Calculation(f"{name}.selector", -1 - index, algorithm(selector["algo"]), inputs)
            )
        self.profiles.append(ir.ActionProfile(name, id_, size, calculation, ()))
        self.profile_actions[index] = []

    def _next(self, name: str | None) -> int:
        return ir.END if name is None else self.names.find("control-flow node", name)

    def _fill(self, obj: Json) -> None:
        for table in obj["tables"]:
            with reading("table", table):
                self.tables.append(self._table(table))
                self.node_at[self._next(table["name"])] = self.tables[-1]
        for node in obj.get("conditionals") or ():
            with reading("conditional", node):
                if "true_next" not in node and "false_next" not in node:
                    raise ProgramError("needs 'true_next' or 'false_next'")
                self.node_at[self._next(node["name"])] = ir.Conditional(
                    node["name"],
                    node["id"],
                    condition(self.names, node["expression"]),
                    self._next(node.get("true_next")),
                    self._next(node.get("false_next")),
                    source_of(node),
                )
        for node in obj.get("action_calls") or ():
            with reading("action call", node):
                action = self._action(node["action_id"])
                if self.names.actions[action].params:
                    raise ProgramError("calls an action that takes arguments")
                self.node_at[self._next(node["name"])] = ir.ActionCall(
                    node["name"], node["id"], action, self._next(node.get("next_node"))
                )
        self.pipelines.append(ir.Pipeline(obj["name"], obj["id"], self._next(obj["init_table"])))

    def _check_acyclic(self) -> None:
        """Reject cyclic control flow, in which packets would loop forever."""
        try:
            graphlib.TopologicalSorter({i: _next_of(node) for i, node in enumerate(self.nodes)}).prepare()
        except graphlib.CycleError as error:
            raise ProgramError(f"control flow is cyclic through {self.nodes[error.args[1][0]].name!r}") from None

    def _action(self, id_: int) -> int:
        if id_ not in self.names.action_of_id:
            raise ProgramError(f"there is no action with the id {id_!r}")
        return self.names.action_of_id[id_]

    # Tables

    def _table(self, obj: Json) -> ir.Table:
        one_of(obj["match_type"], MATCH_TYPES, "match type")
        if obj["type"] not in (ir.SIMPLE, ir.INDIRECT, ir.INDIRECT_WS):
            raise ProgramError(f"the table type {obj['type']!r} is not supported")
        actions, by_name = self._actions_of(obj)
        key = tuple(self._key(field) for field in obj["key"])
        if sum(field.kind == "lpm" for field in key) > 1:
            raise ProgramError("has more than one lpm field")
        profile = self._profile_of(obj)
        if profile is not None:
            self.profile_actions[profile] += actions
        meter = obj.get("direct_meters")
        return ir.Table(
            name=obj["name"],
            id=obj["id"],
            index=len(self.tables),
            match_type=obj["match_type"],
            type=obj["type"],
            key=key,
            actions=actions,
            max_size=_size(obj),
            with_counters=bool(obj.get("with_counters", False)),
            support_timeout=bool(obj.get("support_timeout", False)),
            direct_meter=None if meter is None else self.names.find("meter array", meter),
            action_profile=profile,
            next_default=self._next(obj.get("base_default_next")),
            default=self._default(obj),
            entries=self._entries(obj, key),
            source=source_of(obj),
            **self._next_nodes(obj["next_tables"], by_name),
        )

    def _actions_of(self, obj: Json) -> tuple[tuple[int, ...], dict[str, list[int]]]:
        """Indices of the table's actions, and the same by name (p4c generates several NoAction)."""
        if obj.get("action_ids") is not None:
            actions = tuple(self._action(id_) for id_ in obj["action_ids"])
        else:
            actions = tuple(self.names.find("action", name) for name in obj["actions"])
        by_name: dict[str, list[int]] = {}
        for action in actions:
            by_name.setdefault(self.names.actions[action].name, []).append(action)
        return actions, by_name

    def _next_nodes(self, obj: Json, by_name: dict[str, list[int]]) -> dict[str, Any]:
        if "__HIT__" in obj or "__MISS__" in obj:
            if set(obj) != {"__HIT__", "__MISS__"}:
                raise ProgramError("'next_tables' must have both __HIT__ and __MISS__ and nothing else")
            return {"by_hit": True, "next_hit": self._next(obj["__HIT__"]), "next_miss": self._next(obj["__MISS__"])}
        if set(obj) != set(by_name):
            odd = ", ".join(sorted(set(obj) ^ set(by_name)))
            raise ProgramError(f"'next_tables' must have one key for each action of the table; see {odd}")
        numbers = {action: self._next(obj[name]) for name, actions in by_name.items() for action in actions}
        return {"next_of_action": types.MappingProxyType(numbers)}

    def _key(self, obj: Json) -> ir.KeyField:
        kind = one_of(obj["match_type"], (*MATCH_TYPES, "valid"), "match type")
        if kind == "valid":
            target = obj["target"]
            name = target if isinstance(target, str) else target[0]
            ref = e.FieldRef(self.names.find("header", name), e.VALID)
        else:
            ref = self.names.field(obj["target"])
            name = ".".join(obj["target"])
        text = obj.get("mask")
        return ir.KeyField(
            kind, ref, self.names.width(ref), obj.get("name") or name, None if text is None else hex_int(text)
        )

    def _profile_of(self, obj: Json) -> int | None:
        if obj["type"] == ir.SIMPLE:
            return None
        name = obj.get("action_profile") or obj.get("act_prof_name")
        if name is None:
            raise ProgramError("an indirect table needs 'action_profile'")
        profile = self.names.find("action profile", name)
        if obj["type"] == ir.INDIRECT_WS and self.profiles[profile].selector is None:
            raise ProgramError(f"action profile {name!r} has no selector")
        return profile

    def _args(self, action: int, texts: list[str]) -> tuple[int, ...]:
        params = self.names.actions[action].params
        if len(texts) != len(params):
            raise ProgramError(
                f"gives {len(texts)} arguments to action {self.names.actions[action].name!r}, which takes {len(params)}"
            )
        return tuple(hex_int(text) for text in texts)

    def _default(self, obj: Json) -> ir.DefaultEntry | None:
        entry = obj.get("default_entry")
        if entry is None:
            return None
        is_const = bool(entry.get("action_const", False))
        if is_const and obj["type"] != ir.SIMPLE:
            raise ProgramError("'action_const' is for simple tables only")
        action = self._action(entry["action_id"])
        is_const_entry = bool(entry.get("action_entry_const", False))
        return ir.DefaultEntry(action, self._args(action, entry["action_data"]), is_const, is_const_entry)

    def _entries(self, obj: Json, key: tuple[ir.KeyField, ...]) -> tuple[ir.Entry, ...] | None:
        if obj.get("entries") is None:
            return None
        if obj["type"] != ir.SIMPLE:
            raise ProgramError("'entries' is for simple tables only")
        entries = []
        for entry in obj["entries"]:
            with reading("const entry", entry):
                params = entry["match_key"]
                if len(params) != len(key):
                    raise ProgramError(f"matches {len(params)} fields, but the table's key has {len(key)}")
                match = tuple(_match(param, field) for param, field in zip(params, key, strict=True))
                action = self._action(entry["action_entry"]["action_id"])
                args = self._args(action, entry["action_entry"]["action_data"])
                entries.append(ir.Entry(match, action, args, entry.get("priority") or 0, source_of(entry)))
        return tuple(entries)


def _next_of(node: ir.Node) -> set[int]:
    """Possible successors of a node."""
    if isinstance(node, ir.Table):
        after = {node.next_default, node.next_hit, node.next_miss, *node.next_of_action.values()}
    elif isinstance(node, ir.Conditional):
        after = {node.next_true, node.next_false}
    else:
        after = {node.next_node}
    return after - {ir.END}


def _size(obj: Json) -> int:
    """`max_size`, or the number of const entries if there are any."""
    if obj.get("entries") is not None:
        return len(obj["entries"])
    return min(max(expect(obj["max_size"], int, "max_size"), 0), MAX_ENTRIES)


def _match(obj: Json, field: ir.KeyField) -> ir.MatchParam:
    kind = obj["match_type"]
    if kind != field.kind:
        raise ProgramError(f"matches {field.name!r} by {kind}, but the table by {field.kind}")
    if kind == "valid":
        return ir.MatchParam(kind, int(obj["key"]))
    if kind == "exact":
        return ir.MatchParam(kind, hex_int(obj["key"]))
    if kind == "lpm":
        return ir.MatchParam(kind, hex_int(obj["key"]), obj["prefix_length"])
    if kind == "ternary":
        return ir.MatchParam(kind, hex_int(obj["key"]), hex_int(obj["mask"]))
    return ir.MatchParam(kind, hex_int(obj["start"]), hex_int(obj["end"]))
