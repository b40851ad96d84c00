"""Pictures: the ending decides what a file is; what cannot be drawn is refused beforehand."""

import struct

import pytest

from switchml import output_files, plotting
from switchml.errors import ConfigError
from switchml.pages.charts import Line
from switchml.pages.panels import Bar, Bars, Curves, Point, Points
from tests.support.html_pages import read_page

CURVES = Curves(
    "Over & out",
    "bytes of the tensor",
    "time (µs)",
    [
        Line("gloo", [1024, 4096], [10, 20], [9, 18], [11, 22]),
        Line("<b>bound</b>", [1024, 4096], [5, 12], is_dashed=True, like="gloo"),
    ],
    x_log=2,
    y_log=True,
    x_names={1024: "1K", 4096: "4K"},
)
BARS = Bars("Time", "ms", [Bar("one", "switchml", 12345.6, 11000), Bar("two", "ring", 0.5, 0.25)], "closed form")
GROUPS = Bars("Queues", "KiB", [Bar("up", "mean", 1), Bar("up", "longest", 3), Bar("down", "mean", 2)])
DOTS = Bars("Speed", "MB a second", [Bar("fp16", "compress", 1e3), Bar("fp16", "decompress", 2e3)], is_log=True)
POINTS = Points("Size", "ratio", "error", [Point("sum", 2, 0.1, "fp16"), Point("gather", 9, 0.01, "topk")])
SCATTER = Points("Predicted", "measured", "predicted", [Point("real", 2, 2.1, "a"), Point("real", 9, 8, "b")], (0.2,))


@pytest.mark.slow
@pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG"), ("svg", b"<svg"), ("pdf", b"%PDF")])
def test_endings(tmp_path, ending, start):
    path = tmp_path / f"picture.{ending}"
    plotting.draw(path, "a $\\frac$ b", [CURVES, BARS, POINTS] if ending == "svg" else [GROUPS, DOTS, SCATTER])
    assert path.read_bytes().startswith(start)
    if ending == "svg":
        for text in ("1K", "The dark marks: closed form.", "12,346", "gloo", "topk"):
            assert f">{text}<" in path.read_text()


@pytest.mark.slow
def test_more_than_four_panels_take_several_rows(tmp_path):
    path = tmp_path / "picture.png"
    plotting.draw(path, "one row", [CURVES] * 4)
    width, height = _size(path)
    plotting.draw(path, "two rows", [CURVES] * 6)
    assert _size(path)[0] == width and 1.8 * height < _size(path)[1] < 2 * height


def _size(path):
    """Of a PNG, in pixels: as its header has it."""
    return struct.unpack(">II", path.read_bytes()[16:24])


def test_a_page_has_charts_and_their_tables(tmp_path):
    pytest.importorskip("jinja2", reason="needs jinja2 (pip install 'switchml[report]')")
    pytest.importorskip("vl_convert", reason="needs vl-convert (pip install 'switchml[report]')")
    path = tmp_path / "page.html"
    plotting.draw(path, "a & b", [CURVES, BARS, GROUPS, DOTS, POINTS, SCATTER])
    words = read_page(path)
    assert words.count("a & b") == 2 and words.count("As a table") == 6
    assert {"1K", "<b>bound</b>, time (µs)", "12,346", "closed form", "topk", "The dark marks: closed form."} <= set(
        words
    )


@pytest.mark.slow
@pytest.mark.needs("chromium", "chromedriver")
def test_browser_draws_every_kind(tmp_path, browser):
    """Hover, legend, zoom; no text leaves the page."""
    pytest.importorskip("vl_convert", reason="needs vl-convert (pip install 'switchml[report]')")
    path = tmp_path / "page.html"
    plotting.draw(path, "all", [CURVES, BARS, GROUPS, DOTS, POINTS, SCATTER])
    for width in (400, 1280):
        browser.open(path.as_uri(), width)
        charts = browser.charts()
        assert len(charts) == 6 and all(one["outside"] == one["touching"] == 0 for one in charts), charts
        assert browser.fits() and browser.problems() == []
    assert "1K" in browser.hover("figure.chart .mark-symbol path")
    faded = "return document.querySelectorAll('figure.chart svg [opacity=\"0.08\"]').length"
    assert browser.run(faded) == 0
    browser.press("figure.chart .role-legend-symbol path")  # the first line alone
    browser.wait(faded)
    first = "return document.querySelectorAll('figure.chart')[4].view.scale('x').domain()[0]"
    before = browser.run(first)
    browser.drag("figure[aria-label=Size] .background", 60)
    browser.wait(f"{first} !== {before}")
    assert browser.problems() == []


@pytest.mark.slow
@pytest.mark.needs("chromium", "chromedriver")
def test_theme_print_and_copy(tmp_path, browser, monkeypatch):
    """Dark where the system is, or as its button says; on paper black on white, without buttons, tables open; the
    command line can be copied."""
    pytest.importorskip("vl_convert", reason="needs vl-convert (pip install 'switchml[report]')")
    monkeypatch.setattr("sys.argv", ["/bin/switchml", "bench", "--plot", "a b.html", "--secret", "xyz"])
    path = tmp_path / "page.html"
    plotting.draw(path, "all", [BARS])
    paper = "return getComputedStyle(document.body).backgroundColor"
    ink = "return document.querySelector('figure.chart .role-axis-label text').getAttribute('fill')"
    browser.media(prefers_color_scheme="dark")
    browser.open(path.as_uri())
    assert browser.run(paper) == "rgb(20, 24, 28)" and browser.run(ink) == "#98a2ac"
    browser.press("button.theme")
    browser.wait(f"{ink} === '#5c656f'")
    assert browser.run(paper) == "rgb(255, 255, 255)"
    command = "switchml bench --plot 'a b.html' --secret '…'"
    assert browser.run("return document.querySelector('.command code').textContent") == command
    browser.run("navigator.clipboard.writeText = async text => { window.copied = text; }")
    browser.press("button.copy")
    browser.wait("return document.querySelector('button.copy').textContent === 'Copied'")
    assert browser.run("return window.copied") == command
    browser.run("navigator.clipboard.writeText = async () => { throw new Error(); }")  # as without the permission
    browser.run("document.addEventListener('copy', event => { window.copied = event.target.value; })")
    browser.press("button.copy")
    browser.wait("return window.copied === document.querySelector('.command code').textContent")
    browser.press("button.theme")
    browser.wait(f"{ink} === '#98a2ac'")
    browser.media(type="print")
    assert browser.run(paper) == "rgb(255, 255, 255)"
    shown = "return getComputedStyle(document.querySelector('{}')).{}"
    assert browser.run(shown.format("button.theme", "display")) == "none"
    assert browser.run("return document.querySelector('details.data table').checkVisibility()")
    assert browser.run(shown.format("figure.chart svg .role-axis-label text", "fill")) == "rgb(34, 34, 34)"
    assert browser.problems() == []
    browser.media()


def test_what_cannot_be_drawn_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="ends in .png, .svg, .pdf or .html"):
        plotting.check(tmp_path / "picture.gif")
    with pytest.raises(ConfigError, match="no such folder"):
        plotting.check(tmp_path / "none" / "picture.png")
    monkeypatch.setattr(output_files.importlib.util, "find_spec", lambda name: None)
    for name in ("picture.png", "page.html"):
        with pytest.raises(ConfigError, match=r"switchml\[report\]"):
            plotting.check(tmp_path / name)
