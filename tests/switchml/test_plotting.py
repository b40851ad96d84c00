"""Pictures: the ending decides what a file is; what cannot be drawn is refused beforehand."""

import pytest

from switchml import output_files, plotting
from switchml.errors import ConfigError
from tests.support.html_pages import read_page


def draw(path):
    with plotting.figure(path, "a & b", (4, 3), columns=2) as (left, right):
        left.plot([1, 2], [3, 4], label="line")
        right.bar(["one", "two"], [1, 2])
        left.legend()


@pytest.mark.parametrize(
    ("ending", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF"), ("html", b"<!DO")]
)
def test_endings(tmp_path, ending, start):
    path = tmp_path / f"picture.{ending}"
    draw(path)
    assert path.read_bytes().startswith(start)


def test_a_page_holds_the_picture(tmp_path):
    draw(tmp_path / "page.html")
    words = read_page(tmp_path / "page.html")
    assert words.count("a & b") == 3 and {"line", "one", "two"} <= set(words)  # title, heading, and in the picture


def test_what_cannot_be_drawn_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="ends in .png, .svg, .pdf or .html"):
        plotting.check(tmp_path / "picture.gif")
    with pytest.raises(ConfigError, match="no such folder"):
        plotting.check(tmp_path / "none" / "picture.png")
    monkeypatch.setattr(output_files.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"switchml\[plot\]"):
        plotting.check(tmp_path / "picture.png")
