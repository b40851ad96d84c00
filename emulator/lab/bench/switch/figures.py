"""Base class of the rows that the switch benchmarks print as JSON."""

from dataclasses import asdict
from typing import Any, ClassVar


class Figures:
    """A result row; subclasses are dataclasses."""

    digits: ClassVar[int] = 2
    """Decimal places of floats."""

    def to_json(self) -> dict[str, Any]:
        """The fields as `--json` prints them."""
        row: dict[str, Any] = asdict(self)  # type: ignore[call-overload]  # subclasses are dataclasses
        return {name: round(value, self.digits) if isinstance(value, float) else value for name, value in row.items()}
