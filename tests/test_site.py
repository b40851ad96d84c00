"""The documentation site: it builds without a warning, and what comes along can be listed and copied."""

import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from switchml import share
from switchml.cli.main import cli

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """The site with a tag of docs/conf.py, built once, in a process of its own: the reference is made of modules that
    are imported with a stand-in for torch."""
    pytest.importorskip("furo")
    pytest.importorskip("myst_parser")
    folder = tmp_path_factory.mktemp("docs")

    @functools.cache
    def run(tag: str) -> Path:
        command = [sys.executable, "-m", "sphinx", "-qW", "--keep-going", "-t", tag, "-d", folder / f"{tag}-trees"]
        result = subprocess.run([*command, ROOT / "docs", folder / tag], capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return folder / tag

    return run


@pytest.mark.slow
@pytest.mark.parametrize("tag", ["without_reference", "whole"])
def test_site_builds_without_warnings(tag, build):
    site = build(tag)
    pages = {page: (site / f"{page}.html").read_text() for page in ("index", "reference")}
    assert "_images/architecture.svg" in pages["index"]
    for name in ("Controller", "HostAgent", "codec_hook", "Fabric"):
        assert name in pages["reference"] or tag == "without_reference"
    sources = r'(?:<script[^>]*src|<link[^>]*href)="(\w+:[^"]*)"'
    loaded = [url for page in pages.values() for url in re.findall(sources, page)]
    assert loaded == [], "nothing comes from the network"


@pytest.mark.slow
@pytest.mark.needs("chromium", "chromedriver")
def test_pages_fit_their_window(build, browser):
    """Wide tables and blocks scroll by themselves; every picture is there."""
    site = build("without_reference")
    for page in ("index", "tutorials/diagnose", "reliability", "mininet"):
        for width in (400, 1280):
            browser.open((site / f"{page}.html").as_uri(), width)
            assert browser.fits(), (page, width)
        assert browser.run("return [...document.images].every(one => one.naturalWidth > 0)")
        assert browser.problems() == []


def test_every_page_is_in_the_contents():
    listed = set(re.findall(r"^([\w/-]+)$", (ROOT / "docs" / "index.md").read_text(), re.MULTILINE))
    files = (path for pattern in ("*.md", "*.ipynb") for path in (ROOT / "docs").rglob(pattern))
    pages = {str(path.relative_to(ROOT / "docs").with_suffix("")) for path in files}
    assert pages - {"index"} == listed


def test_reference_has_every_public_package():
    packages = re.findall(r"^## `([\w.]+)`", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    assert re.findall(r"automodule:: ([\w.]+)", (ROOT / "docs" / "reference.md").read_text()) == packages


def test_examples_are_listed_and_copied(tmp_path):
    table = CliRunner().invoke(cli, ["examples"]).stdout
    for file in share.files():
        assert file.name in table
        assert file.about
    result = CliRunner().invoke(cli, ["examples", "ddp_digits", "simple_switch", "--to", str(tmp_path / "new")])
    assert result.exit_code == 0
    assert (tmp_path / "new" / "ddp_digits.py").read_text() == share.named("ddp_digits.py").path.read_text()
    assert (tmp_path / "new" / "simple_switch").stat().st_mode & 0o111
    path = CliRunner().invoke(cli, ["examples", "switchml.lua", "--path"]).stdout.strip()
    assert Path(path).read_text().startswith("-- Wireshark")


@pytest.mark.parametrize("names, text", [(["nonsense"], "no example named 'nonsense'"), (["loss", "loss"], "exists")])
def test_examples_that_cannot_be_copied(tmp_path, names, text):
    result = CliRunner().invoke(cli, ["examples", *names, "--to", str(tmp_path)])
    assert result.exit_code == 1
    assert text in result.stderr
