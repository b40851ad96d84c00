"""docs/environment.md is what switchml/environment.py says, and that table has every variable that the code reads."""

import re
from pathlib import Path

from switchml import environment

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("switchml", "host_agent", "emulator", "scripts", "tests")
NOT_VARIABLES = {"SWITCHML_SHARE"}  # a constant of switchml/protocol/sizes.py


def named_in_code() -> set[str]:
    files = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file())
    texts = (
        path.read_text() for path in files if path.suffix in (".py", ".sh", "") and "__pycache__" not in path.parts
    )
    return {name for text in texts for name in re.findall(r"\b(SWITCHML_[A-Z]+(?:_[A-Z]+)*)\b(?!_)", text)}


def test_every_variable_is_in_the_table():
    known = environment.names()
    prefixes = tuple(name.removesuffix("…") for name in known if name.endswith("…"))
    unknown = {name for name in named_in_code() - known - NOT_VARIABLES if not name.startswith(prefixes)}
    assert unknown == set()
    assert {name for name in known if not name.endswith("…")} <= named_in_code() | {"SWITCHML_DATA"}


def test_page_is_generated():
    page = (ROOT / "docs" / "environment.md").read_text()
    assert page == environment.page(), "python -m switchml.environment > docs/environment.md"
