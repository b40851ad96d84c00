"""BMv2's JSON (2.x, as p4c's bmv2 back end writes it) to an `ir.Program`.

`load` and `loads` are the interface. Any fault of the JSON ends in one ProgramError that names the object and, where
p4c recorded it, its line in the P4 source. Sections are read in BMv2's order (P4Objects::init_objects), each into the
tuple of the same name."""

import json
import types
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from emulator.p4switch.program import expr as e
from emulator.p4switch.program import ir
from emulator.p4switch.program.loader import context, parsers, psa
from emulator.p4switch.program.loader.context import Json, Names, expect, named, one_of, reading, width_of, within
from emulator.p4switch.program.loader.expressions import condition, data, primitive
from emulator.p4switch.program.loader.pipelines import Pipelines
from emulator.p4switch.program.loader.shapes import CELLS, RATES, check_program
from switchml.errors import ConfigError, ProgramError
from switchml.files import read_text

MAJOR, MAX_MINOR = 2, 24
"""Versions of the format that are known: 2.0 to 2.24."""

MOST_STATE_BYTES = 4 << 30
"""Of a program's registers, counters and meters together."""
COUNTER_BYTES, RATE_BYTES, LIMB_BYTES = 16, 32, 8
"""Of a counter, of each rate of a meter, and of each 64 bits of a register (state/arrays.py)."""

CORE_ERRORS = (
    "NoError", "PacketTooShort", "NoMatch", "StackOutOfBounds", "HeaderTooShort", "ParserTimeout",
    "ParserInvalidArgument",
)  # fmt: skip
"""Errors of core.p4; those without a number in the JSON are numbered after its highest."""


def load(path: str | Path) -> ir.Program:
    """The program in a JSON file. Raises ProgramError, also if the file can't be read."""
    try:
        text = read_text(path)
    except ConfigError as error:
        raise ProgramError(str(error).replace("can't read", "can't read the program", 1)) from error
    return loads(text)


def loads(text: str) -> ir.Program:
    """The program in a JSON text. Raises ProgramError."""
    try:
        root = json.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise ProgramError(f"the program is not JSON: {error}") from error
    with reading("program"):
        if not isinstance(root, dict):
            raise ProgramError("is not a JSON object")
        check_program(root)
        _check_version(root.get("__meta__", {}))
        return _program(root, text)


def _check_version(meta: Json) -> None:
    if meta.get("version") is None:
        return  # as BMv2: programs without a version are accepted
    major, minor = meta["version"]
    if major != MAJOR or minor > MAX_MINOR:
        raise ProgramError(f"has format version {major}.{minor}; versions {MAJOR}.0 to {MAJOR}.{MAX_MINOR} are known")


def _program(root: Json, text: str) -> ir.Program:
    names = Names()
    if psa.is_psa(root):
        root = psa.with_arrays(root)

    def section(name: str) -> list[Any]:
        return root.get(name) or []  # absent and null both mean empty

    _headers(names, section)
    aliases = {}
    for number, (name, target) in enumerate(section("field_aliases")):
        with reading(f"field_aliases[{number}]"):
            aliases[name] = names.field(target)
    for obj in section("extern_instances"):
        with reading("extern instance", obj):
            raise ProgramError(f"has the type {obj['type']!r}; simple_switch knows no externs")
    names.parse_vsets += named("parse value set", names, section("parse_vsets"), parsers.parse_vset)
    calculations = list(named("calculation", names, section("calculations"), _calculation))
    counters = named("counter array", names, section("counter_arrays"), _counter)
    meters = named("meter array", names, section("meter_arrays"), _meter)
    registers = named("register array", names, section("register_arrays"), _register)
    _check_memory(counters, meters, registers)
    all_parsers = named("parser", names, section("parsers"), parsers.parser)
    deparsers = named("deparser", names, section("deparsers"), parsers.deparser)
    _actions(names, section("actions"))
    flow = Pipelines(names, calculations, section("pipelines"))
    return ir.Program(
        name=str(root.get("program", "")),
        headers=tuple(names.headers),
        stacks=tuple(names.stacks),
        errors=_errors(section("errors")),
        parse_vsets=tuple(names.parse_vsets),
        parsers=all_parsers,
        deparsers=deparsers,
        registers=registers,
        counters=_bound(counters, section("counter_arrays"), names),
        meters=_bound(meters, section("meter_arrays"), names),
        calculations=tuple(calculations),
        checksums=named("checksum", names, section("checksums"), _checksum),
        field_lists=_field_lists(names, section("field_lists")),
        learn_lists=named("learn list", names, section("learn_lists"), _learn_list),
        actions=tuple(names.actions),
        action_profiles=tuple(flow.profiles),
        nodes=tuple(flow.nodes),
        tables=tuple(flow.tables),
        pipelines=tuple(flow.pipelines),
        aliases=types.MappingProxyType(aliases),
        text=text,
    )


