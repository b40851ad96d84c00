"""Shared by tests of HTML pages: a parser that validates them."""

from html.parser import HTMLParser
from pathlib import Path


class Seen(HTMLParser):
    """Tags in balance; the words and the links of the page."""

    VOID = ("meta", "line", "rect", "circle", "polyline", "br")

    def __init__(self):
        super().__init__()
        self.open, self.words, self.links = [], [], []

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def read_page(path: Path) -> list[str]:
    """The texts of a page; checks that it is well-formed and has no external links."""
    seen = Seen()
    seen.feed(path.read_text())
    assert seen.open == [] and not [link for link in seen.links if not link.startswith(("#", "data:"))]
    return [text.strip() for text in seen.words]
