"""BMv2's JSON (2.x, as p4c's bmv2 back end writes it) to an `ir.Program`.

`load` and `loads` are the interface. Any fault of the JSON ends in one ProgramError that names the object and, where
p4c recorded it, its line in the P4 source. Sections are read in BMv2's order (P4Objects::init_objects), each into the
tuple of the same name."""

from __future__ import annotations

import json
import types
from os import PathLike
from pathlib import Path

from emulator.p4switch import hashes
from emulator.p4switch.program import expr as e
from emulator.p4switch.program import ir
from emulator.p4switch.program.loader.context import (
    Names,
    expect,
    hex_int,
    named,
    reading,
    source_of,
    unique_ids,
    width_of,
)
from emulator.p4switch.program.loader.expressions import condition, data, primitive
from emulator.p4switch.program.loader.parsers import deparsers, parse_vsets, parsers
from emulator.p4switch.program.loader.pipelines import Pipelines
from switchml.errors import ProgramError

MAJOR, MAX_MINOR = 2, 24
"""Versions of the format that are known: 2.0 to 2.24."""

CORE_ERRORS = (
    "NoError", "PacketTooShort", "NoMatch", "StackOutOfBounds", "HeaderTooShort", "ParserTimeout",
    "ParserInvalidArgument",
)  # fmt: skip
"""Errors of core.p4; those without a number in the JSON are numbered after its highest."""


def load(path: str | PathLike) -> ir.Program:
    """The program in a JSON file. Raises ProgramError, also if the file can't be read."""
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ProgramError(f"can't read the program {path}: {error}") from error
    return loads(text)


def loads(text: str) -> ir.Program:
    """The program in a JSON text. Raises ProgramError."""
    try:
        root = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProgramError(f"the program is not JSON: {error}") from error
    with reading("program"):
        if not isinstance(root, dict):
            raise ProgramError("is not a JSON object")
        _check_version(root.get("__meta__", {}))
        return _program(root, text)


def _check_version(meta: dict) -> None:
    if "version" not in meta:
        return  # as BMv2: programs without a version are accepted
    major, minor = meta["version"]
    if major != MAJOR or minor > MAX_MINOR:
        raise ProgramError(f"has format version {major}.{minor}; versions {MAJOR}.0 to {MAJOR}.{MAX_MINOR} are known")


def _program(root: dict, text: str) -> ir.Program:
    names = Names()

    def section(name: str) -> list:
        return root.get(name) or []  # absent and null both mean empty

    enums = {obj["name"]: dict(obj["entries"]) for obj in section("enums")}
    header_types = _header_types(names, section("header_types"))
    _headers(names, header_types, root)
    aliases = {name: names.field(target) for name, target in section("field_aliases")}
    for obj in section("extern_instances"):
        with reading("extern instance", obj):
            raise ProgramError(f"has the type {obj['type']!r}; simple_switch knows no externs")
    vsets = parse_vsets(names, section("parse_vsets"))
    calculations = _calculations(names, section("calculations"))
    counters = named("counter array", names, section("counter_arrays"), _counter)
    meters = named("meter array", names, section("meter_arrays"), lambda obj: _meter(names, obj))
    registers = named("register array", names, section("register_arrays"), _register)
    all_parsers = parsers(names, section("parsers"))
    all_deparsers = deparsers(names, section("deparsers"))
    _actions(names, section("actions"))
    flow = Pipelines(names, calculations, section("pipelines"))
    return ir.Program(
        name=str(root.get("program", "")),
        header_types=header_types,
        headers=tuple(names.headers),
        stacks=tuple(names.stacks),
        unions=tuple(names.unions),
        union_stacks=tuple(names.union_stacks),
        errors=_errors(section("errors")),
        enums=enums,
        parse_vsets=vsets,
        parsers=all_parsers,
        deparsers=all_deparsers,
        registers=registers,
        counters=_bound(counters, section("counter_arrays"), names),
        meters=_bound(meters, section("meter_arrays"), names),
        calculations=tuple(calculations),
        checksums=named("checksum", names, section("checksums"), lambda obj: _checksum(names, obj)),
        field_lists=_field_lists(names, section("field_lists")),
        learn_lists=named("learn list", names, section("learn_lists"), lambda obj: _learn_list(names, obj)),
        actions=tuple(names.actions),
        action_profiles=tuple(flow.profiles),
        nodes=tuple(flow.nodes),
        tables=tuple(flow.tables),
        pipelines=tuple(flow.pipelines),
        aliases=types.MappingProxyType(aliases),
        config_options=dict(root.get("config_options") or {}),
        text=text,
    )


