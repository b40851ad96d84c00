"""What commands print, kept in tests/golden/NAME.txt. A screen that changed is seen there, whole.

`REWRITE_GOLDEN=1 ./scripts/test tests/test_screens.py` writes the files anew; look at `git diff` before a commit.
"""

import os
import re
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "golden"


def check(name: str, text: str, **hidden: str) -> None:
    """Compare with tests/golden/NAME.txt. `hidden`: regular expressions of what differs from run to run, which stand in
    the file by their name."""
    for word, pattern in hidden.items():
        text = re.sub(pattern, f"<{word}>", text)
    path = FOLDER / f"{name.replace(' ', '-')}.txt"
    if os.environ.get("REWRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    expected = path.read_text() if path.exists() else ""
    assert text == expected, f"{path.name}: if this is what is meant, REWRITE_GOLDEN=1 writes it (CONTRIBUTING.md)"