REQUIRED_FIELDS = ("ingress_port", "packet_length", "instance_type", "egress_spec", "egress_port")
"""Fields of standard_metadata that simple_switch needs."""


def check_runnable(program: ir.Program) -> None:
    """Refuse a program that loads but is neither for simple_switch nor for psa_switch."""
    if program.is_psa:
        psa.check(program)
        return
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


def _header_type(names: Names, obj: Json) -> ir.HeaderType:
    fields: list[ir.Field] = []
    offset, varbit = 0, None
    max_length: int = obj.get("max_length") or 0
    for name, width, *flags in filter(None, obj["fields"]):  # p4c writes [] for PSA's errors
        signed, saturating = ([bool(flag) for flag in flags] + [False, False])[:2]
        is_varbit = width == "*"
        if is_varbit:
            if varbit is not None:
                raise ProgramError("has more than one field of variable width")
            varbit = len(fields)
            width = 0  # set once the other fields are known
        width_of(width, f"the width of field {name!r}")
        if signed and width == 1 and not is_varbit:
            raise ProgramError(f"field {name!r} can't have {width} bits")
        fields.append(ir.Field(name, width, offset, signed, saturating, is_varbit))
        offset += width
    if varbit is not None and max_length:
        widest = width_of(max(8 * max_length - offset, 0), "the length of the varbit field")
        fields[varbit] = replace(fields[varbit], width=widest)
    length = obj.get("length_exp")
    length = None if length is None else data(names, length)
    if length is not None:
        for node in e.walk(length):
            if isinstance(node, e.Local) and not 0 <= node.index < len(fields):
                raise ProgramError(f"its length uses field number {node.index}, which it does not have")
    return ir.HeaderType(obj["name"], obj["id"], tuple(fields), offset, varbit, length, max_length)