REQUIRED_FIELDS = ("ingress_port", "packet_length", "instance_type", "egress_spec", "egress_port")
"""Fields of standard_metadata that simple_switch needs."""


def check_runnable(program: ir.Program) -> None:
    """Refuse a program that loads but is not for simple_switch."""
    for field in REQUIRED_FIELDS:
        if program.field(f"standard_metadata.{field}") is None:
            raise ProgramError(f"the program lacks the field standard_metadata.{field}, which simple_switch needs")
    for sort, objects, required in (
        ("parser", program.parsers, ("parser",)),
        ("deparser", program.deparsers, ("deparser",)),
        ("pipeline", program.pipelines, ("ingress", "egress")),
    ):
        for name in required:
            if name not in (obj.name for obj in objects):
                raise ProgramError(f"the program lacks a {sort} named {name!r}, which simple_switch needs")


# Headers


def _header_types(names: Names, objs: list) -> tuple[ir.HeaderType, ...]:
    return named("header type", names, objs, lambda obj: _header_type(names, obj))


def _header_type(names: Names, obj: dict) -> ir.HeaderType:
    fields, offset, varbit = [], 0, None
    max_length = expect(obj.get("max_length") or 0, int, "max_length")
    for name, width, *flags in obj["fields"]:
        signed, saturating = ([bool(flag) for flag in flags] + [False, False])[:2]
        is_varbit = width == "*"
        if is_varbit:
            if varbit is not None:
                raise ProgramError("has more than one field of variable width")
            varbit = len(fields)
            width = 0  # set once the other fields are known
        width_of(width, f"the width of field {expect(name, str, 'the name of a field')!r}")
        if signed and width == 1 and not is_varbit:
            raise ProgramError(f"field {name!r} can't have {width} bits")
        fields.append(ir.Field(name, width, offset, signed, saturating, is_varbit))
        offset += width
    if varbit is not None and max_length:
        old = fields[varbit]
        widest = width_of(max(8 * max_length - offset, 0), "the length of the varbit field")
        fields[varbit] = ir.Field(old.name, widest, old.offset, old.signed, old.saturating, True)
    length = obj.get("length_exp")
    length = None if length is None else data(names, length)
    if length is not None:
        for node in e.walk(length):
            if isinstance(node, e.Local) and not 0 <= node.index < len(fields):
                raise ProgramError(f"its length uses field number {node.index}, which it does not have")
    return ir.HeaderType(obj["name"], obj["id"], tuple(fields), offset, varbit, length, max_length)


