"""Programs for the Portable Switch Architecture, as p4c-bm2-psa writes them: told from simple_switch's by the names of
their parsers, and their counters and meters, which are externs, made the arrays that simple_switch has."""

from typing import Any

from emulator.p4switch.program import ir
from emulator.p4switch.program.loader.context import expect, reading
from switchml.errors import ProgramError

BLOCKS = (
    ("parser", ("ingress_parser", "egress_parser")),
    ("deparser", ("ingress_deparser", "egress_deparser")),
    ("pipeline", ("ingress", "egress")),
)
"""What a program has to have (targets/psa_switch/psa_switch.cpp)."""
FIELDS = (
    "psa_ingress_parser_input_metadata.ingress_port",
    "psa_ingress_parser_input_metadata.packet_path",
    "psa_ingress_output_metadata.drop",
    "psa_ingress_output_metadata.egress_port",
    "psa_egress_parser_input_metadata.egress_port",
    "psa_egress_output_metadata.drop",
)
_ARRAYS = {"Counter": "counter_array", "Meter": "meter_array"}


def is_psa(root: dict[str, Any]) -> bool:
    """Whether a program's JSON is one."""
    return any(parser.get("name") == "ingress_parser" for parser in root.get("parsers") or [])


def check(program: ir.Program) -> None:
    """Raises ProgramError for a program that lacks what psa_switch needs."""
    for name in FIELDS:
        if program.field(name) is None:
            raise ProgramError(f"the program lacks the field {name}, which psa_switch needs")
    there = {"parser": program.parsers, "deparser": program.deparsers, "pipeline": program.pipelines}
    for sort, names in BLOCKS:
        for name in names:
            if all(block.name != name for block in there[sort]):
                raise ProgramError(f"the program lacks a {sort} named {name!r}, which psa_switch needs")


def with_arrays(root: dict[str, Any]) -> dict[str, Any]:
    """The program's JSON with arrays in place of externs. Raises ProgramError for other externs."""
    kinds: dict[str, str] = {}
    arrays: dict[str, list[dict[str, Any]]] = {kind: [*(root.get(f"{kind}s") or [])] for kind in _ARRAYS.values()}
    for obj in root.get("extern_instances") or []:
        with reading("extern instance", obj):
            if obj["type"] not in _ARRAYS:
                raise ProgramError(f"has the type {obj['type']!r}; of PSA's externs {' and '.join(_ARRAYS)} are known")
            kind = kinds[obj["name"]] = _ARRAYS[obj["type"]]
            if all(array["name"] != obj["name"] for array in arrays[kind]):
                arrays[kind].append(_array(obj))
    rest = {f"{kind}s": listed for kind, listed in arrays.items()} | {"extern_instances": []}
    changed = _replaced({**root, **rest}, kinds)
    assert isinstance(changed, dict)
    return changed


def _array(obj: dict[str, Any]) -> dict[str, Any]:
    values = {attribute["name"]: attribute["value"] for attribute in obj["attribute_values"]}
    if obj["type"] == "Counter":
        return {"name": obj["name"], "id": obj["id"], "size": _number(values["n_counters"]), "is_direct": False}
    return {
        "name": obj["name"],
        "id": obj["id"],
        "size": _number(values["n_meters"]),
        "rate_count": _number(values["rate_count"]),
        "type": values["type"],
        "is_direct": False,
    }


def _number(value: str | int) -> int:
    return int(value, 0) if isinstance(value, str) else expect(value, int, "an attribute's number")


def _replaced(value: Any, kinds: dict[str, str]) -> Any:
    """With every reference to an extern that of its array."""
    if isinstance(value, list):
        return [_replaced(each, kinds) for each in value]
    if not isinstance(value, dict):
        return value
    if value.get("type") == "extern" and value.get("value") in kinds:
        return {**value, "type": kinds[value["value"]]}
    return {key: _replaced(each, kinds) for key, each in value.items()}
