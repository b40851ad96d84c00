"""Files distributed with the packages: examples, experiments, the dissector, `simple_switch`, the documentation.

In a checkout, `docs` and `scripts` here are links to the folders of that name; a wheel contains their files.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from switchml.errors import ConfigError

HERE = Path(__file__).parent
DOCS = HERE / "docs"
_KINDS = {
    "example": "scripts/examples/*",
    "experiment": "scripts/experiments/*",
    "exercise": "scripts/p4_exercise",
    "dissector": "scripts/*.lua",
    "program": "scripts/simple_switch*",
}


@dataclass(frozen=True)
class Shared:
    """A file or folder that a user can copy."""

    name: str
    kind: str
    path: Path

    @property
    def about(self) -> str:
        """The first sentence of the file, or of a folder's README."""
        if self.path.is_dir():
            return _sentence((self.path / "README.md").read_text(encoding="utf-8").partition("\n")[2])
        text = self.path.read_text(encoding="utf-8")
        return _sentence(text[text.index('"""') + 3 :] if self.path.suffix == ".py" else _comment(text))


def files() -> list[Shared]:
    """Return all files, by kind and name."""
    return [
        Shared(path.name, kind, path)
        for kind, pattern in _KINDS.items()
        for path in sorted(HERE.glob(pattern))
        if path.name != "__pycache__"
    ]


def named(name: str) -> Shared:
    """Return the file of that name, with or without its suffix. Raises ConfigError."""
    known = files()
    for file in known:
        if name in (file.name, file.path.stem):
            return file
    raise ConfigError(f"no example named {name!r}: expected one of {', '.join(file.name for file in known)}")


def copy(file: Shared, folder: Path) -> Path:
    """Copy a file or folder into a folder, which is created if needed; return the copy's path. Raises ConfigError if
    something of that name exists there."""
    target = folder / file.name
    if target.exists():
        raise ConfigError(f"{target} exists already: copy elsewhere with --to, or move it away")
    folder.mkdir(parents=True, exist_ok=True)
    if file.path.is_dir():
        shutil.copytree(file.path, target, ignore=shutil.ignore_patterns("__pycache__"))
        return target
    shutil.copyfile(file.path, target)
    if file.path.read_bytes().startswith(b"#!"):
        target.chmod(0o755)  # a wheel may not preserve it
    return target


def _comment(text: str) -> str:
    """Return the leading comment lines of a shell script or Lua program as text."""
    return " ".join(_comment_lines(text))


def _comment_lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if match := re.match(r"(?:#(?!!)|--)\s?(.*)", line):
            yield match[1]
        elif not line.startswith("#!"):
            return


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return re.split(r'(?<=[.])\s|"""', text, maxsplit=1)[0].rstrip(":")
