"""Blocks of commands and of Python in README and docs, and the table (tests/doc_blocks.toml) that says how a test runs
them."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TABLE = tomllib.loads((ROOT / "tests" / "doc_blocks.toml").read_text(encoding="utf-8"))
_COMMAND = re.compile(
    r"(?:\$ )?((?:[A-Z_]+=\S+ )*(?:sudo )?(?:switchml|torchrun|python|tshark|\./scripts/run|\w+_CLI)\b(?![.:]).*)"
)


_LOOKS_LIKE_PYTHON = re.compile(r"^(from \S+ import |import |with |dist\.)", re.MULTILINE)


@dataclass
class Command:
    """One command as the page shows it, comments removed, and what the table says of it."""

    page: str
    text: str
    run: str = ""
    not_run: str = ""
    expect: list[str] = field(default_factory=list)


def blocks(text: str) -> Iterator[list[str]]:
    """The lines of each block: fenced, or indented by four spaces. What is fenced as text is output."""
    lines: list[str] = []
    fenced = is_output = False
    for line in [*text.splitlines(), ""]:
        if line.startswith("```"):
            if lines and not is_output:
                yield lines
            fenced, is_output, lines = not fenced, line == "```text", []
        elif fenced:
            lines.append(line)
        elif line.startswith("    "):
            lines.append(line[4:])
        elif lines:
            yield lines
            lines = []


def commands(page: Path) -> list[Command]:
    """All commands of a page in their order; lines that end in a backslash go on."""
    found = []
    for lines in blocks(page.read_text(encoding="utf-8")):
        for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
            if match := _COMMAND.fullmatch(re.split(r"\s{2,}#|\s# ", line)[0].rstrip()):
                found.append(_prepared(Command(str(page.relative_to(ROOT)), match[1])))
    return found


def python(page: Path) -> str:
    """The page's Python, one block after the other, with what the table changes in it and puts before and after."""
    row = TABLE["python"].get(str(page.relative_to(ROOT)), {})
    text = "\n".join(_python_blocks(page.read_text(encoding="utf-8")))
    for old, new in row.get("replace", {}).items():
        assert old in text, f"{page}: {old}"
        text = text.replace(old, new)
    return "\n".join((row.get("before", ""), text, row.get("after", ""))) if text else ""


def _python_blocks(text: str) -> Iterator[str]:
    """Fenced as Python; or indented, blank lines included, where it looks like it."""
    language, lines = None, []
    for line in [*text.splitlines(), "end"]:
        if line.startswith("```"):
            if language == "python":
                yield "\n".join(lines)
            language, lines = line[3:] if language is None else None, []
        elif language is not None or line.startswith("    ") or (lines and not line):
            lines.append(line)
        else:
            block = textwrap.dedent("\n".join(lines))
            if _LOOKS_LIKE_PYTHON.search(block):
                yield block
            lines = []


def tables(page: Path) -> list[str]:
    """The page's fenced blocks of TOML."""
    return re.findall(r"```toml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def _prepared(command: Command) -> Command:
    command.run = command.text.removeprefix("sudo ")
    for row in TABLE["not_run"]:
        if any(part in command.text for part in row["of"]):
            command.not_run = row["why"]
    for row in TABLE["shortened"]:
        if row["of"] in command.text:
            command.run = command.run.replace(row["from"], row["to"])
    for row in TABLE["expected"]:
        if command.text.endswith(row["of"]):
            command.expect = row["expect"]
    return command
