"""Shared by tests of HTML pages: a parser that validates them."""

from html.parser import HTMLParser
from pathlib import Path


class Seen(HTMLParser):
    """Tags in balance; the words and the links of the page, with what its charts are drawn from, less its code."""

    VOID = ("meta", "line", "rect", "circle", "polyline", "br", "wbr", "input", "hr")

    def __init__(self):
        super().__init__()
        self.open, self.words, self.links = [], [], []
        self.code = []
        self._is_code = False

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href")]
        self._is_code = tag == "script" and ("type", "application/json") not in attrs
        assert not [name for name, _ in attrs if name.startswith("on")], "code in an attribute"

    def handle_endtag(self, tag):
        self._is_code = False
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if self._is_code:
            self.code.append(data)
        elif self.get_starttag_text() == "<wbr>" and self.words:
            self.words[-1] += data
        else:
            self.words.append(data)


def read_page(path: Path) -> list[str]:
    """The texts of a page; checks that it is well-formed, has no external links, and that its code is ours."""
    seen = Seen()
    seen.feed(path.read_text())
    assert seen.open == [] and not [link for link in seen.links if not link.startswith(("#", "data:"))]
    assert set(seen.code) <= set(our_code()), "code that is not ours"
    return [text.strip() for text in seen.words]


def our_code() -> list[str]:
    """The scripts that pages may have."""
    from switchml.pages import vega
    from switchml.pages.page import HERE

    return [vega.script(), (HERE / "script.js").read_text().rstrip("\n")]


def without_our_code(path: Path) -> str:
    """A page less our scripts and the marks around what charts are drawn from: nothing else may be code."""
    text = path.read_text()
    for code in our_code():
        text = text.replace(f"<script>{code}</script>", "")
    return text.replace('<script type="application/json">', "")
