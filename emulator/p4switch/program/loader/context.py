"""Shared by the loader's modules: the objects read so far, by name, and errors that name the faulty object."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from emulator.p4switch import hashes
from emulator.p4switch.program import ir
from emulator.p4switch.program.expr import FieldRef
from emulator.p4switch.program.loader.shapes import WIDTH
from emulator.ranges import Range, shown
from switchml.errors import ProgramError

Json = dict[str, Any]
"""A JSON object whose value types have been checked by `shapes`."""
T = TypeVar("T")


class LocatedError(ProgramError):
    """A ProgramError that names the faulty object."""


def source_of(obj: Json) -> ir.Source:
    """Source location of a JSON object, if it has `source_info`."""
    info = obj.get("source_info") or {}
    return ir.Source(
        info.get("filename") or "", info.get("line") or 0, info.get("column") or 0, info.get("source_fragment") or ""
    )


@contextmanager
def reading(what: str, obj: Json | None = None) -> Iterator[None]:
    """Convert errors in this context to a ProgramError that begins with `what`, `obj`'s name and its line. The
    innermost context takes precedence."""
    try:
        yield
    except LocatedError:
        raise
    except ProgramError as error:
        raise _located(what, obj, str(error)) from error
    except KeyError as error:
        raise _located(what, obj, f"lacks {error}") from error
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        raise _located(what, obj, f"is malformed: {error}") from error
    except RecursionError as error:
        raise _located(what, obj, "is nested too deeply") from error


def _located(what: str, obj: Json | None, problem: str) -> LocatedError:
    obj = obj or {}
    name, place = obj.get("name", obj.get("op")), str(source_of(obj))
    return LocatedError(f"{what}{f' {name!r}' if name is not None else ''}{f' ({place})' if place else ''}: {problem}")


def hex_int(text: str) -> int:
    """Parse a JSON hexstr, "0x1f" or "-0x1f"."""
    return int(text, 16)


def algorithm(name: str) -> str:
    """Check the name of a calculation's algorithm. BMv2 rejects unknown ones when it loads a program."""
    if not hashes.is_known(name):
        raise ProgramError(f"the algorithm {name!r} is not known to simple_switch")
    return name


def expect(value: object, type_: type[T], what: str) -> T:
    """Return `value` if it has this type (a bool is not an int)."""
    if not isinstance(value, type_) or (type_ is int and isinstance(value, bool)):
        raise ProgramError(f"{what} is {value!r}, but should be of type {type_.__name__}")
    return value


def one_of(value: str, allowed: tuple[str, ...], what: str) -> str:
    """Return `value` if it is one of these."""
    if value not in allowed:
        raise ProgramError(f"the {what} {value!r} is not one of {', '.join(allowed)}")
    return value


def width_of(value: int, what: str) -> int:
    """Return `value` if it is a valid number of bits."""
    return within(value, WIDTH, what)


def within(value: int, range: Range, what: str) -> int:
    """Return `value` if it is in `range`."""
    if value not in range:
        raise ProgramError(f"{what} is {shown(value)}, but should be {range}")
    return value


@dataclass
class Names:
    """Name → index of all referable objects, and the objects themselves where the loader needs them; for a union, the
    indices of its headers.

    `find(sort, name)` looks up a name; `add(sort, name, index)` rejects duplicates."""

    indices: dict[str, dict[str, int]] = field(default_factory=dict)
    headers: list[ir.Header] = field(default_factory=list)
    stacks: list[ir.Stack] = field(default_factory=list)
    unions: list[tuple[int, ...]] = field(default_factory=list)
    parse_vsets: list[ir.ParseVSet] = field(default_factory=list)
    actions: list[ir.Action] = field(default_factory=list)
    action_of_id: dict[int, int] = field(default_factory=dict)

    def add(self, sort: str, name: str, index: int) -> None:
        table = self.indices.setdefault(sort, {})
        if name in table:
            raise ProgramError(f"there are two objects of type {sort} named {name!r}")
        table[name] = index

    def find(self, sort: str, name: str) -> int:
        try:
            return self.indices[sort][name]
        except KeyError:
            raise ProgramError(f"there is no {sort} named {name!r}") from None

    def field(self, value: list[str]) -> FieldRef:
        """["header", "field"] as a FieldRef."""
        header_name, field_name = value
        header = self.find("header", header_name)
        return FieldRef(header, field_in(self.headers[header].type, field_name))

    def width(self, ref: FieldRef) -> int:
        return 1 if ref.field < 0 else self.headers[ref.header].type.fields[ref.field].width


def field_in(header_type: ir.HeaderType, name: str) -> int:
    """Index of a field by name."""
    try:
        return header_type.field_index[name]
    except KeyError:
        raise ProgramError(f"header type {header_type.name!r} has no field {name!r}") from None


class HasId(Protocol):
    """An object that the control plane can refer to by number."""

    @property
    def id(self) -> int: ...


HasIdT = TypeVar("HasIdT", bound=HasId)


def unique_ids(sort: str, objects: Iterable[HasId]) -> None:
    """Reject two objects of one sort with the same id."""
    seen: set[int] = set()
    for obj in objects:
        if obj.id in seen:
            raise ProgramError(f"there are two objects of type {sort} with the id {obj.id}")
        seen.add(obj.id)


def named(sort: str, names: Names, objs: list[Json], make: Callable[[Names, Json], HasIdT]) -> tuple[HasIdT, ...]:
    """Create an object from each JSON object, and register it by name."""
    objects: list[HasIdT] = []
    for obj in objs:
        with reading(sort, obj):
            names.add(sort, obj["name"], len(objects))
            objects.append(make(names, obj))
    unique_ids(sort, objects)
    return tuple(objects)