def _headers(names: Names, section: Callable[[str], list[Any]]) -> None:
    """Header types, headers, and the stacks and unions that headers are in."""
    type_index = {kind.name: kind for kind in named("header type", names, section("header_types"), _header_type)}

    def type_by_name(name: str) -> ir.HeaderType:
        if name not in type_index:
            raise ProgramError(f"there is no header type named {name!r}")
        return type_index[name]

    index_of_id = {obj["id"]: index for index, obj in enumerate(section("headers"))}
    for index, obj in enumerate(section("headers")):
        with reading("header", obj):
            names.add("header", obj["name"], index)
            kind = type_by_name(obj["header_type"])
            names.headers.append(ir.Header(obj["name"], obj["id"], index, kind, bool(obj.get("metadata"))))
    context.unique_ids("header", names.headers)
    for obj in section("header_stacks"):
        with reading("header stack", obj):
            headers = tuple(index_of_id[id_] for id_ in obj["header_ids"])
            _check_types(names, headers, [type_by_name(obj["header_type"])] * len(headers))
            _stack("header stack", names, obj, (), (type_by_name(obj["header_type"]),), (headers,))
    members = {}
    for obj in section("header_union_types"):
        with reading("header union type", obj):
            members[obj["name"]] = {name: type_by_name(type_name) for name, type_name in obj["headers"]}
            if not members[obj["name"]]:
                raise ProgramError("has no members")
    for obj in section("header_unions"):
        with reading("header union", obj):
            names.add("header union", obj["name"], len(names.unions))
            headers = tuple(index_of_id[id_] for id_ in obj["header_ids"])
            if len(headers) != len(members[obj["union_type"]]):
                raise ProgramError("has not one header for each member of its type")
            _check_types(names, headers, members[obj["union_type"]].values())
            names.unions.append(headers)
            for header in headers:
                names.headers[header] = replace(names.headers[header], union=headers)
    union_of_id = {obj["id"]: union for obj, union in zip(section("header_unions"), names.unions, strict=True)}
    for obj in section("header_union_stacks"):
        with reading("header union stack", obj):
            unions = [union_of_id[id_] for id_ in obj["header_union_ids"]]
            types_of = members[obj["union_type"]]
            for union in unions:
                _check_types(names, union, types_of.values())
            columns = tuple(tuple(union[i] for union in unions) for i in range(len(types_of)))
            _stack("header union stack", names, obj, tuple(types_of), tuple(types_of.values()), columns)


def _check_types(names: Names, headers: tuple[int, ...], types_of: Iterable[ir.HeaderType]) -> None:
    """Refuse headers of other types than these."""
    for index, expected in zip(headers, types_of, strict=True):
        header = names.headers[index]
        if header.type is not expected:
            raise ProgramError(
                f"its header {header.name!r} has the type {header.type.name!r}, but should have {expected.name!r}"
            )


def _stack(
    sort: str,
    names: Names,
    obj: Json,
    members: tuple[str, ...],
    types_of: tuple[ir.HeaderType, ...],
    columns: tuple[tuple[int, ...], ...],
) -> None:
    size = obj.get("size")
    if size is not None and size != len(columns[0]):
        raise ProgramError(f"size is {size}, but it has {len(columns[0])} elements")
    names.add(sort, obj["name"], len(names.stacks))
    names.stacks.append(ir.Stack(obj["name"], obj["id"], members, types_of, columns))
    for column in columns:
        for header in column:
            names.headers[header] = replace(names.headers[header], in_stack=True)


def _errors(pairs: list[tuple[str, int]]) -> dict[str, int]:
    errors = dict(pairs)
    if len(set(errors.values())) != len(errors):
        raise ProgramError("two errors have the same number")
    for name in CORE_ERRORS:
        if name not in errors:
            errors[name] = max(errors.values(), default=-1) + 1
    return errors


# State and calculations


def _counter(names: Names, obj: Json) -> ir.CounterArray:
    return ir.CounterArray(obj["name"], obj["id"], 0 if obj.get("is_direct") else _array_size(obj))


def _register(names: Names, obj: Json) -> ir.RegisterArray:
    width = width_of(obj["bitwidth"], "bitwidth")
    if width == 0:
        raise ProgramError("can't have cells of 0 bits")
    return ir.RegisterArray(obj["name"], obj["id"], _array_size(obj), width)


def _meter(names: Names, obj: Json) -> ir.MeterArray:
    counts_bytes = one_of(obj["type"], ("packets", "bytes"), "meter type") == "bytes"
    is_direct = bool(obj.get("is_direct", False))
    if is_direct and obj.get("result_target") is None:
        raise ProgramError("a direct meter needs 'result_target'")
    target = names.field(obj["result_target"]) if is_direct else None
    size, n_rates = _array_size(obj), within(obj["rate_count"], RATES, "rate_count")
    return ir.MeterArray(obj["name"], obj["id"], size, n_rates, counts_bytes, is_direct, None, target)


def _array_size(obj: Json) -> int:
    return within(expect(obj["size"], int, "size"), CELLS, "size")


