"""What the benchmarks of the switch print as JSON."""

from dataclasses import asdict
from typing import Any, ClassVar


class Figures:
    """A dataclass of one row."""

    digits: ClassVar[int] = 2
    """Behind the point."""

    def to_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        row: dict[str, Any] = asdict(self)  # type: ignore[call-overload]  # subclasses are dataclasses
        return {name: round(value, self.digits) if isinstance(value, float) else value for name, value in row.items()}