def _headers(names: Names, header_types: tuple[ir.HeaderType, ...], root: dict) -> None:
    """Headers, stacks, unions and union stacks; elements refer to what they are part of."""
    type_index = {header_type.name: header_type for header_type in header_types}

    def type_by_name(name: str) -> ir.HeaderType:
        if name not in type_index:
            raise ProgramError(f"there is no header type named {name!r}")
        return type_index[name]

    objs = root.get("headers") or []
    number_of_id = {obj["id"]: number for number, obj in enumerate(objs)}
    in_stack = _places(root.get("header_stacks") or [], "header_ids", number_of_id)
    in_union = _places(root.get("header_unions") or [], "header_ids", number_of_id)
    for obj in objs:
        with reading("header", obj):
            index = len(names.headers)
            names.add("header", obj["name"], index)
            header_type = type_by_name(obj["header_type"])
            names.headers.append(
                ir.Header(
                    obj["name"], obj["id"], index, header_type, bool(obj.get("metadata")),
                    in_stack.get(index), in_union.get(index),
                )
            )  # fmt: skip
    unique_ids("header", names.headers)
    for obj in root.get("header_stacks") or ():
        with reading("header stack", obj):
            names.add("header stack", obj["name"], len(names.stacks))
            elements = tuple(number_of_id[id_] for id_ in obj["header_ids"])
            names.stacks.append(ir.HeaderStack(obj["name"], obj["id"], type_by_name(obj["header_type"]), elements))
    _unions(names, root, number_of_id)


def _unions(names: Names, root: dict, number_of_id: dict[int, int]) -> None:
    members = {}
    for obj in root.get("header_union_types") or ():
        with reading("header union type", obj):
            members[obj["name"]] = tuple(name for name, _ in obj["headers"])
    objs = root.get("header_unions") or []
    union_of_id = {obj["id"]: number for number, obj in enumerate(objs)}
    in_stack = _places(root.get("header_union_stacks") or [], "header_union_ids", union_of_id)
    for obj in objs:
        with reading("header union", obj):
            index = len(names.unions)
            names.add("header union", obj["name"], index)
            headers = tuple(number_of_id[id_] for id_ in obj["header_ids"])
            if len(headers) != len(members[obj["union_type"]]):
                raise ProgramError("has not one header for each member of its type")
            names.unions.append(
                ir.HeaderUnion(obj["name"], obj["id"], members[obj["union_type"]], headers, in_stack.get(index))
            )
    for obj in root.get("header_union_stacks") or ():
        with reading("header union stack", obj):
            names.add("header union stack", obj["name"], len(names.union_stacks))
            unions = tuple(union_of_id[id_] for id_ in obj["header_union_ids"])
            names.union_stacks.append(ir.HeaderUnionStack(obj["name"], obj["id"], members[obj["union_type"]], unions))


def _places(objs: list, key: str, number_of_id: dict[int, int]) -> dict[int, tuple[int, int]]:
    """Number of an element → (number of the stack or union that it is in, position there)."""
    return {
        number_of_id[id_]: (number, position)
        for number, obj in enumerate(objs)
        for position, id_ in enumerate(obj[key])
        if id_ in number_of_id
    }


def _errors(objs: list) -> dict[str, int]:
    errors = {name: expect(value, int, f"error {name!r}") for name, value in objs}
    if len(set(errors.values())) != len(errors):
        raise ProgramError("two errors have the same number")
    for name in CORE_ERRORS:
        if name not in errors:
            errors[name] = max(errors.values(), default=-1) + 1
    return errors


# State and calculations


def _counter(obj: dict) -> ir.CounterArray:
    return ir.CounterArray(obj["name"], obj["id"], 0 if obj.get("is_direct") else _array_size(obj))


def _register(obj: dict) -> ir.RegisterArray:
    width = width_of(obj["bitwidth"], "bitwidth")
    if width == 0:
        raise ProgramError("can't have cells of 0 bits")
    return ir.RegisterArray(obj["name"], obj["id"], _array_size(obj), width)


def _meter(names: Names, obj: dict) -> ir.MeterArray:
    if obj["type"] not in ("packets", "bytes"):
        raise ProgramError(f"the meter type {obj['type']!r} is not one of packets, bytes")
    is_direct = bool(obj.get("is_direct", False))
    target = names.field(obj["result_target"]) if is_direct else None
    return ir.MeterArray(
        obj["name"], obj["id"], _array_size(obj), expect(obj["rate_count"], int, "rate_count"),
        obj["type"] == "bytes", is_direct, None, target,
    )  # fmt: skip


