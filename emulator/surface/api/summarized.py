"""Display of results in a terminal and a notebook, and conversion to data frames of pandas or polars."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from emulator.jobs.sweep import flattened
from switchml.errors import ConfigError
from switchml.text import plain

if TYPE_CHECKING:
    import pandas

Library = Literal["pandas", "polars"]
_TABLE = '<table><caption style="text-align: left; font-weight: bold">{title}</caption><tbody>{rows}</tbody></table>'


class Summarized:
    """Base class of results with a short summary: `title`, then a line for each of `facts`."""

    @property
    def title(self) -> str:
        """First line of the summary."""
        raise NotImplementedError

    def facts(self) -> Iterable[tuple[str, str]]:
        """(name, value) of the other lines."""
        raise NotImplementedError

    def __repr__(self) -> str:
        facts = list(self.facts())
        width = max((len(name) for name, _ in facts), default=0)
        return plain("\n".join([self.title, *(f"  {name:<{width}}  {value}" for name, value in facts)]))

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{_escaped(name)}</td><td>{_escaped(value)}</td></tr>" for name, value in self.facts())
        return _TABLE.format(title=_escaped(self.title), rows=rows)


def _escaped(text: str) -> str:
    return html.escape(plain(text))


def frame(rows: Iterable[Mapping[str, Any]], library: Library | None = None) -> pandas.DataFrame:
    """A data frame with one row per mapping; nested dictionaries become columns such as `parts.compute`. `library`: by
    default pandas if it is installed, else polars. Raises ConfigError if neither is."""
    if library is None:
        library = "pandas" if find_spec("pandas") or not find_spec("polars") else "polars"
    if library not in ("pandas", "polars"):
        raise ConfigError(f"library is {library!r}; expected 'pandas' or 'polars'")
    if find_spec(library) is None:
        raise ConfigError(f"a frame needs {library}; install it with: pip install 'switchml[{library}]'")
    flat = [flattened(dict(row)) for row in rows]
    columns = {name: [row.get(name) for row in flat] for name in dict.fromkeys(name for row in flat for name in row)}
    if library == "polars":
        import polars

        made: Any = polars.DataFrame(columns, strict=False)
        return made
    import pandas

    return pandas.DataFrame(columns)
