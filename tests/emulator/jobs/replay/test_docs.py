"""docs/replay.md: its example prints what its comments say."""

import contextlib
import io
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[4] / "docs" / "replay.md"


def test_example():
    (code,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, str(DOCS), "exec"), {})
    said = re.findall(r"print\(.*?\)\s+# (.*)", code)
    lines = printed.getvalue().splitlines()
    assert len(said) == len(lines) == 3
    for comment, line in zip(said, lines, strict=True):
        numbers = [float(number) for number in re.findall(r"\d+\.\d+", comment)]
        assert [float(number) for number in re.findall(r"\d+\.\d+", line)] == pytest.approx(numbers)
    for name in ("compute", "exposed communication", "waiting for peers"):
        assert name in lines[1] and name in said[1]