def _array_size(obj: dict) -> int:
    size = expect(obj["size"], int, "size")
    if size < 0:
        raise ProgramError(f"can't have {size} cells")
    return size


def _bound(arrays: tuple, objs: list, names: Names) -> tuple:
    """The arrays once more, direct ones with the index of the table in their JSON's `binding`."""
    bound = []
    for array, obj in zip(arrays, objs, strict=True):
        if obj.get("is_direct") and obj.get("binding") is not None:
            with reading("direct array", obj):
                table = names.find("table", obj["binding"])
                array = type(array)(**{**vars(array), "table": table})
        bound.append(array)
    return tuple(bound)


def _calculations(names: Names, objs: list) -> list[ir.Calculation]:
    return list(named("calculation", names, objs, lambda obj: _calculation(names, obj)))


def _calculation(names: Names, obj: dict) -> ir.Calculation:
    inputs = []
    for item in obj["input"]:
        sort = item["type"]
        if sort == "field":
            ref = names.field(item["value"])
            inputs.append(ir.CalcInput(sort, ref, names.width(ref)))
        elif sort == "hexstr":
            inputs.append(ir.CalcInput(sort, e.Const(hex_int(item["value"])), width_of(item["bitwidth"], "bitwidth")))
        elif sort == "header":
            inputs.append(ir.CalcInput(sort, e.HeaderRef(names.find("header", item["value"]))))
        elif sort == "payload":
            inputs.append(ir.CalcInput(sort))
        else:
            raise ProgramError(f"its input can't have the type {sort!r}")
    if not hashes.is_known(obj["algo"]):
        raise ProgramError(f"the algorithm {obj['algo']!r} is not known to simple_switch")
    return ir.Calculation(obj["name"], obj["id"], obj["algo"], tuple(inputs))


def _checksum(names: Names, obj: dict) -> ir.Checksum:
    if obj["type"] not in ("generic", "ipv4"):
        raise ProgramError(f"the checksum type {obj['type']!r} is not one of generic, ipv4")
    is_ipv4 = obj["type"] == "ipv4"
    if_cond = obj.get("if_cond")
    return ir.Checksum(
        obj["name"],
        obj["id"],
        names.field(obj["target"]),
        None if is_ipv4 else names.find("calculation", obj["calculation"]),
        bool(obj.get("update", True)),
        bool(obj.get("verify", True)),
        None if if_cond is None else condition(names, if_cond),
    )


def _field_lists(names: Names, objs: list) -> tuple[ir.FieldList, ...]:
    lists = []
    for obj in objs:
        with reading("field list", obj):
            elements = []
            for item in obj["elements"]:
                if item["type"] not in ("field", "hexstr"):
                    raise ProgramError(f"an element can't have the type {item['type']!r}")
                elements.append(data(names, item))
            lists.append(ir.FieldList(obj["id"], tuple(elements)))
    unique_ids("field list", lists)
    return tuple(lists)


def _learn_list(names: Names, obj: dict) -> ir.LearnList:
    elements = []
    for item in obj["elements"]:
        if item["type"] != "field":
            raise ProgramError(f"an element can't have the type {item['type']!r}")
        elements.append(names.field(item["value"]))
    return ir.LearnList(obj["name"], obj["id"], tuple(elements))


# Actions


def _actions(names: Names, objs: list) -> None:
    for obj in objs:
        with reading("action", obj):
            index = len(names.actions)
            params = tuple(ir.Param(p["name"], width_of(p["bitwidth"], "bitwidth")) for p in obj["runtime_data"])
            calls = tuple(primitive(names, call, len(params)) for call in obj["primitives"])
            names.actions.append(ir.Action(obj["name"], obj["id"], params, calls, source_of(obj)))
            names.indices.setdefault("action", {}).setdefault(obj["name"], index)  # names may repeat, ids not
            names.action_of_id[obj["id"]] = index
    unique_ids("action", names.actions)