def _check_memory(
    counters: Iterable[ir.CounterArray], meters: Iterable[ir.MeterArray], registers: Iterable[ir.RegisterArray]
) -> None:
    """Refuse arrays that take more memory than a program may."""
    cells = [(array.name, array.size * COUNTER_BYTES) for array in counters]
    cells += [(array.name, array.size * array.rate_count * RATE_BYTES) for array in meters]
    cells += [(array.name, array.size * -(-array.width // 64) * LIMB_BYTES) for array in registers]
    if (needed := sum(n_bytes for _, n_bytes in cells)) > MOST_STATE_BYTES:
        largest, n_bytes = max(cells, key=lambda cell: cell[1])
        raise ProgramError(
            f"its registers, counters and meters take {needed:,} bytes, {n_bytes:,} of them {largest!r}; expected "
            f"{MOST_STATE_BYTES:,} at most"
        )


ArrayT = TypeVar("ArrayT", ir.CounterArray, ir.MeterArray)


def _bound(arrays: tuple[ArrayT, ...], objs: list[Json], names: Names) -> tuple[ArrayT, ...]:
    """The arrays once more, direct ones with the index of the table in their JSON's `binding`."""
    bound = []
    for array, obj in zip(arrays, objs, strict=True):
        if obj.get("is_direct") and obj.get("binding") is not None:
            with reading("direct array", obj):
                array = replace(array, table=names.find("table", obj["binding"]))
        bound.append(array)
    return tuple(bound)


def _calculation(names: Names, obj: Json) -> ir.Calculation:
    inputs = []
    for item in obj["input"]:
        sort = item["type"]
        if sort == "field":
            inputs.append(ir.CalcInput(names.field(item["value"])))
        elif sort == "hexstr":
            value = e.Const(context.hex_int(item["value"]))
            inputs.append(ir.CalcInput(value, width_of(item["bitwidth"], "bitwidth")))
        elif sort == "header":
            inputs.append(ir.CalcInput(e.HeaderRef(names.find("header", item["value"]))))
        elif sort == "payload":
            inputs.append(ir.CalcInput(None))
        else:
            raise ProgramError(f"its input can't have the type {sort!r}")
    return ir.Calculation(obj["name"], obj["id"], context.algorithm(obj["algo"]), tuple(inputs))


def _checksum(names: Names, obj: Json) -> ir.Checksum:
    is_ipv4 = one_of(obj["type"], ("generic", "ipv4"), "checksum type") == "ipv4"
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


def _elements(obj: Json, *sorts: str) -> list[Json]:
    elements: list[Json] = obj["elements"]
    for item in elements:
        if item["type"] not in sorts:
            raise ProgramError(f"an element can't have the type {item['type']!r}")
    return elements


def _field_lists(names: Names, objs: list[Json]) -> tuple[ir.FieldList, ...]:
    lists = []
    for obj in objs:
        with reading("field list", obj):
            elements = tuple(data(names, item) for item in _elements(obj, "field", "hexstr"))
            lists.append(ir.FieldList(obj["id"], elements))
    context.unique_ids("field list", lists)
    return tuple(lists)


def _learn_list(names: Names, obj: Json) -> ir.LearnList:
    fields = tuple(names.field(item["value"]) for item in _elements(obj, "field"))
    return ir.LearnList(obj["name"], obj["id"], fields)


# Actions


def _actions(names: Names, objs: list[Json]) -> None:
    for obj in objs:
        with reading("action", obj):
            index = len(names.actions)
            params = tuple(ir.Param(p["name"], width_of(p["bitwidth"], "bitwidth")) for p in obj["runtime_data"])
            calls = tuple(primitive(names, call, len(params)) for call in obj["primitives"])
            names.actions.append(ir.Action(obj["name"], obj["id"], params, calls, context.source_of(obj)))
            names.indices.setdefault("action", {}).setdefault(obj["name"], index)  # names may repeat, ids not
            names.action_of_id[obj["id"]] = index
    context.unique_ids("action", names.actions)
