"""Option types shared by all commands: numbers with units (`switchml/units.py`), and textual defaults."""

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import click

from switchml import units
from switchml.errors import ConfigError
from switchml.text import plain

F = TypeVar("F", bound=Callable[..., Any])
if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType  # not generic before click 8.3


@functools.cache
def note(text: str) -> None:
    """Print a note on stderr, once per process."""
    click.echo(plain(f"switchml: note: {text}"), err=True)


class Option(click.Option):
    """An option whose textual default (`show_default`) is displayed like a numeric one. `group`: its section of the
    help (`GroupedCommand`)."""

    def __init__(self, *args: Any, group: str = "", **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.group = group

    def get_help_extra(self, ctx: click.Context) -> Any:
        extra = super().get_help_extra(ctx)
        if isinstance(self.show_default, str):  # click would put it into parentheses
            extra["default"] = self.show_default
        return extra


def option(*flags: str, **settings: Any) -> Callable[[F], F]:
    """`click.option` for an `Option`."""
    return click.option(*flags, cls=Option, **settings)


def given_parameters(context: click.Context) -> Iterator[click.Parameter]:
    """Yield the parameters given on the command line."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is click.core.ParameterSource.COMMANDLINE:
            yield parameter


class GroupedCommand(click.Command):
    """A command whose help has a section for each group of options, in order of appearance, then the others."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                sections.setdefault(getattr(parameter, "group", ""), []).append(record)
        others = sections.pop("", [])
        for title, records in [*sections.items(), ("Options", others)]:
            with formatter.section(title):
                formatter.write_dl(records)


class Quantity(ParamType):
    """A number with a unit; converts to a float in multiples of `unit` of the kind's base. `bare`: treatment of a
    number without unit: "named": `unit` applies, because the option's name contains it; "noted": the same, with a note;
    "refused": an error with the sentence `hint`."""

    def __init__(self, kind: units.Kind, *, unit: float = 1.0, bare: str = "noted", hint: str = "") -> None:
        self.kind, self.unit, self.bare, self.hint, self.name = kind, unit, bare, hint, kind.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, (int, float)):
            return float(value)
        text = str(value)
        is_bare = self.kind.is_bare(text)
        if is_bare and self.bare == "refused":
            self.fail(f"{text!r} has no unit: {self.hint or f'write {self.kind.example}'}", param, ctx)
        try:
            number = self.kind.parse(text, bare=self.unit) / self.unit
        except ConfigError as error:
            self.fail(str(error), param, ctx)
        if number < 0:
            self.fail(f"{text!r} is less than 0", param, ctx)
        if is_bare and self.bare == "noted":
            note_bare(text, self.kind, param)
        return number


def note_bare(text: str, kind: units.Kind, param: click.Parameter | None) -> None:
    """Print the unit assumed for `text`, a number of `param` without unit."""
    where = max(param.opts, key=len) if param is not None else "a value"
    note(f"{where} {text} has no unit: taken as {text.strip()}{kind.base.partition('/')[0]}")


class Count(click.IntRange):
    """A whole number, which may be written as 1k, 25M or 300B."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str):
            try:
                number = units.COUNT.parse(value)
            except ConfigError as error:
                self.fail(str(error), param, ctx)
            if not number.is_integer():
                self.fail(f"{value!r} is not a whole number", param, ctx)
            value = int(number)
        return super().convert(value, param, ctx)


class Named(ParamType):
    """A number in the unit of a key's name (`units.of_name`), whole or not."""

    def __init__(self, key: str, is_whole: bool) -> None:
        self.key, self.is_whole = key, is_whole
        kind = units.of_name(key)[0]
        self.name = kind.name if kind.base or is_whole else "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            number = units.parse_named(self.key, value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)
        if not self.is_whole:
            return number
        if not number.is_integer():
            self.fail(f"{value!r} is not a whole number", param, ctx)
        return int(number)


SIZE = Quantity(units.SIZE)
RATE = Quantity(units.RATE, bare="refused")
TIME = Quantity(units.TIME, bare="refused")
SECONDS = Quantity(units.TIME)
"""For options that accepted bare seconds in the past."""
NAMED_SECONDS = Quantity(units.TIME, bare="named")
"""Type of the option `--seconds`, whose bare numbers are seconds."""
BUCKET = Quantity(
    units.SIZE, bare="refused", hint="write 25MiB for what torch calls bucket_cap_mb=25, or 25MB for 25,000,000 bytes"
)
"""Bytes of gradients per bucket: torch uses MiB, earlier versions of this option bytes."""
